"""`stepweave check`: compile, prove, and print the verdict, or all of the proof."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from traceback import print_exception
from typing import TYPE_CHECKING, Any

from ..configs.abstract import AbstractGraph
from ..configs.errors import ConfigError
from ..graph.answers.folding import folded_waits
from ..graph.answers.leases import leases_in_words
from ..graph.answers.modes import mode_periods
from ..graph.errors import StepweaveError
from ..graph.plan import Edge, Plan
from ..views.mode_words import mode_words
from ..views.words import a_step
from .changed import Changed, changed
from .forms import in_words, periods
from .planned import Planned, costs_named, planned_with
from .reporting import debugging, say, short, status_of, told
from .settings import in_stages
from .wrapping import columns, paragraph, table, whole_items

if TYPE_CHECKING:
    from ..configs.schema import PipelineConfig
    from .verbs import CheckOptions


def check(asked: CheckOptions) -> int:
    """Check each config in order; the exit status is the worst of theirs."""
    status = 0
    settings, times = in_stages(asked.settings, asked.pp), costs_named(asked.costs, asked.rows)
    for place, name in enumerate(asked.configs):
        try:
            found = planned_with(name, settings, times, asked.rows)
        except StepweaveError as error:
            status = max(status, status_of(error))
            tell_failure(name, error, failure(error) if asked.json else None)
        else:
            if not asked.json and place:
                print()
            change = changed(found, times, asked.rows)
            if asked.json:
                print(json.dumps({**success(found.plan, change), **forms_json(found)}), flush=True)
            else:
                more = [("plans", in_words(found))] if periods(found) else []
                more += (("note", note) for note in _idle(found.loaded.config))
                print(_plan_text(name, found.plan, change, asked.proof, more), flush=True)
    return status


def _idle(config: PipelineConfig | AbstractGraph) -> list[str]:
    """What a pipeline has chosen though nothing in it uses it."""
    if isinstance(config, AbstractGraph):
        return []
    from ..nodes.idle import idle
    from ..policies.registry import DECISIONS

    return idle(config.nodes, {name: getattr(config.policies, name).kind for name in DECISIONS})


def success(plan: Plan, change: Changed | None = None) -> dict[str, Any]:
    """The object that `check --json` prints for a sound plan."""
    found = plan.to_json()
    costs = [note for note in plan.notes if note.startswith("costs: ")]
    return {
        "ok": True,
        "digest": plan.digest,
        **{key: found[key] for key in _PLAN_KEYS if key in found},
        **({"leases": found["leases"]} if "leases" in found else {}),
        **({"modes": asdict(modes)} if (modes := mode_periods(plan)) else {}),
        "errors": [],
        "costs_from": plan.costs_from,
        **({"costs": costs} if costs else {}),
        **({"changed": change.to_json()} if change else {}),
    }


def forms_json(found: Planned) -> dict[str, Any]:
    """The other plans of a pipeline that has some, with what is predicted of each."""
    forms = periods(found)
    return {"plans": forms} if forms else {}


def failure(error: StepweaveError) -> dict[str, Any]:
    """The same object, with the same keys, where there is no plan."""
    errors = (
        [problem.to_json() for problem in error.problems]
        if isinstance(error, ConfigError)
        else [error.to_json()]
    )
    return {
        "ok": False,
        "digest": None,
        "actors": {},
        "waits": [],
        "edges": [],
        "slots": {},
        "requirements": 0,
        "period_us": None,
        "critical_cycle": [],
        "errors": errors,
        "costs_from": None,
    }


_PLAN_KEYS = (
    "cycle",  # where nodes have rates
    "actors",
    "waits",
    "edges",
    "slots",
    "requirements",
    "period_us",
    "critical_cycle",
)


def tell_failure(name: str, error: StepweaveError, found: Mapping[str, Any] | None) -> None:
    """What is wrong with a config: for programs as the object `found`, else on stderr."""
    if found is not None:
        print(json.dumps(found), flush=True)
        return
    sys.stdout.flush()  # what was said before stands before it
    if debugging():
        print_exception(error)
    say(f"{short(name)}: FAILED [{error.code}]")
    for line in told(error):
        say(f"  {line}")


def _plan_text(
    name: str,
    plan: Plan,
    change: Changed | None,
    proof: bool,
    said: Sequence[tuple[str, str]] = (),
) -> str:
    width = columns()
    devices = sorted({vertex.actor for vertex in plan.graph.vertices.values() if vertex.launch})
    streams = f" (streams: {', '.join(devices)})" if devices else ""
    more = "" if proof else " (--proof prints them)"
    facts = [
        ("digest", plan.digest[:16]),
        ("ops", f"{len(plan.graph.vertices)} on {len(plan.actors)} actors{streams}"),
        ("requirements", f"{plan.requirements}, each with a witness{more}"),
        ("period", a_step(plan)),
        ("costs", plan.costs_from),
        ("critical cycle", _cycle(plan)),
        ("slots", _slots(plan)),
        *([("keys", "; ".join(keys))] if (keys := leases_in_words(plan)) else []),
        *(("modes", modes) for modes in _modes(plan)),
        *said,
        *(("note", note) for note in plan.notes),
    ]
    lines = [f"{name}: sound"]
    for label, text in facts:
        lines += paragraph(text, width, 2, f"{label:16}")
    lines += ["", f"waits ({len(plan.waits)})", *_waits(plan, width)]
    if change is not None:
        lines += ["", f"changed in the plan of {change.name}", *paragraph(change.words(), width, 2)]
    if proof:
        heads = ("hazard", "value", "before", "after", "dist", "by", "witness")
        rows = [heads, *_witness_rows(plan.edges)]
        lines += ["", "requirements and their witnesses", *table(rows)]
    return "\n".join(lines)


def _modes(plan: Plan) -> list[str]:
    found = mode_periods(plan)
    return [] if found is None else mode_words(found)


def _cycle(plan: Plan) -> str:
    steps = [f"{op} {_distance(distance)}→" for op, distance in plan.critical_cycle]
    first = plan.critical_cycle[0][0] if plan.critical_cycle else "none: no op takes time"
    return " ".join([*steps, first])


def _distance(distance: int) -> str:
    return f"({distance:+d} step{'s' if abs(distance) != 1 else ''}) " if distance else ""


def _slots(plan: Plan) -> str:
    slots = plan.declared_slots.items()
    counted = [f"{name} {count}" for name, count in slots if count is not None]
    fresh = [name for name, count in slots if count is None]
    shown = ", ".join(counted) or "none"
    return shown + (f"; fresh: {', '.join(fresh)}" if fresh else "")


def _waits(plan: Plan, width: int) -> list[str]:
    if not plan.waits:
        return ["  none: program order and launches imply every requirement"]
    lines = []
    for wait, waits in folded_waits(plan):
        later = f", {wait.distance} steps later" if wait.distance not in (0, 1) else ""
        later = ", one step later" if wait.distance == 1 else later
        often = f" ({len(waits)} times)" if len(waits) > 1 else ""
        lines.append(f"  {wait.target}{later} waits for {wait.source}{often}")
        said = [
            f"{p.hazard} {p.value}".strip() + f": {p.before} → {p.after}" for p in wait.protects
        ]
        lines += whole_items(said, width, 4)
    return lines


def _witness_rows(edges: Sequence[Edge]) -> list[tuple[str, ...]]:
    """A row for each pair of accesses; a state's pair has up to three hazards and one witness."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for edge in edges:
        path = " → ".join(f"{op}{f'@{total:+d}' if total else ''}" for op, total in edge.witness)
        distance = f"{edge.distance:+d}" if edge.distance else "0"
        realized = f"{edge.by} {edge.event}" if edge.event else edge.by
        row = (edge.value, edge.source, edge.target, distance, realized, path)
        rows.setdefault(row, []).append(edge.hazard)
    return [(" ".join(hazards), *row) for row, hazards in rows.items()]
