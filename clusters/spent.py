"""Where the time of the devices goes: work by what it is, and gaps by what they wait for."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable

from ..timelines.timeline import Span
from .forward_cost import Parts

WORK = (*Parts._fields, "sampling")
GAPS = ("host", "bubbles", "idle")
MEANING = {
    "weights": "reading weights",
    "arithmetic": "matrix products that operations bound, not memory",
    "attention": "reading keys and values, or computing with them",
    "all_reduce": "all-reduces of tensor groups",
    "kernels": "between the kernels of a layer",
    "sampling": "sampling, drafting, and preparing inputs",
    "host": "waiting for the host",
    "bubbles": "waiting for another stage, a message, or a copy to the host",
    "idle": "no request is there",
}
_KEPT = 1 << 12  # host intervals: a stream is never so many ops behind the host


class Spent:
    """µs of each stage's stream by what they went to; its host's are noted to explain gaps.

    `streams`: those of the stages, in order; the rank of a host is that of its stage.
    """

    def __init__(self, streams: Iterable[str]) -> None:
        self.us: dict[str, defaultdict[str, float]] = {
            stream: defaultdict(float) for stream in streams
        }
        self._ended = dict.fromkeys(self.us, 0.0)
        self._host = {stream: deque[tuple[float, float]](maxlen=_KEPT) for stream in self.us}
        self._of_rank = list(self._host.values())
        self._idle: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def host(self, start_us: float, end_us: float, *, rank: int = 0, idle_us: float = 0.0) -> None:
        """A host op of that rank; for `idle_us` at its begin it waited for a request to come."""
        if idle_us:
            self._idle.append((start_us, start_us + idle_us))
        if end_us > start_us + idle_us:
            self._of_rank[rank].append((start_us + idle_us, end_us))

    def device(self, span: Span, parts: Parts | None) -> None:
        """A device op of a stage; `parts` of a forward pass, None for any other."""
        found = self.us[span.actor]
        self._gap(span.actor, self._ended[span.actor], span.start_us)
        self._ended[span.actor] = span.end_us
        if parts is None:
            found["sampling"] += span.us
        else:
            for name, us in zip(Parts._fields, parts, strict=True):
                found[name] += us

    def end(self, end_us: float) -> None:
        """The last request has ended: what is left until then waits for the host."""
        for stream in self.us:
            self._gap(stream, self._ended[stream], end_us)
            self._ended[stream] = max(end_us, self._ended[stream])

    def _gap(self, stream: str, start_us: float, end_us: float) -> None:
        if end_us <= start_us:
            return
        found = self.us[stream]
        idle = _within(self._idle, start_us, end_us)
        host = min(_within(self._host[stream], start_us, end_us), end_us - start_us - idle)
        found["idle"] += idle
        found["host"] += host
        found["bubbles"] += end_us - start_us - idle - host

    def shares(self) -> dict[str, float]:
        """Of the time of all stages together; they add up to 1."""
        total = sum(sum(each.values()) for each in self.us.values())
        return {
            name: sum(each[name] for each in self.us.values()) / total if total else 0.0
            for name in (*WORK, *GAPS)
        }

    def busy_us(self) -> float:
        """Of all stages together."""
        return sum(each[name] for each in self.us.values() for name in WORK)


def _within(intervals: deque[tuple[float, float]], start_us: float, end_us: float) -> float:
    """How much of the time from start to end lies in the intervals, which are in order."""
    found = 0.0
    at = bisect_left(intervals, (end_us,)) - 1
    while at >= 0 and intervals[at][1] > start_us:
        found += min(intervals[at][1], end_us) - max(intervals[at][0], start_us)
        at -= 1
    return found
