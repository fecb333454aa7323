"""What `stepweave trace` prints: who was busy, who waited for what, and what was predicted."""

from __future__ import annotations

from collections.abc import Iterator

from ..executors.recorder import overhead_us
from ..timelines.critical import Cycle
from ..views.timeline_page import signed
from ..views.traced import Trace
from ..views.words import us
from .wrapping import paragraph, path, table

_CAUSES = 6
_LEAST_US = 0.5  # idle time per step that is worth a line
_LABEL = 11


def summary(found: Trace, name: str, width: int) -> Iterator[str]:
    """The lines of the summary, none wider than `width`; times are per step, or per cycle."""
    steady = found.analysis.steady
    how = "simulated, not run" if found.simulated else f"on {found.executor}"
    first, steps = found.first, max([found.run.steps, *(each.steps.stop for each in found.parts)])
    judged = f"figures of {found.unit}s {first + steady[0]} to {first + steady[-1]}"
    yield f"{name}: {found.counted(steps)} {how}; {judged}"
    if found.unit != "step":
        yield from paragraph(f"below, a step is such a {found.unit}, and µs are of one", width)
    yield ""
    yield from _parts(found)
    yield from _period(found, width)
    yield from _overlap(found, width)
    yield ""
    rows = [["actor", "busy", "busy µs", "idle µs", "hand-over µs"]]
    for a in found.analysis.actors:
        rows.append([a.actor, f"{a.busy:.1%}", us(a.busy_us), us(a.idle_us), us(a.late_us)])
    yield from table(rows, width, right=(1, 2, 3, 4))
    yield from _idle(found, width)
    yield from _modes(found, width)
    yield ""
    yield from _cycle("simulated" if found.simulated else "measured", found.cycle, width)
    if found.simulated:
        return
    if found.cycle and found.planned_cycle and found.cycle.ops == found.planned_cycle.ops:
        yield _label("predicted") + "the same cycle"
    else:
        yield from _cycle("predicted", found.planned_cycle, width)
    ops = len(found.plan.graph.vertices)
    yield ""
    yield f"tracing itself took about {ops * overhead_us():.1f} µs of each {found.unit}"


def _modes(found: Trace, width: int) -> Iterator[str]:
    """A line for each mode of steps, where there are any."""
    for each in found.words:
        said = f"simulated {us(each.simulated_us)} µs, predicted {us(each.predicted_us)} µs"
        yield from paragraph(f"{' '.join(each.word)}: {said}", width, label=_label("mode"))
    modes = found.modes
    if modes is None:
        return
    yield ""
    rows = [["mode of steps", "steps", "measured µs", "predicted µs", "error", "alone µs"]]
    for mode in modes.modes:
        error = signed(mode.predicted_us / mode.measured_us - 1) if mode.measured_us else "–"
        times = (us(mode.measured_us), us(mode.predicted_us), error, us(mode.alone_us))
        rows.append([mode.mode, str(mode.steps), *times])
    yield from table(rows, width, right=(1, 2, 3, 4, 5))
    if len(modes.modes) > 1:
        said = (
            f"measured {us(modes.measured_us)} µs, predicted {us(modes.predicted_us)} µs with "
            f"costs by mode, {us(modes.one_cost_us)} µs with one cost for each op"
        )
        yield from paragraph(said, width, label=_label("mean step"))


def _parts(found: Trace) -> Iterator[str]:
    """Which plan ran which steps, where there were several; the figures are of the longest part."""
    if not found.parts:
        return
    rows = [["plan", "steps", "period µs", "digest"]]
    for part in found.parts:
        steps = f"{part.steps.start} to {part.steps.stop - 1}"
        rows.append([part.name, steps, us(part.run.period_us), part.plan.digest[:16]])
    yield from table(rows, right=(2,))
    yield ""


def _label(text: str) -> str:
    return text.ljust(_LABEL)


def _period(found: Trace, width: int) -> Iterator[str]:
    what = "simulated" if found.simulated else "measured"
    said = (
        f"{what} {us(found.run.period_us)} µs, predicted {us(found.predicted_us)} µs "
        f"({signed(found.error)})"
    )
    yield from paragraph(said, width, label=_label("period"))
    if found.replayed_us is not None:
        said = (
            f"{us(found.analysis.mean_us)} µs; {us(found.replayed_us)} µs if handing over "
            "between threads took no time"
        )
        yield from paragraph(said, width, label=_label("mean step"))


def _overlap(found: Trace, width: int) -> list[str]:
    overlap = found.analysis.overlap
    said = (
        f"{overlap.hidden:.0%} of host work is hidden behind a device; {overlap.of_device:.1%} of "
        "device time has a host thread busy beside it"
    )
    return paragraph(said, width, label=_label("overlap"))


def _idle(found: Trace, width: int) -> Iterator[str]:
    causes = [cause for cause in found.analysis.causes if cause.us >= _LEAST_US]
    if not causes:
        return
    yield ""
    yield "idle, by cause"
    shown, rest = causes[:_CAUSES], causes[_CAUSES:]
    wide = max(len(us(cause.us)) for cause in shown)
    for cause in shown:
        said = f"{cause.actor}, before {cause.op}: {found.why(cause)}"
        yield from paragraph(said, width, indent=2, label=f"{us(cause.us).rjust(wide)} µs  ")
    if rest:
        yield f"  {us(sum(cause.us for cause in rest)).rjust(wide)} µs  {len(rest)} more causes"


def _cycle(what: str, found: Cycle | None, width: int) -> Iterator[str]:
    if found is None or not found.repeats:
        most = "" if found is None else f"; the most common covers {found.share:.0%} of the time"
        said = f"no cycle repeats: what holds the run changes{most}"
        yield from paragraph(said, width, label=_label(what))
        return
    yield from path(f"{found}", width, label=_label(what))
    said = (
        f"{us(found.us)} µs in its ops, {us(found.late_us)} µs in hand-overs, over "
        f"{found.share:.0%} of the time"
    )
    yield from paragraph(said, width, label=_label(""))
