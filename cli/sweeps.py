"""`--sweep KEY=VALUES`: the period over the values of a cost, a slot count or a setting."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from ..configs.errors import ConfigError, Mark
from ..graph.answers.whatif import Point, bound_by, outcome, speedup
from ..graph.errors import StepweaveError
from ..graph.plan import Plan
from ..views.plot import Sample, Series, chart, plot_svg
from .change import Change, changed
from .cycle_letters import Letters
from .output import check_writable, save
from .planned import Planned
from .wrapping import columns, paragraph, table

if TYPE_CHECKING:
    from .graph import WhatIfOptions

MOST_VALUES = 200


@dataclass(frozen=True)
class Sweep:
    """A key and the values that it takes, one after another."""

    key: str
    values: tuple[str, ...]


def sweep(text: str) -> Sweep:
    """`KEY=A,B,C`, or `KEY=A:B:STEPS` for so many values from A to B, both included."""
    where = Mark(f"--sweep {text}")
    key, equals, written = text.partition("=")
    if not equals or not key.strip() or not written.strip():
        raise ConfigError.at(where, "write it as KEY=A,B,C or KEY=FROM:TO:STEPS")
    values = _spaced(where, written) if ":" in written else _listed(written)
    if not 1 <= len(values) <= MOST_VALUES or "" in values:
        raise ConfigError.at(where, f"needs 1 to {MOST_VALUES} values, none of them empty")
    return Sweep(key.strip(), tuple(dict.fromkeys(values)))


def _listed(written: str) -> list[str]:
    return [value.strip() for value in written.split(",")]


def _spaced(where: Mark, written: str) -> list[str]:
    parts = written.split(":")
    try:
        first, last, steps = float(parts[0]), float(parts[1]), int(parts[2])
    except (ValueError, IndexError):
        raise ConfigError.at(where, "a range is FROM:TO:STEPS, as 0.5:2:7") from None
    if len(parts) > 3 or not 2 <= steps <= MOST_VALUES:
        raise ConfigError.at(where, f"a range has 2 to {MOST_VALUES} steps")
    inner = (first + (last - first) * step / (steps - 1) for step in range(1, steps - 1))
    between = [f"{each:.0f}" if each.is_integer() else f"{each:.6g}" for each in inner]
    return [parts[0].strip(), *between, parts[1].strip()]


def _refuse_bare_names(plain: Planned, sweeps: Sequence[Sweep]) -> None:
    """A node, op or value is no setting: say what of it is to change."""
    graph = plain.plan.graph
    for each in sweeps:
        node = each.key in graph.vertices or each.key in {node.name for node in graph.nodes}
        if node or each.key in graph.values:
            meant = f"scale.{each.key}" if node else f"slots.{each.key}"
            raise ConfigError.at(Mark(f"--sweep {each.key}"), f"did you mean {meant!r}?")


def swept(asked: WhatIfOptions, plain: Planned, change: Change, sweeps: Sequence[Sweep]) -> None:
    """Print the plan of every value of the sweeps, and write them to a file if one is named."""
    output = asked.output
    if output is not None and output.suffix not in (".svg", ".csv", ".json"):
        raise ConfigError.at(Mark(str(output)), "a sweep is written as .svg, .csv or .json")
    if output is not None:
        check_writable(output)
    if len(sweeps) > 2:
        raise ConfigError.at(Mark("--sweep"), "at most two sweeps can be combined")
    if len(sweeps) == 2 and sweeps[0].key == sweeps[1].key:
        said = f"{sweeps[0].key} is swept already: give all its values in one --sweep"
        raise ConfigError.at(Mark(f"--sweep {sweeps[1].key}"), said)
    _refuse_bare_names(plain, sweeps)
    points = [
        _point(asked, plain, change, sweeps, values)
        for values in product(*(sweep.values for sweep in sweeps))
    ]
    found = {
        "config": asked.config,
        "before": outcome(plain.plan, plain.plan),
        "keys": [sweep.key for sweep in sweeps],
        "sweep": [point.to_json(plain.plan) for point in points],
    }
    if output is not None:
        save(output, _file(output.suffix, plain.plan, sweeps, points, found))
    if asked.json:
        print(json.dumps(found))
    else:
        print("\n".join(_sweep_lines(plain.plan, sweeps, points, columns())))


def _point(
    asked: WhatIfOptions,
    plain: Planned,
    change: Change,
    sweeps: Sequence[Sweep],
    values: tuple[str, ...],
) -> Point:
    """One value of each sweep. What the planner refuses is a result, a wrong name is an error."""
    for sweep, value in zip(sweeps, values, strict=True):
        change = change.with_(sweep.key, value)
    try:
        return Point(values, changed(asked, plain, change))
    except ConfigError:
        raise
    except StepweaveError as error:
        return Point(values, None, error.code)


def _sweep_lines(
    plain: Plan, sweeps: Sequence[Sweep], points: Sequence[Point], width: int
) -> list[str]:
    cycles = Letters()
    before = (
        f"{plain.step_us:,.6g} µs a step as configured (costs: {plain.costs_from}), "
        f"bound by {bound_by(plain)}"
    )
    lines = [*paragraph(before, width), ""]
    grid = _grid(sweeps, points, cycles) if len(sweeps) == 2 else []
    if grid and max(map(len, grid)) <= width:
        lines += [*paragraph(f"µs a step and what binds; across: {sweeps[1].key}", width), *grid]
    else:
        lines += _rows(plain, sweeps, points, cycles, width)
    lines += cycles.legend(width)
    if len(sweeps) > 1:
        return lines
    drawn = chart([_sample(point, cycles, point.values[0]) for point in points], width=width)
    return [*lines, "", *paragraph(f"µs a step over {sweeps[0].key}", width), *drawn]


def _rows(
    plain: Plan,
    sweeps: Sequence[Sweep],
    points: Sequence[Point],
    cycles: Letters,
    width: int,
) -> list[str]:
    """A row for each point: values, period, speed-up, waits, and what binds."""
    rows: list[tuple[str, ...]] = [
        (*(sweep.key for sweep in sweeps), "µs a step", "speed-up", "waits", "bound by")
    ]
    for point in points:
        if point.plan is None:
            rows.append((*point.values, "refused", "", "", point.refused))
            continue
        found = (
            f"{point.plan.step_us:,.6g}",
            f"{speedup(plain, point.plan):.3g}×",
            str(len(point.plan.waits)),
            f"{_sample(point, cycles, '').cycle} {bound_by(point.plan)}",
        )
        rows.append((*point.values, *found))
    return table(rows, width, right=range(len(rows[0]) - 1))


def _sample(point: Point, cycles: Letters, value: str) -> Sample:
    if point.plan is None:
        return Sample(value, None, "")
    letter = cycles.of(point.plan.critical_cycle, point.plan)
    return Sample(value, point.plan.step_us, letter, bound_by(point.plan))


def _grid(sweeps: Sequence[Sweep], points: Sequence[Point], cycles: Letters) -> list[str]:
    """Periods, a row for each value of the first sweep, a column for each of the second."""
    down, across = sweeps
    by_values = {point.values: point for point in points}
    rows = [(down.key, *across.values)]
    for value in down.values:
        cells = []
        for other in across.values:
            sample = _sample(by_values[value, other], cycles, value)
            us = sample.period_us
            cells.append("refused" if us is None else f"{us:,.6g} {sample.cycle}")
        rows.append((value, *cells))
    return table(rows, right=range(len(rows[0])))


def _file(
    suffix: str,
    plain: Plan,
    sweeps: Sequence[Sweep],
    points: Sequence[Point],
    found: Mapping[str, Any],
) -> str:
    if suffix == ".json":
        return json.dumps(found, indent=2) + "\n"
    if suffix == ".csv":
        return _csv(plain, sweeps, points)
    cycles = Letters()
    if len(sweeps) == 1:
        series = [Series(tuple(_sample(p, cycles, p.values[0]) for p in points))]
    else:
        series = [
            Series(
                tuple(_sample(p, cycles, p.values[0]) for p in points if p.values[1] == other),
                f"{sweeps[1].key} {other}",
            )
            for other in sweeps[1].values
        ]
    heading = f"{found['config']}: period over {sweeps[0].key}"
    return plot_svg(series, heading=heading, label=sweeps[0].key)


def _csv(plain: Plan, sweeps: Sequence[Sweep], points: Sequence[Point]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*(s.key for s in sweeps), "step_us", "speedup", "waits", "bound_by"])
    for point in points:
        if point.plan is None:
            writer.writerow([*point.values, "", "", "", point.refused])
            continue
        gain = f"{speedup(plain, point.plan):.6g}"
        row = (point.plan.step_us, gain, len(point.plan.waits), bound_by(point.plan))
        writer.writerow([*point.values, *row])
    return text.getvalue()
