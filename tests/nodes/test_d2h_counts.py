"""d2h_counts: how many tokens each row got, on the host."""

from __future__ import annotations

import torch

from stepweave.nodes.d2h_counts import d2h_counts
from tests.nodes.steps import sampled_of


def test_counts_lie_in_front_and_the_rest_is_as_it_was() -> None:
    host = torch.tensor([9, 9, 9, 9])
    sampled = sampled_of([[5, 6], [7], [8, 9, 10]])
    assert d2h_counts(sampled=sampled, host_counts=host) is host
    assert host.tolist() == [2, 1, 3, 9]


def test_a_step_that_sampled_nothing_has_no_counts_and_touches_nothing() -> None:
    host = torch.tensor([9, 9])
    assert d2h_counts(sampled=None, host_counts=host) is None
    assert host.tolist() == [9, 9]
