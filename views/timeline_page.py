"""The timeline of a run as one HTML file: no network, no other files, and it works from a disk.

The numbers are text and tables of the page itself, so they are there without scripts and on paper.
The lanes are drawn on a canvas, only the part that is looked at. Colours are those of the drawings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from string import Template
from typing import Any

from ..graph import arguments
from ..graph.answers.explain import explain_wait
from ..timelines.critical import Cycle, chain
from ..timelines.timeline import Span, Timeline
from .html import asset, embedded, palette, policy
from .svg import STEP_COLOURS
from .traced import Trace
from .words import later, protected, us

SCRIPTS = (  # one, in this order
    "timeline_state.js",
    "timeline_words.js",
    "timeline_draw.js",
    "timeline_counts.js",
    "timeline_waits.js",
    "timeline_range.js",
    "timeline.js",
)
_TICKS = 10  # times are whole tenths of a µs
_MOST_CAUSES = 12


def timeline_page(trace: Trace, *, title: str | None = None, steps: int | None = None) -> str:
    """A run beside its plan as one self-contained HTML file. Raises `GraphError` for no `Trace`.

    `steps`: only so many of the last steps are drawn. A step of 15 ops takes about half a kilobyte.
    The numbers are those of the whole run.
    """
    arguments.a("timeline_page", "trace", trace, Trace, "a trace, as `Trace.of` makes of a report")
    name = title or trace.plan.graph.name
    script = "\n".join(map(asset, SCRIPTS))
    tables = _cycles, _waits, _idle, _actors, _ops, _requests
    return Template(asset("timeline.html")).substitute(
        policy=policy(script),
        title=escape(name),
        style=palette() + asset("timeline.css"),
        heading=_heading(trace, name),
        facts=_facts(trace),
        tables="".join(table(trace) for table in tables),
        data=embedded(_data(trace, steps)),
        script=script,
    )


# --- numbers ----------------------------------------------------------------------------------


def signed(share: float) -> str:
    """`+1.2%`; nothing that rounds to zero has a sign."""
    return f"{share:+.1%}" if abs(share) >= 0.0005 else "0.0%"


def _heading(trace: Trace, name: str) -> str:
    what = "simulated at the plan's costs" if trace.simulated else f"on {escape(trace.executor)}"
    steady = trace.analysis.steady
    each = "step" if trace.unit == "step" else f"{trace.unit}, which is called a step below"
    return (
        f"<h1>{escape(name)}</h1><p>{trace.counted(trace.run.steps)} {what}; the figures are of "
        f"the steady {trace.unit}s {steady.start} to {steady.stop - 1}. µs are per {each}.</p>"
    )


def _facts(trace: Trace) -> str:
    overlap = trace.analysis.overlap
    real = not trace.simulated
    facts = [
        ("period, measured" if real else "period, simulated", f"{us(trace.run.period_us)} µs", ""),
        ("period, predicted", f"{us(trace.predicted_us)} µs", _predicted_note(trace)),
        ("prediction error", signed(trace.error), "of the measured period" if real else ""),
        ("host work hidden", f"{overlap.hidden:.0%}", "a device is busy meanwhile"),
        ("device time overlapped", f"{overlap.of_device:.1%}", "a host thread is busy meanwhile"),
    ]
    if trace.replayed_us is not None:
        over = trace.analysis.mean_us - trace.replayed_us
        note = f"of the mean step, {us(trace.analysis.mean_us)} µs"
        facts.insert(3, ("hand-overs cost", f"{us(max(over, 0.0))} µs", note))
    return "".join(
        f"<div><dt>{label}</dt><dd>{value}<small>{escape(note)}</small></dd></div>"
        for label, value, note in facts
    )


def _predicted_note(trace: Trace) -> str:
    if trace.simulated:
        return "by the plan's critical cycle"
    return "simulated, each op at its median cost in this run"


def _table(title: str, note: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Numbers stand right: the columns whose name ends with a unit or a sign."""
    right = [name.endswith(("µs", "%", "count", "tokens", "steps", " ms")) for name in columns]

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if number else ''}>{_breakable(text)}</{tag}>"
            for text, number in zip(texts, right, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    said = f"<p>{escape(note)}</p>" if note else ""
    return (
        f"<section><h2>{escape(title)}</h2>{said}<div class=scroll><table><thead><tr>"
        f"{cells('th', columns)}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _breakable(text: str) -> str:
    """Names of ops may be broken after a dot."""
    return escape(text).replace(".", ".<wbr>") if " " not in text else escape(text)


def _cycles(trace: Trace) -> str:
    def said(found: Cycle | None) -> str:
        if found is None or not found.repeats:
            most = (
                "" if found is None else f" The most common covers {found.share:.0%} of the time."
            )
            return f"<p>No cycle repeats: what holds the run changes from step to step.{most}</p>"
        ops = "".join(
            f"<li>{escape(op)}" + (f"<b>step{d:+d}</b>" if d else "") + "</li>"
            for op, d in found.ops
        )
        return (
            f"<ol class=cycle>{ops}</ol><p>{us(found.us)} µs in its ops and "
            f"{us(found.late_us)} µs in hand-overs, over {found.share:.0%} of the time.</p>"
        )

    if trace.simulated:
        parts = f"<div><h3>simulated</h3>{said(trace.cycle)}</div>"
    else:
        parts = (
            f"<div><h3>measured</h3>{said(trace.cycle)}</div>"
            f"<div><h3>predicted</h3>{said(trace.planned_cycle)}</div>"
        )
    return f"<section><h2>Critical cycle</h2><div class=cycles>{parts}</div></section>"


def _waits(trace: Trace) -> str:
    """The plan's waits in words; an op that is selected links here."""
    rows = "".join(
        f'<tr id="wait-{index}"><td>wait {index}</td><td>{_breakable(wait.target)}</td>'
        f"<td>{_breakable(wait.source)} {escape(later(wait.distance))}</td><td>"
        + "".join(f"<p>{escape(line)}</p>" for line in explain_wait(trace.plan, wait).lines())
        + "</td></tr>"
        for index, wait in enumerate(trace.plan.waits, start=1)
    )
    heads = "".join(f"<th>{head}</th>" for head in ("", "op", "waits for", "why"))
    none = "" if rows else "<p>None: every ordering follows from the order of an actor's ops.</p>"
    return (
        f"<section id=plan-waits><h2>Waits of the plan</h2>{none}<div class=scroll><table><thead>"
        f"<tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _idle(trace: Trace) -> str:
    causes = [cause for cause in trace.analysis.causes if cause.us >= 0.05]
    rest = causes[_MOST_CAUSES:]
    more = f" {len(rest)} smaller causes: {us(sum(c.us for c in rest))} µs." if rest else ""
    return _table(
        "Idle time by cause",
        "Hand-over: all that the op comes after was over, but it had not started yet." + more,
        ["actor", "before", "why", "count", "idle µs", "hand-over µs"],
        (
            [c.actor, c.op, trace.why(c), str(c.times), us(c.us), us(c.late_us)]
            for c in causes[:_MOST_CAUSES]
        ),
    )


def _actors(trace: Trace) -> str:
    return _table(
        "Actors",
        "",
        ["actor", "busy %", "busy µs", "idle µs", "hand-over µs"],
        (
            [a.actor, f"{a.busy:.1%}", us(a.busy_us), us(a.idle_us), us(a.late_us)]
            for a in trace.analysis.actors
        ),
    )


def _ops(trace: Trace) -> str:
    return _table(
        "Ops",
        "",
        ["op", "actor", "count", "median µs", "90th percentile µs", "mean µs", "of its actor %"],
        (
            [
                o.op,
                o.actor,
                str(o.runs),
                us(o.median_us),
                us(o.p90_us),
                us(o.mean_us),
                f"{o.share:.1%}",
            ]
            for o in trace.analysis.ops
        ),
    )


def _requests(trace: Trace) -> str:
    if not trace.requests:
        return ""

    def ms(start: float | None, end: float | None) -> str:
        return "–" if start is None or end is None else f"{(end - start) * 1e3:,.1f}"

    return _table(
        "Requests",
        "",
        [
            "request",
            "grammar ms",
            "queue ms",
            "prefill ms",
            "decode ms",
            "tokens",
            "steps",
            "ended by",
        ],
        (
            [
                r.id,
                ms(r.asked_s, r.submitted_s),
                ms(r.submitted_s, r.scheduled_s),
                ms(r.scheduled_s, r.first_token_s),
                ms(r.first_token_s, r.ended_s),
                str(r.tokens),
                str(len(r.steps)),
                r.finish_reason or "–",
            ]
            for r in trace.requests
        ),
    )


# --- what is drawn ----------------------------------------------------------------------------


def _data(trace: Trace, steps: int | None) -> dict[str, Any]:
    """Columns of whole numbers; see `timeline.js` for what they mean."""
    run = trace.run
    shown = range(max(0, run.steps - steps) if steps else 0, run.steps)
    ops = list(trace.plan.graph.vertices)
    drawn = [_drawn(run, shown, ops, 0.0, "simulated" if trace.simulated else "measured")]
    if trace.planned is not None:
        kept = range(max(run.steady.start, shown.start), min(run.steady.stop, shown.stop))
        shift = _start(run, kept[0]) - _start(trace.planned, kept[0]) if kept else 0.0
        drawn.append(_drawn(trace.planned, kept, ops, shift, "planned"))
    links = chain(run)
    return {
        "ops": ops,
        "streams": sorted(run.streams),
        "serial": trace.executor == "serial",
        "colours": STEP_COLOURS,
        "ticks": _TICKS,
        "steady": [run.steady.start, run.steady.stop],
        "tracks": drawn,
        "period": run.period_us,
        "waits": [
            [ops.index(w.source), ops.index(w.target), w.distance, protected(w)]
            for w in trace.plan.waits
        ],
        "counts": _count_data(trace, shown),
        "chain": [ops.index(links[-1].op), links[-1].step] if links else None,
        "requests": [_request_data(r, trace.began_s) for r in trace.requests],
    }


def _start(timeline: Timeline, step: int) -> float:
    return min(span.start_us for span in timeline.events if span.step == step)


def _drawn(
    timeline: Timeline, steps: range, ops: Sequence[str], shift_us: float, name: str
) -> dict[str, Any]:
    number = {op: place for place, op in enumerate(ops)}
    helds: dict[tuple[int, int, str], int] = {}
    lanes = []
    for actor in timeline.actors:
        spans = [span for span in timeline.on(actor) if span.step in steps]
        lanes.append(_lane(actor, spans, number, helds, shift_us))
    return {"name": name, "lanes": lanes, "helds": [list(held) for held in helds]}


def _lane(
    actor: str,
    spans: Sequence[Span],
    number: dict[str, int],
    helds: dict[tuple[int, int, str], int],
    shift_us: float,
) -> dict[str, Any]:
    lane: dict[str, Any] = {"actor": actor, "op": [], "step": [], "gap": [], "us": [], "held": []}
    late, last, step = [], 0, 0
    for span in spans:
        start, end = (round((at + shift_us) * _TICKS) for at in (span.start_us, span.end_us))
        held = -1
        if span.held is not None:
            key = (number[span.held.op], span.step - span.held.step, span.held.by)
            held = helds.setdefault(key, len(helds))
        lane["op"].append(number[span.op])
        lane["step"].append(span.step - step)
        lane["gap"].append(start - last)
        lane["us"].append(end - start)
        lane["held"].append(held)
        late.append(round(span.late_us * _TICKS))
        last, step = end, span.step
    if any(late):
        lane["late"] = late
    return lane


def _count_data(trace: Trace, steps: range) -> dict[str, Any]:
    counts = [count for count in trace.counts if count.step in steps]
    names = ("step", "rows", "waiting", "blocks", "tokens", "drafted", "accepted")
    columns: dict[str, Any] = {name: [getattr(count, name) for count in counts] for name in names}
    return {**columns, "blocks_in_all": counts[0].blocks_in_all if counts else 0}


def _request_data(request: Any, began_s: float) -> dict[str, Any]:
    moments = (
        request.asked_s,
        request.submitted_s,
        request.scheduled_s,
        request.first_token_s,
        request.ended_s,
    )
    at = [None if m is None else round((m - began_s) * 1e6 * _TICKS) for m in moments]
    return {
        "id": request.id,
        "at": at,
        "tokens": request.tokens,
        "end": request.finish_reason or "nothing",
        "steps": len(request.steps),
    }
