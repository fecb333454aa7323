"""The sizes of a decode step that its declarations depend on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Known from the pipeline file alone, before any model is loaded."""

    max_rows: int = 16  # requests in one step, at most
    token_budget: int = 256  # tokens in one step, at most
    draft_tokens: int = 0  # k, drafts per row and step, at most; 0 without a drafter
    tree_depth: int = 0  # drafts on the longest path of a draft tree; 0: drafts are no tree
    forced: bool = False  # whether drafts may be other tokens than the drafter's

    @property
    def window(self) -> int:
        """Query tokens of the widest decode row: its last token and k drafts."""
        return self.draft_tokens + 1

    @property
    def trees(self) -> bool:
        """Whether drafts may be a tree."""
        return self.tree_depth > 0

    @property
    def request_slots(self) -> int:
        """Rows of device tables: the last is for lines of a step that stand for no request."""
        return self.max_rows + 1
