"""`stepweave simulate`: run a plan on a clock of our own, with costs, and say what it comes to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..configs.abstract import AbstractGraph
from ..configs.costs import Costs, assumed_costs, load_costs
from ..configs.errors import ConfigError, Mark
from ..views.timeline_lanes import timeline_lanes
from .output import check_writable, save
from .planned import costs_named
from .reporting import say
from .settings import in_stages, pairs, told_at
from .simulation import Simulation
from .wrapping import table

if TYPE_CHECKING:
    from .verbs import SimulateOptions

ALL = "all"  # in place of a costs file: a table over the shipped profiles


def simulate(asked: SimulateOptions) -> None:
    """Simulate a config and print it; beside it another way to run it, or all shipped profiles."""
    if asked.cluster is not None:
        from .simulate_cluster import simulate_cluster

        simulate_cluster(asked, asked.cluster)
        return
    _refuse_cluster_options(asked)
    settings = in_stages(asked.settings, asked.pp)
    form = _form(asked.output)
    if asked.costs == ALL:
        if asked.compare or asked.output is not None:
            raise ConfigError.at(Mark("--costs all"), "is a table: drop --compare and --output")
        _print_overview(asked, settings)
        return
    costs = costs_named(asked.costs, asked.rows)
    found = Simulation.of(asked, settings, costs)
    other = None
    if asked.compare:
        changes = pairs("--compare", asked.compare, "dotted.key=value")
        other = Simulation.of(asked, {**settings, **told_at("--compare", changes)}, costs)
        other = replace(other, name=f"{asked.config}, {', '.join(asked.compare)}")
    if asked.json:
        beside = {} if other is None else _beside(found, other)
        print(json.dumps({**found.to_json(), **beside}))
    else:
        print(_text(found), end="")
        if other is not None:
            print(f"\n{_text(other)}\n{_ratio(found, other)}", end="")
    if form is not None and asked.output is not None:
        save(asked.output, form(found))
        say(f"written to {asked.output}")


def _refuse_cluster_options(asked: SimulateOptions) -> None:
    """Raises `ConfigError` for options that are for a cluster, or where no config is named."""
    for name in ("layout", "goal", "limit", "trace"):
        if getattr(asked, name) is not None:
            raise ConfigError.at(Mark(f"--{name}"), "is for a cluster: add --cluster FILE")
    if not asked.config:
        said = "name a config, as in `stepweave simulate quickstart`, or a --cluster"
        raise ConfigError.at(Mark("simulate"), said)


def _beside(found: Simulation, other: Simulation) -> dict[str, Any]:
    ratio = other.step_us / found.step_us if found.period_us else None
    return {"compared": other.to_json(), "speed_ratio": ratio}


def _ratio(found: Simulation, other: Simulation) -> str:
    if not found.period_us:
        return ""
    here, there = found.step_us, other.step_us
    return (
        f"{there / here:.2f} times the speed of {other.name}: {here:,.0f} against "
        f"{there:,.0f} µs a step\n"
    )


def _text(found: Simulation) -> str:
    """Lanes of three steps in steady state, then the figures."""
    made, timeline = found.made, found.timeline
    cycle = made.plan.graph.cycle
    unit = "steps" if cycle == 1 else f"cycles of {cycle} steps"
    width = max(60, shutil.get_terminal_size((100, 24)).columns)
    steady = timeline.steady or range(timeline.steps)
    shown = range(steady.start, min(steady.start + 3, steady.stop))
    noise = f", jitter {found.asked.jitter:g}" if found.asked.jitter else ""
    rows = [
        ("period", f"{found.step_us:,.0f} µs a step (predicted {found.predicted_us / cycle:,.0f})"),
        ("host work", f"{found.busy_us('host') / cycle:,.0f} µs a step"),
        ("device work", f"{found.busy_us('device') / cycle:,.0f} µs a step"),
        *_device_gap(found),
        ("overlap", "–" if found.overlap is None else f"{found.overlap:.0%} of the host's work"),
        (
            "critical path",
            ", ".join(f"{op} {us:.0%}" for op, us in found.critical_path.items() if us >= 0.005)
            or "–",
        ),
    ]
    rows += [("modes", said) for said in _modes(found)]
    rows += [
        (
            each.name,
            f"{each.without_us / found.step_us:.2f}× the steps per second of a plan "
            f"{each.said} ({each.without_us:,.0f} µs a step, simulated)",
        )
        for each in found.gains
        if found.step_us
    ]
    if (tpot := found.tpot_us) is not None:
        rows.append(
            (
                "tokens",
                f"one in {tpot:,.0f} µs for each row, {found.tokens_per_second:,.0f} a second "
                f"for {found.rows} row{'s' * (found.rows != 1)}",
            )
        )
    notes = [note for note in made.plan.notes if note.startswith("costs: ")]
    return "\n".join(
        [
            f"{found.name}: {found.how}, {found.asked.step_count} {unit} simulated{noise}",
            *(
                line
                for note in notes or [f"costs: {made.plan.costs_from}"]
                for line in wrap(note, width, subsequent_indent="       ")
            ),
            "",
            timeline_lanes(timeline, shown, width=width),
            *(
                line
                for key, said in rows
                for line in wrap(f"{key:14} {said}", width, subsequent_indent=" " * 15)
            ),
            "",
        ]
    )


def _modes(found: Simulation) -> Iterator[str]:
    for word, us, predicted in found.words:
        yield f"{' '.join(word)}: {us:,.0f} µs a step (predicted {predicted:,.0f})"


def _device_gap(found: Simulation) -> Iterator[tuple[str, str]]:
    """Idle time of the busiest stream; the others stand idle by their nature."""
    timeline = found.timeline
    if timeline.streams:
        busiest = max(
            sorted(timeline.streams), key=lambda name: sum(span.us for span in timeline.on(name))
        )
        gap = found.device_gap_us[busiest] / found.made.plan.graph.cycle
        yield "device gap", f"{gap:,.0f} µs a step, on {busiest}"


# --- all assumed profiles -----------------------------------------------------------------------


def _print_overview(asked: SimulateOptions, settings: Mapping[str, str]) -> None:
    """One line per assumed profile: the serial loop, depth 1, and the config as it is."""
    found = [_overview(asked, settings, load_costs(each)) for each in assumed_costs()]
    if asked.json:
        print(json.dumps({"config": asked.config, "profiles": found}))
        return
    rows = [("profile", "rows", "serial µs", "depth 1 µs", "here µs", "speed-up", "bound by")]
    for line in found:
        serial, one = (line[key] for key in ("serial_us", "depth_1_us"))
        rows.append(
            (
                line["costs"],
                str(line["rows"]),
                f"{serial:,.0f}",
                "–" if one is None else f"{one:,.0f}",
                f"{line['period_us']:,.0f}",
                f"{line['speed_ratio']:.2f}",
                line["bound_by"],
            )
        )
    heading = "time per step with each assumed profile. ASSUMED costs, not measured ones."
    print(f"{asked.config}: {heading}")
    print("\n".join(table(rows, right=range(1, 6), indent=0)))
    print("serial: nothing overlaps. depth 1: one step at a time. here: the config unchanged.")
    print("speed-up: the time of serial divided by that of here.")


def _overview(asked: SimulateOptions, settings: Mapping[str, str], costs: Costs) -> dict[str, Any]:
    here = Simulation.of(asked, settings, costs)
    abstract = isinstance(here.made.loaded.config, AbstractGraph)
    at_once = {**settings, "depth": "1", "executor": "threads"}
    one = None if abstract else Simulation.of(asked, at_once, costs).step_us
    serial = (here.busy_us("host") + here.busy_us("device")) / here.made.plan.graph.cycle
    return {  # times of a step
        "costs": costs.name,
        "basis": costs.file.basis,
        "rows": here.rows,
        "serial_us": serial,
        "depth_1_us": one,
        "period_us": here.step_us,
        "speed_ratio": serial / here.step_us if here.step_us else 1.0,
        "bound_by": here.bound_by,
        "notes": list(here.made.times.notes) if here.made.times else [],
    }


# --- files --------------------------------------------------------------------------------------


def _svg(found: Simulation) -> str:
    from ..views.svg_lanes import lanes_svg

    return lanes_svg(found.made.plan)


def _trace_events(found: Simulation) -> str:
    from ..views.perfetto import perfetto

    return json.dumps(perfetto(found.made.plan, found.timeline, simulated=True))


def _page(found: Simulation) -> str:
    from ..timelines.analysis import analyse
    from ..timelines.critical import cycle
    from ..views.timeline_page import timeline_page
    from ..views.traced import Trace

    run = found.timeline
    trace = Trace(found.made.plan, run, analyse(run), cycle(run), executor="simulated")
    return timeline_page(trace, title=f"{found.name}, simulated")


_FORMS: Mapping[str, Callable[[Simulation], str]] = MappingProxyType(
    {".html": _page, ".json": _trace_events, ".svg": _svg, ".txt": _text}
)


def _form(path: Path | None) -> Callable[[Simulation], str] | None:
    """What a file of that ending holds. Raises `ConfigError` before anything is computed."""
    if path is None:
        return None
    if path.suffix not in _FORMS:
        raise ConfigError.at(
            Mark(f"--output {path}"), f"the ending must be one of {', '.join(_FORMS)}"
        )
    check_writable(path)
    return _FORMS[path.suffix]
