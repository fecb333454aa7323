"""Cost profiles of this GPU, for `--costs`: so that people without one can simulate plans for it.

The pipeline of the cube with everything on runs traced at several batch sizes; steps in which all
rows decode count. Each device op is a CUDA graph of its own here, where a run would replay several
as one: a time per op is what a plan needs, and the launch of a graph more per op is what it costs.
Host ops are timed in the same runs, with what they spend launching as far as it can be told from
waiting; `overhead_us` in the result is the time per step that the plan does not foretell.

    python -m benchmarks.gpu.profile [--models 8b 1b] [--rows 1 8 32] [--costs DIR] [--toy]
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from stepweave.cli.output import save
from stepweave.configs.costs import CostsFile, costs_text
from stepweave.configs.shipped_costs import SHIPPED
from stepweave.executors import captured_plan
from stepweave.graph.plan import Plan
from stepweave.graph.planner.segments import Segment, segments
from stepweave.serving.engine import Engine
from stepweave.timelines.profile import Spread, op_times, spreads, step_times
from stepweave.timelines.simulated import simulate

from ..paired import at_least_one
from . import steering
from .cube import TOKENS_PER_STEP, Cell, K, Workload
from .networks import DRAFTER, SIZES, TOY, TOY_DRAFTER, Size, random_model, served
from .session import Session, alternate, begin, machine
from .traces import MIXED, make
from .workbench import Noting, Pipeline, Served, engine, full_steps, replayed, serve, with_launches

CELL = Cell(2, True, True)


def alone(plan: Plan) -> tuple[Segment, ...]:
    """Segments of one device op each."""
    graph, found = plan.graph, []
    for segment in segments(plan):
        for name in segment.ops:
            op = graph.vertices[name].op
            read = {each.name for each in op.reads}
            touched = read | set(op.writes)
            found.append(
                Segment(
                    stream=segment.stream,
                    ops=(name,),
                    reads=frozenset(read - set(graph.states)),
                    writes=frozenset(set(op.writes) - set(graph.states)),
                    states=frozenset(touched & set(graph.states)),
                )
            )
    return tuple(found)


@contextmanager
def each_op_alone() -> Iterator[None]:
    """Capture each device op by itself, so that traces have its own time."""
    with patch.object(captured_plan, "segments", alone):
        yield


def device_name(session: Session) -> str:
    """`h200` of `NVIDIA H200`."""
    name = str(machine(session.device)["device"]).lower()
    return re.sub(r"[^a-z0-9]+", "_", name.removeprefix("nvidia")).strip("_")


def profile(session: Session, size: Size, small: Size) -> tuple[CostsFile, dict[str, Any]]:
    """One model at all batch sizes."""
    given = session.options
    networks = [random_model(each, session.device, session.dtype) for each in (size, small)]
    model, drafter = (served(each, compiled=given.compile) for each in networks)
    found: dict[int, tuple[dict[str, Spread], Spread]] = {}
    checks: dict[str, Any] = {}
    prompt = 24 if session.toy else given.prompt
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traces.safetensors"
        traces = make(
            ("choice",) if session.toy else MIXED,
            2 if session.toy else 16,
            size.vocab,
            K,
            TOKENS_PER_STEP,
        )
        traces.save(path)
        for rows in given.rows:
            work = Workload(rows, 4 * rows, prompt, traces, path, size.vocab)
            made = engine(
                Pipeline(CELL.depth, work.k, True, path),
                model,
                Noting(session.executor(graphs=True)),
                rows=rows,
                context=work.context,
                budget=max(2 * prompt, rows * (work.k + 1)),
                drafter=drafter,
            )
            for _ in range(1 if session.toy else 3):
                serve(made, work.requests(CELL))
            run = {"": partial(_traced, made, work)}
            runs = alternate(run, rounds=given.rounds, until=session.until(0.9))[""]
            ops: dict[str, list[float]] = defaultdict(list)
            periods: list[float] = []
            for one in runs:
                work.check(CELL, one)
                full = full_steps(one.report, rows)
                events = with_launches(made.plan, one.report.events)
                for op, times in op_times(events, full).items():
                    ops[op] += times
                periods += step_times(one.report.events, full)
            found[rows] = spreads(ops), Spread.of(periods)
            checks[str(rows)] = _checked(made.plan, *found[rows])
            checks[str(rows)]["graphs"] = replayed(made.executor)
            session.say(
                f"{size.name}, {rows} rows: {checks[str(rows)]['period_us']:.0f} µs per step, "
                f"predicted {checks[str(rows)]['predicted_us']:.0f}"
            )
    return costs_file(session, size, small, found), checks


def _traced(made: Engine, work: Workload) -> Served:
    return serve(made, work.requests(CELL), trace=True)


def _checked(plan: Plan, ops: dict[str, Spread], period: Spread) -> dict[str, Any]:
    costs = {op: ops[op].p50 if op in ops else 0.0 for op in plan.graph.vertices}
    predicted = simulate(plan, steps=200, costs=costs).period_us
    return {
        "period_us": period.p50,
        "predicted_us": predicted,
        "overhead_us": period.p50 - predicted,
        "samples": period.samples,
    }


def costs_file(
    session: Session,
    size: Size,
    small: Size,
    found: dict[int, tuple[dict[str, Spread], Spread]],
) -> CostsFile:
    about = machine(session.device)
    device = f"{about['device']} (a rehearsal: no measurement)" if session.toy else about["device"]
    ops = dict.fromkeys(op for each, _ in found.values() for op in each)
    layers = "layers compiled" if session.options.compile else "layers as they are"
    return CostsFile.model_validate(
        {
            "version": 1,
            "basis": "measured",
            "describes": f"{size.name}-shaped, random weights, {session.dtype}, on {device}",
            "device": about["device"],
            "executor": "cuda, depth 2, each device op a CUDA graph",
            "versions": {k: about[k] for k in ("python", "torch", "transformers", "xgrammar")},
            "date": date.today().isoformat(),
            "notes": [
                "decode steps with all rows busy; every row has a grammar and 3 drafts",
                f"acceptance synthetic, {TOKENS_PER_STEP} tokens a step; {layers}",
                f"drafter: {small.name}, {small.weight_bytes() / 1e9:.1f} GB a pass in bfloat16",
                "host ops with what they spend launching, but for a last one before a wait",
            ],
            "batch": max(found),
            "period_us": {str(rows): _point(period) for rows, (_, period) in found.items()},
            "ops": {
                op: {
                    "rows": {
                        str(rows): _point(each[op])
                        for rows, (each, _) in found.items()
                        if op in each
                    }
                }
                for op in ops
            },
        }
    )


def _point(one: Spread) -> dict[str, float]:
    p10, p50, p90, mean = (round(figure, 1) for figure in one[:4])
    return {"p50": p50, "p10": p10, "p90": p90, "mean": mean, "samples": one.samples}


def measure(session: Session) -> dict[str, Any]:
    given = session.options
    todo = [(TOY, TOY_DRAFTER)] if session.toy else [(SIZES[n], DRAFTER) for n in given.models]
    names = ["toy"] if session.toy else list(given.models)
    result: dict[str, Any] = {"files": [], "checks": {}}
    folder = given.costs or (Path(tempfile.gettempdir()) if session.toy else SHIPPED)
    for name, (size, small) in zip(names, todo, strict=True):
        if result["files"] and session.over:
            session.say(f"{size.name}: no time left")
            break
        with each_op_alone():
            file, result["checks"][size.name] = profile(session, size, small)
        path = folder / f"{device_name(session)}_{name}.yaml"
        save(path, costs_text(file, "Written by `python -m benchmarks.gpu.profile`."))
        result["files"].append(path.name)
        session.say(f"written to {path}")
        session.release()
        session.save(result)
    return result


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", choices=sorted(SIZES), default=["8b", "1b"])
    parser.add_argument("--rows", type=at_least_one, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=at_least_one, default=310)
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.add_argument("--costs", type=Path, help="folder for the profiles")
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="run layers as they are"
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    session = begin("profile", __doc__, argv, options, minutes=4)
    with steering.installed():
        return measure(session)


if __name__ == "__main__":
    main()
