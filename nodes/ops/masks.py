"""Grammar masks of a step, and the matchers that they come from.

For each row that has a grammar a matcher walks the draft window, fills one mask per position, and
rolls back; the first draft that breaks the grammar ends the row's window. Masks of these rows lie
side by side, and nothing is filled or copied for the others: a mask is 16 KB a line at 128k tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from ...requests.batch import ScheduledRow, StepBatch
from ...requests.buckets import few_of
from ...sampling.windows import PARENT
from ...structured.backend import (
    Matcher,
)
from ...structured.bitmask import words
from ...structured.filling import fill_batch
from ...structured.grammar import GrammarError, MatcherFailure
from ...structured.in_use import GrammarsInUse
from ..data import GENERATION, FilledMask, HostDrafts, Mask
from .lines import number
from .transfer import CPU, packed, pinned, upload


@dataclass
class MatcherTable:
    """The `matchers` state: one matcher per structured request, and what went wrong with it."""

    grammars: GrammarsInUse = field(default_factory=GrammarsInUse)
    matchers: dict[int, Matcher] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def of(self, row: ScheduledRow) -> Matcher | None:
        """The row's matcher, made when it is first needed; None for a row without a grammar.

        Raises `MatcherFailure` where the tokens that the request came with are refused.
        """
        if not row.request.structured:
            return None
        uid = row.request.uid
        if uid not in self.matchers:
            matcher = self.grammars.of(uid).matcher()
            try:
                matcher.advance(row.earlier_output)
            except GrammarError as error:  # tokens that it came with
                raise MatcherFailure(str(error)) from error
            self.matchers[uid] = matcher
        return self.matchers[uid]

    def drop(self, uid: int) -> None:
        self.matchers.pop(uid, None)
        self.failures.pop(uid, None)


def failure_of(error: Exception) -> str:
    """What is told of a request whose grammar has failed."""
    told = str(error)
    return told if isinstance(error, MatcherFailure) else f"{type(error).__name__}: {told}"


class MaskBuffer:
    """Pinned masks, filled through numpy: `bits`, a line `[V / 32]` int32 for each place of a row
    that has a grammar, and `numbers`, as `FilledMask` says.

    W is the widest window of the step, so a step without drafts copies and applies less.
    """

    fixed = True
    """Its tensors never move: captured graphs know it by identity."""

    def __init__(self, rows: int, window: int, vocab: int, device: torch.device = CPU) -> None:
        self.bits = pinned(rows * window, words(vocab), dtype=torch.int32, device=device)
        self.numbers = pinned(rows * (1 + window), device=device)

    def fill(self, batch: StepBatch, table: MatcherTable, drafts: HostDrafts | None) -> FilledMask:
        """Masks of the rows whose tokens a grammar decides; no row but these is masked."""
        width, samples = batch.width, batch.samples
        # A resumed row's token is known; it was masked when it was sampled.
        asked = [
            (index, row)
            for index, row in enumerate(batch.sampling)
            if row.yields and row.request.structured
        ]
        used = packed(self.bits, held(len(asked), batch), width, self.bits.shape[1])
        bits = used.numpy()
        valid = np.full(len(asked), 0)
        items: list[tuple[Matcher, list[int], int]] = []
        trees: dict[int, list[int]] = {}
        for place, (_, row) in enumerate(asked):
            try:
                matcher = table.of(row)
            except Exception as error:  # the boundary: one request's grammar, one request's error
                table.failures[row.request.uid] = failure_of(error)
                bits[place] = 0
                continue
            assert matcher is not None
            items.append((matcher, drafts_of(row, table, drafts), place))
            if (parents := parents_of(row, drafts)) is not None:
                trees[place] = parents
        counts, failures = fill_batch(items, bits, trees)
        valid[[place for _, _, place in items]] = counts
        for place, failure in failures.items():
            table.failures[asked[place][1].request.uid] = str(failure)
        whose = [index for index, _ in asked]
        looks = looked_up(len(asked), batch)
        numbers = packed(self.numbers, samples * (1 + width if looks else 1))
        written = numbers.numpy()
        written[:samples] = width - 1
        written[whose] = valid
        if looks:
            number(whose, written[samples:].reshape(samples, width))
        return FilledMask(used.flatten(0, 1), numbers, samples)


def held(asked: int, batch: StepBatch) -> int:
    """For how many rows there are masks where so many are `asked` for.

    In two sizes where the step's own is rounded, so that its captured graphs come up again. Masks
    of nobody are not filled: what they hold is not looked at.
    """
    if batch.padding is None:
        return asked
    few = few_of(batch.samples)
    return few if asked <= few else batch.samples


def looked_up(asked: int, batch: StepBatch) -> bool:
    """Whether rows look up where their masks are: not where all of them have one, in their order.

    In a step whose size is rounded they always do, as its graphs do not depend on how many have.
    """
    return batch.padding is not None or asked < batch.samples


def drafts_of(row: ScheduledRow, table: MatcherTable, drafts: HostDrafts | None) -> list[int]:
    """The pending drafts of a row; none, and its request has failed, where they are another's."""
    if drafts is None or not row.decodes or row.window == 1:  # after steps without a drafter, say
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
    numbers, rows = upload(filled.numbers, device), filled.rows
    lines = numbers[rows:].view(rows, -1) if len(numbers) > rows else None
    return Mask(upload(filled.bits, device), numbers[:rows], lines)
