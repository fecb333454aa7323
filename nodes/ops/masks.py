"""Grammar masks of a step, and the matchers that they come from.

For each row a matcher walks the draft window, fills one mask per position, and rolls back; the
first draft that breaks the grammar ends the row's window.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ...requests.batch import ScheduledRow, StepBatch
from ...sampling.windows import PARENT
from ...structured.backend import (
    Matcher,
)
from ...structured.bitmask import ALL_ALLOWED, words
from ...structured.filling import fill_batch
from ...structured.in_use import GrammarsInUse
from ..data import GENERATION, FilledMask, HostDrafts, Mask
from .transfer import CPU, packed, pinned, upload


@dataclass
class MatcherTable:
    """The `matchers` state: one matcher per structured request, and what went wrong with it."""

    grammars: GrammarsInUse = field(default_factory=GrammarsInUse)
    matchers: dict[int, Matcher] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def of(self, row: ScheduledRow) -> Matcher | None:
        """The row's matcher, made when it is first needed; None for a row without a grammar."""
        if not row.request.structured:
            return None
        uid = row.request.uid
        if uid not in self.matchers:
            matcher = self.grammars.of(uid).matcher()
            matcher.advance(row.earlier_output)
            self.matchers[uid] = matcher
        return self.matchers[uid]

    def drop(self, uid: int) -> None:
        self.matchers.pop(uid, None)
        self.failures.pop(uid, None)


class MaskBuffer:
    """Pinned masks: `bits[S, W, V / 32]` int32 and `valid[S]`, filled through numpy.

    W is the widest window of the step, so a step without drafts copies and applies less.
    """

    fixed = True
    """Its tensors never move: captured graphs know it by identity."""

    def __init__(self, rows: int, window: int, vocab: int, device: torch.device = CPU) -> None:
        self.bits = pinned(rows, window, words(vocab), dtype=torch.int32, device=device)
        self.valid = pinned(rows, device=device)

    def fill(self, batch: StepBatch, table: MatcherTable, drafts: HostDrafts | None) -> FilledMask:
        """Masks of every sampling row: all ones where nothing is structured."""
        rows, width = batch.sampling, batch.width
        used = packed(self.bits, batch.samples, width, self.bits.shape[2])
        bits = used.numpy()
        bits[:] = ALL_ALLOWED
        valid = self.valid.numpy()
        valid[: batch.samples] = width - 1
        items: list[tuple[Matcher, list[int], int]] = []
        trees: dict[int, list[int]] = {}
        for sample_index, row in enumerate(rows):
            if not row.yields:
                continue  # a resumed row's token is known; it was masked when it was sampled
            try:
                matcher = table.of(row)
            except Exception as error:  # the boundary: one request's grammar, one request's error
                table.failures[row.request.uid] = f"{type(error).__name__}: {error}"
                bits[sample_index] = 0
                valid[sample_index] = 0
                continue
            if matcher is not None:
                items.append((matcher, drafts_of(row, table, drafts), sample_index))
                if (parents := parents_of(row, drafts)) is not None:
                    trees[sample_index] = parents
        counts, failures = fill_batch(items, bits, trees)
        for (_, _, index), count in zip(items, counts, strict=True):
            valid[index] = count
        for index, failure in failures.items():
            table.failures[rows[index].request.uid] = str(failure)
        return FilledMask(used, self.valid[: batch.samples])


def drafts_of(row: ScheduledRow, table: MatcherTable, drafts: HostDrafts | None) -> list[int]:
    """The pending drafts of a row; none, and its request has failed, where they are another's."""
    if drafts is None or not row.decodes:
        return []
    if int(drafts.tags[row.request_slot, GENERATION]) != row.generation:
        table.failures[row.request.uid] = (
            f"request slot {row.request_slot} holds drafts of generation "
            f"{int(drafts.tags[row.request_slot, GENERATION])}, not {row.generation}"
        )
        return []
    found: list[int] = drafts.tokens[row.request_slot, : row.window - 1].tolist()
    return found


def parents_of(row: ScheduledRow, drafts: HostDrafts | None) -> list[int] | None:
    """The window places before a row's pending drafts; None where each comes after the last."""
    if drafts is None or drafts.branches is None:
        return None
    found: list[int] = drafts.branches[row.request_slot, PARENT, 1:].tolist()
    return found


@torch.inference_mode()
def uploaded(filled: FilledMask, device: torch.device) -> Mask:
    """The masks, on `device`."""
    return Mask(upload(filled.bits, device), upload(filled.valid, device))
