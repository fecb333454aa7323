"""d2h_copy: sampled tokens and drafts on the host."""

from __future__ import annotations

from dataclasses import replace

import torch

from stepweave.nodes.d2h_copy import d2h_copy
from stepweave.nodes.data import HostSampled
from stepweave.nodes.ops.host_copies import new_drafts, new_sampled
from stepweave.sampling.logprobs import Logprobs
from tests.nodes.steps import SIZES, drafts_of, sampled_of, some


def test_tokens_are_packed_in_lines_of_the_step_and_counts_lie_in_front() -> None:
    host = new_sampled(SIZES)
    host.tokens.fill_(7)
    sampled = sampled_of([[11, 12], [13]], drafted=[2, 1])
    copied, drafts = some(
        d2h_copy(sampled=sampled, drafts=None, host_sampled=host, host_drafts=None)
    )
    assert copied is host
    assert drafts is None
    assert host.tokens.shape == (4, 3)
    assert host.tokens.view(-1).tolist() == [11, 12, 13, -1] + [7] * 8, "the rest is as it was"
    assert host.counts.tolist() == [2, 1, 0, 0]
    assert host.drafted.tolist() == [2, 1, 0, 0]


def test_a_step_that_sampled_nothing_copies_its_drafts_alone() -> None:
    host, host_drafts = new_sampled(SIZES), new_drafts(SIZES)
    drafts = drafts_of({1: [21, 22], 3: [31]})
    copied, there = some(
        d2h_copy(sampled=None, drafts=drafts, host_sampled=host, host_drafts=host_drafts)
    )
    assert copied is None
    assert there is host_drafts
    assert there.tokens.tolist() == [[-1, -1], [21, 22], [-1, -1], [31, -1], [-1, -1]]
    assert there.tags.tolist() == [[-1, -1], [1, 3], [-1, -1], [1, 3], [-1, -1]]
    assert host.counts.tolist() == [0] * 4


def test_drafts_that_nobody_reads_on_the_host_are_not_copied() -> None:
    host = new_sampled(SIZES)
    result = d2h_copy(
        sampled=sampled_of([[5]]), drafts=drafts_of({}), host_sampled=host, host_drafts=None
    )
    assert result == (host, None)


def test_log_probabilities_are_copied_where_they_were_computed() -> None:
    host = new_sampled(SIZES)
    plain = sampled_of([[5, 6], [8]])
    asked = replace(plain, logprobs=logprobs(4, top=2), prompt=logprobs(3, top=1))
    d2h_copy(sampled=asked, drafts=None, host_sampled=host, host_drafts=None)
    assert host.logprobs.logprob[:5].tolist() == [-0.0, -1.0, -2.0, -3.0, 0.0]
    assert host.logprobs.rank[:4].tolist() == [1, 2, 3, 4]
    assert host.logprobs.top_tokens.view(-1)[:9].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    assert host.prompt.top_tokens.view(-1)[:4].tolist() == [0, 1, 2, 0]
    assert host.prompt.top_logprobs.view(-1)[:3].tolist() == [0.0, 0.5, 1.0]


def logprobs(lines: int, top: int) -> Logprobs:
    """Of so many tokens, numbered."""
    number = torch.arange(lines * top).view(lines, top)
    return Logprobs(
        -torch.arange(lines, dtype=torch.float32),
        torch.arange(lines) + 1,
        number,
        number.to(torch.float32) / 2,
    )


def test_a_prompt_alone_copies_no_tokens() -> None:
    none = torch.empty(0, dtype=torch.int64)
    host = new_sampled(SIZES)
    sampled = replace(sampled_of([[5]]), tokens=none[:, None], counts=none, drafted=none)
    asked = replace(sampled, prompt=logprobs(2, top=1))
    copied, _ = some(d2h_copy(sampled=asked, drafts=None, host_sampled=host, host_drafts=None))
    assert isinstance(copied, HostSampled)
    assert host.prompt.rank[:3].tolist() == [1, 2, 0]
    assert host.tokens.tolist() == [[-1] * 3] * 4
