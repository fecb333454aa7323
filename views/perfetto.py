"""A timeline as Chrome trace events, which Perfetto and chrome://tracing read.

One process is the run, with a track per actor, and one the plan, with the same tracks; flow arrows
show waits and carried values. A third has a track per request. Of a run that went from plan to plan
a fourth says which plan ran when.

Times are written in eighths of a µs. Those are exact in binary, so no reader rounds one slice into
the next, and slices on a track never overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from ..graph import arguments
from ..graph.plan import Plan
from ..timelines.timeline import Span, Timeline
from .words import protected

if TYPE_CHECKING:
    from ..requests.spans import RequestSpan
    from .traced import Part

TraceEvent = dict[str, Any]

MEASURED, PLANNED, REQUESTS, PLANS = 1, 2, 3, 4  # process ids
_TICKS = 8  # in a µs


class Slice(NamedTuple):
    """A span in whole ticks: at least one long, and after the slice before it on its track."""

    span: Span
    start: int
    end: int


class Piece(NamedTuple):
    """Spans of a timeline, so many µs later than it says; its step 0 is step `first` of the run."""

    plan: Plan
    timeline: Timeline
    spans: Sequence[Span]
    shift_us: float
    first: int = 0


class Arrow(NamedTuple):
    """What a flow shows: in each step, `target` comes after `source` of `distance` steps before."""

    source: str
    target: str
    distance: int
    kind: str  # wait | carry
    name: str  # hazard and value


def perfetto(
    plan: Plan,
    run: Timeline,
    *,
    planned: Timeline | None = None,
    requests: Sequence[RequestSpan] = (),
    began_s: float = 0.0,
    simulated: bool = False,
) -> dict[str, Any]:
    """The whole trace as one object, for `json.dump`. `write_perfetto` does with less memory.

    `planned` is moved in time so that its first steady step begins when the run's does, and shown
    over the steady steps only. `began_s` is the zero of the run's times on the requests' clock
    (`RunReport.began_s`). `simulated`: the run is no real one, and its process says so. Raises
    `GraphError` if `plan` is not a plan.
    """
    arguments.a("perfetto", "plan", plan, Plan, arguments.A_PLAN)
    events = _events(plan, run, planned, requests, began_s, simulated)
    return {"displayTimeUnit": "ns", "otherData": _about(plan, run), "traceEvents": list(events)}


def write_perfetto(
    stream: IO[str],
    plan: Plan,
    run: Timeline,
    *,
    planned: Timeline | None = None,
    requests: Sequence[RequestSpan] = (),
    began_s: float = 0.0,
    simulated: bool = False,
    parts: Sequence[Part] = (),
) -> None:
    """The same as text, an event at a time.

    `parts`: of a run that went from plan to plan. They are all shown, and a track says which plan
    ran when; `plan` and `run` are of one of them, and beside that the plan is shown.
    """
    head = json.dumps({"displayTimeUnit": "ns", "otherData": _about(plan, run)})
    stream.write(f'{head[:-1]}, "traceEvents": [\n')
    lead = ""
    for event in _events(plan, run, planned, requests, began_s, simulated, parts):
        stream.write(lead + json.dumps(event, ensure_ascii=False, separators=(",", ":")))
        lead = ",\n"
    stream.write("\n]}\n")


def _about(plan: Plan, run: Timeline) -> dict[str, str]:
    return {
        "graph": plan.graph.name,
        "plan": plan.digest,
        "steps": str(run.steps),
        "cycle": str(plan.graph.cycle),
        "period_us": f"{run.period_us:.3f}",
    }


def _events(
    plan: Plan,
    run: Timeline,
    planned: Timeline | None,
    requests: Sequence[RequestSpan],
    began_s: float,
    simulated: bool,
    parts: Sequence[Part] = (),
) -> Iterator[TraceEvent]:
    spans = [_request_parts(request, began_s) for request in requests]
    pieces = [Piece(plan, run, run.events, 0.0)]
    if parts:  # times are counted from the begin of the part that is judged
        begin = max(parts, key=lambda part: len(part.steps)).begin_us
        pieces = [
            Piece(each.plan, each.run, each.run.events, each.begin_us - begin, each.steps.start)
            for each in parts
        ]
    early = min([*(start for each in spans for _, start, _, _ in each), pieces[0].shift_us])
    numbers = iter(range(1, 1 << 60))
    name = "simulated" if simulated else "measured"
    yield from _process(pieces, -early, MEASURED, name, numbers)
    if planned is not None and planned.steady and run.steady:
        kept = [span for span in planned.events if span.step in planned.steady]
        shift = _start(run) - _start(planned)
        yield from _process(
            [Piece(plan, planned, kept, shift)], -early, PLANNED, "planned", numbers
        )
    if requests:
        yield from _named(REQUESTS, "requests", [request.id for request in requests])
        for track, (request, each) in enumerate(zip(requests, spans, strict=True), start=1):
            yield from _request(request, each, track, -early)
    if parts:
        yield from _which(parts, pieces, -early)


def _which(parts: Sequence[Part], pieces: Sequence[Piece], shift_us: float) -> Iterator[TraceEvent]:
    """Which plan ran when: a slice for each part of a run, until the next one begins."""
    yield from _named(PLANS, "plans", ["plan"])
    begins = [_ticks(piece.shift_us + shift_us) for piece in pieces]
    last = max((span.end_us for span in pieces[-1].spans), default=0.0)
    ends = [*begins[1:], begins[-1] + _ticks(last)]
    for part, begin, end in zip(parts, begins, ends, strict=True):
        yield {
            "ph": "X",
            "name": part.name,
            "cat": "plan",
            "pid": PLANS,
            "tid": 1,
            "ts": _us(begin),
            "dur": _us(max(end - begin, 1)),
            "args": {
                "digest": part.plan.digest,
                "steps": f"{part.steps.start} to {part.steps.stop - 1}",
            },
        }


def _start(timeline: Timeline) -> float:
    """When the first steady step begins, on all actors together."""
    step = timeline.steady.start
    return min(span.start_us for span in timeline.events if span.step == step)


def _process(
    pieces: Sequence[Piece],
    shift_us: float,
    pid: int,
    name: str,
    numbers: Iterator[int],
) -> Iterator[TraceEvent]:
    actors = [*dict.fromkeys(actor for piece in pieces for actor in piece.timeline.actors)]
    yield from _named(pid, name, actors)
    track = {actor: tid for tid, actor in enumerate(actors, start=1)}
    slices: list[dict[tuple[str, int], Slice]] = [{} for _ in pieces]
    for actor, tid in track.items():
        last = 0
        own = [
            (span.start_us + piece.shift_us, number, span)
            for number, piece in enumerate(pieces)
            for span in piece.spans
            if span.actor == actor
        ]
        for start_us, number, span in sorted(own, key=itemgetter(0)):
            start = max(_ticks(start_us + shift_us), last)
            last = max(_ticks(span.end_us + pieces[number].shift_us + shift_us), start + 1)
            slices[number][span.op, span.step] = Slice(span, start, last)
            yield _slice(pieces[number], slices[number][span.op, span.step], pid, tid)
    for piece, found in zip(pieces, slices, strict=True):
        for arrow in arrows(piece.plan):
            for (op, step), target in found.items():
                source = found.get((arrow.source, step - arrow.distance))
                if op == arrow.target and source is not None and source.start <= target.start:
                    yield from _flow(arrow, source, target, pid, track, next(numbers))


def _slice(piece: Piece, it: Slice, pid: int, tid: int) -> TraceEvent:
    span, first = it.span, piece.first
    args: dict[str, Any] = {"step": first + span.step}
    if span.held is not None:
        held = f"{span.held.op} of step {first + span.held.step}"
        args |= {"held by": held, "by": span.held.by}
    if round(span.late_us, 3) > 0:
        args["hand-over µs"] = round(span.late_us, 3)
    return {
        "ph": "X",
        "name": span.op,
        "cat": "device" if span.actor in piece.timeline.streams else "host",
        "pid": pid,
        "tid": tid,
        "ts": _us(it.start),
        "dur": _us(it.end - it.start),
        "args": args,
    }


def arrows(plan: Plan) -> tuple[Arrow, ...]:
    """The waits, and of the values read from earlier steps those that no wait shows already."""
    found = {
        (wait.source, wait.target, wait.distance): Arrow(
            wait.source, wait.target, wait.distance, "wait", protected(wait)
        )
        for wait in plan.waits
    }
    for edge in plan.edges:
        key = (edge.source, edge.target, edge.distance)
        if edge.carry and edge.hazard == "RAW" and edge.source != edge.target:
            found.setdefault(key, Arrow(*key, "carry", f"{edge.value}@-{edge.carry}"))
    return tuple(found.values())


def _flow(
    arrow: Arrow, source: Slice, target: Slice, pid: int, track: dict[str, int], number: int
) -> Iterator[TraceEvent]:
    """From inside the one slice to the begin of the other, so that both ends have a slice."""
    args = {"what": arrow.name, "distance": arrow.distance}
    common = {"name": arrow.kind, "cat": arrow.kind, "id": number, "pid": pid}
    left = min(source.end - 1, target.start)
    yield {
        "ph": "s",
        **common,
        "tid": track[source.span.actor],
        "ts": _us(left),
        "args": args,
    }
    yield {
        "ph": "f",
        "bp": "e",
        **common,
        "tid": track[target.span.actor],
        "ts": _us(target.start),
        "args": args,
    }


def _named(pid: int, name: str, tracks: Sequence[str]) -> Iterator[TraceEvent]:
    """Names and places of a process and its tracks."""

    def meta(what: str, tid: int, args: dict[str, Any]) -> TraceEvent:
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}

    yield meta("process_name", 0, {"name": name})
    yield meta("process_sort_index", 0, {"sort_index": pid})
    for tid, track in enumerate(tracks, start=1):
        yield meta("thread_name", tid, {"name": track})
        yield meta("thread_sort_index", tid, {"sort_index": tid})


Phase = tuple[str, float, float, int]  # name, from, to (µs on the run's clock), depth


def _request_parts(request: RequestSpan, began_s: float) -> list[Phase]:
    """The request as a whole, then what it was at, one after the other."""
    moments = [
        ("grammar", request.asked_s),
        ("queue", request.submitted_s),
        ("prefill", request.scheduled_s),
        ("decode", request.first_token_s),
    ]
    known = [(name, (at - began_s) * 1e6) for name, at in moments if at is not None]
    latest = known[-1][1]
    end = latest if request.ended_s is None else (request.ended_s - began_s) * 1e6
    ends = [*(at for _, at in known[1:]), end]
    parts = [(name, at, until, 1) for (name, at), until in zip(known, ends, strict=True)]
    return [(request.id, known[0][1], end, 0), *parts]


def _request(
    request: RequestSpan, parts: Sequence[Phase], tid: int, shift_us: float
) -> Iterator[TraceEvent]:
    about = {
        "prompt tokens": request.prompt_tokens,
        "tokens": request.tokens,
        "ended by": request.finish_reason or "nothing",
        "preemptions": request.preemptions,
        "steps": len(request.steps),
    }
    for name, start, end, depth in parts:
        first, last = _ticks(start + shift_us), _ticks(end + shift_us)
        if depth and first == last:
            continue  # it was never at that
        yield {
            "ph": "X",
            "name": name,
            "cat": "request" if depth == 0 else "phase",
            "pid": REQUESTS,
            "tid": tid,
            "ts": _us(first),
            "dur": _us(last - first),
            "args": {} if depth else about,
        }


def _ticks(us: float) -> int:
    return round(us * _TICKS)


def _us(ticks: int) -> float | int:
    return ticks // _TICKS if ticks % _TICKS == 0 else ticks / _TICKS
