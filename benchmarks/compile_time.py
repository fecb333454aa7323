"""Milliseconds to compile and prove every shipped pipeline, in a given order and with the search;
and seconds, memory and periods for large graphs that are hard to plan.

The order search is cached by digest within a process, so each timing starts from an empty cache.

    python -m benchmarks.compile_time [--rounds 15]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter, process_time

from stepweave.configs.load import load_config, shipped
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.planner import compile as compiler
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify
from stepweave.serving.pipeline import step_graph
from stepweave.testing.large_graphs import chain, staged_chain, woven

from .paired import Spread, at_least_one, save


def timed(work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return (perf_counter() - started) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=at_least_one, default=15)
    names = [*shipped(), *(graph.name for graph in HARD)]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    table = {}
    print(f"{'pipeline':22} {'keep, ms':>26} {'search, ms':>28} {'verify, ms':>26}  waits")
    for name in shipped():
        config = load_config(name)
        if name not in given.only or not isinstance(config, PipelineConfig):
            continue
        graph = step_graph(config)
        keep, search, prove = [], [], []
        for _ in range(given.rounds):
            compiler.forget_orders()
            keep.append(timed(partial(compiler.compile_plan, graph, order="keep")))
            search.append(timed(partial(compiler.compile_plan, graph, order="search")))
            plan = compiler.compile_plan(graph, order="search")
            prove.append(timed(partial(verify, plan)))
        spreads = [Spread.of(keep), Spread.of(search), Spread.of(prove)]
        table[name] = {
            "keep_ms": vars(spreads[0]),
            "search_ms": vars(spreads[1]),
            "verify_ms": vars(spreads[2]),
            "waits": len(plan.waits),
            "requirements": plan.requirements,
        }
        print(f"{name:22} " + "   ".join(map(str, spreads)) + f"  {len(plan.waits)}")
    save("compile_time", {"pipelines": table, "large": large(given.only)}, given.json)


HARD = (
    chain(26),
    chain(60),
    staged_chain(12),
    staged_chain(24),
    woven(24),
    woven(60),
    woven(100),
    chain(200),
    staged_chain(200),
    woven(255),
    staged_chain(300),
    chain(400),
    woven(400),
    woven(400, reads=10),
    woven(400, states=4),
)


def large(names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Processor time and memory of one compilation each, in a process of its own."""
    table = {}
    print(f"\n{'graph':40} {'search, s':>9} {'MB':>5} {'period, µs':>11} {'as listed':>10}  waits")
    for graph in HARD:
        if graph.name not in names:
            continue
        with get_context("spawn").Pool(1) as fresh:
            found = fresh.apply(measured, (graph,))
        listed = compiler.compile_plan(graph, order="keep").period_us
        name = f"{graph.name}, {len(graph.vertices)} ops, {found['requirements']} requirements"
        table[name] = {**found, "listed_us": listed}
        print(
            f"{name:40} {found['search_s']:9.2f} {found['peak_mb']:5.0f} "
            f"{found['period_us']:11,.0f} {listed:10,.0f}  {found['waits']}"
        )
    return table


def measured(graph: StepGraph) -> dict[str, float]:
    started = process_time()
    plan = compiler.compile_plan(graph)
    spent = process_time() - started
    verify(plan)
    return {
        "search_s": spent,
        "peak_mb": getrusage(RUSAGE_SELF).ru_maxrss / 1024,
        "period_us": plan.period_us,
        "waits": len(plan.waits),
        "requirements": plan.requirements,
    }


if __name__ == "__main__":
    main()
