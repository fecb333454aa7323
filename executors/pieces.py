"""Pieces of ops, recorded by size: `graph/pieces.py` says what an op asks for.

One recording for each key: what it begins with lies in memory of its own, what it comes to in
memory that all recordings of the op share, since it is overwritten by the next run anyway. What
they leave between is in the pool of the op's stream, as that of whole segments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..backends.streams import CannotCapture, Recording, Stream
from ..graph.pieces import Between
from .capturing import capturing, may_pass, unheard, why_failed
from .counts import Counts
from .terms import Terms

R = TypeVar("R")

LEAST = 16
"""Tokens to which fewer are rounded up: a product takes as long for one as for these."""

LIMIT = 128
"""Recordings of one op."""

LEFT = 1024
"""Runs of an op after which a recording that none of them used may make room for another."""

REMEMBERED = 1024
"""Keys of an op of which is known how often they came up, or why they are not recorded."""


@dataclass
class _Now:
    """What the calls between pieces are told in this run."""

    value: object


@dataclass
class _Recorded:
    recording: Recording
    given: Sequence[Tensor]  # each [n, ...]
    now: _Now
    found: Any
    used: int = 0  # the last run that did


@dataclass
class OpPieces:
    """`Pieces` of one op. What its recordings come to is kept under `name`."""

    name: Hashable
    stream_name: str
    terms: Terms
    counts: Counts = field(default_factory=Counts)
    stream: Stream | None = None  # of the run that is on
    _known: dict[Hashable, _Recorded] = field(default_factory=dict)  # what was used last is last
    _runs: int = 0
    _seen: dict[Hashable, int | str] = field(default_factory=dict)  # times, or why it is not

    def begin(self, stream: Stream, *, same_states: bool) -> None:
        """For a new leg of a run: what was recorded on other states is of no use."""
        self.stream = stream
        if not same_states:
            self._known.clear()
            self._seen.clear()

    def size(self, count: int) -> int | None:
        """Four sizes for each power of two, so that a fifth is computed in vain at the most."""
        apart = max(4, 1 << max(count - 1, 0).bit_length() >> 3)
        rounded = -(-max(count, LEAST) // apart) * apart
        return rounded if rounded <= self.terms.largest else None

    def run(
        self,
        key: Hashable,
        given: Sequence[tuple[Tensor, int]],
        now: object,
        work: Callable[[Sequence[Tensor], Between], R],
        *,
        otherwise: bool = False,
    ) -> R | None:
        """As `Pieces` says, for `given[n, ...]`."""
        key = (key, *((size, each.shape[1:], each.dtype) for each, size in given))
        self._runs += 1
        known = self._known.get(key)
        if known is None:
            if (reason := self._why_not(key)) is not None:
                if not otherwise:
                    self.counts.because(reason)
                return None
            return self._record(key, given, now, work)
        self._use(key, known)
        _fill(known.given, given)
        known.now.value = now
        known.recording.replay()
        known.now.value = None
        self.counts.replayed += 1
        found: R = known.found
        return found

    def _why_not(self, key: Hashable) -> str | None:
        """Why a step of this key, which is not known, is not recorded now; None if it is."""
        seen = self._seen.pop(key, 0)
        self._seen[key] = seen if isinstance(seen, str) else seen + 1
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        if isinstance(seen, str):
            return seen
        if seen < self.terms.usual:
            return "its size has come up seldom so far"
        return self._full()

    def _record(
        self,
        key: Hashable,
        given: Sequence[tuple[Tensor, int]],
        now: object,
        work: Callable[[Sequence[Tensor], Between], R],
    ) -> R | None:
        """Once as usual, which warms kernels up for this size and shows what it comes to."""
        assert self.stream is not None, "a run is on"
        cell = _Now(now)
        tensors = [each.new_zeros(size, *each.shape[1:]) for each, size in given]
        _fill(tensors, given)
        usual = work(tensors, lambda call, *touched: call(cell.value, *touched))
        self.terms.where.reserve(self.name, 0, usual)
        try:
            recording = self.stream.recording(self.terms.pools.of(self.stream_name))
        except CannotCapture as error:
            self._refuse(key, f"{error}")
            return usual

        def between(call: Callable[..., None], *touched: Tensor) -> None:
            with unheard():
                recording.between(lambda *there: call(cell.value, *there), *touched)

        try:
            with capturing(recording):
                found = self.terms.where.settle(self.name, 0, work(tensors, between))
        except Exception as error:
            self.terms.pools.failed(self.stream_name)
            self._refuse(key, why_failed(error))
            if may_pass(error):
                self._seen[key] = 0
            return usual
        if recording.refused is not None:
            self._refuse(key, f"cannot be captured: {recording.refused}")
            return usual
        cell.value = None
        del self._seen[key]
        self._use(key, _Recorded(recording, tensors, cell, found))
        self.counts.captured += 1
        result: R = found
        return result

    def _use(self, key: Hashable, recorded: _Recorded) -> None:
        self._known.pop(key, None)
        self._known[key] = recorded
        recorded.used = self._runs

    def _full(self) -> str | None:
        """Why nothing more is recorded: there is no room, and none can be made."""
        if len(self._known) < (limit := self.terms.share(LIMIT)):
            return None
        oldest = next(iter(self._known))
        if self._runs - self._known[oldest].used <= LEFT:
            return f"{limit} sizes are recorded already"
        del self._known[oldest]
        return None

    def _refuse(self, key: Hashable, reason: str) -> None:
        self._seen[key] = reason
        self.counts.because(reason)


def _fill(tensors: Sequence[Tensor], given: Sequence[tuple[Tensor, int]]) -> None:
    with torch.inference_mode():
        for tensor, (each, _) in zip(tensors, given, strict=True):
            tensor[: len(each)].copy_(each)
