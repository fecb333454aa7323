"""Passes of a model over rows of all kinds in one batch."""

from __future__ import annotations

from torch import Tensor

from stepweave.models.causal_lm import CausalLM
from tests.models.paged_rows import PagedRows


def passes(model: CausalLM) -> list[Tensor]:
    """Prompts, windows with masked tokens and single tokens of three requests."""
    rows = PagedRows(model)
    found = rows.feed(("a", range(20)), ("b", [5, 3, 90]))
    found += rows.feed(("a", [7]), ("b", [8]))
    found += rows.feed(("c", range(60, 73)), ("a", [1, 2, 3]), ("b", [4]), masked=2)
    return [*found, *rows.feed(("c", [11]))]
