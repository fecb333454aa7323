"""Milliseconds to compile and prove every shipped pipeline: in a given order, and with the search.

The order search is cached by digest within a process, so each timing starts from an empty cache.

    python -m benchmarks.compile_time [--rounds 15]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from stepweave.configs.load import load_config, shipped
from stepweave.configs.schema import PipelineConfig
from stepweave.graph import compile as compiler
from stepweave.graph.verify import verify
from stepweave.serving.pipeline import step_graph

from .paired import Spread, save


def timed(work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return (perf_counter() - started) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    table = {}
    print(f"{'pipeline':22} {'keep, ms':>26} {'search, ms':>28} {'verify, ms':>26}  waits")
    for name in shipped():
        config = load_config(name)
        if not isinstance(config, PipelineConfig):
            continue
        graph = step_graph(config)
        keep, search, prove = [], [], []
        for _ in range(given.rounds):
            compiler.forget_orders()
            keep.append(timed(lambda graph=graph: compiler.compile_plan(graph, order="keep")))
            search.append(timed(lambda graph=graph: compiler.compile_plan(graph, order="search")))
            plan = compiler.compile_plan(graph, order="search")
            prove.append(timed(lambda plan=plan: verify(plan)))
        spreads = [Spread.of(keep), Spread.of(search), Spread.of(prove)]
        table[name] = {
            "keep_ms": vars(spreads[0]),
            "search_ms": vars(spreads[1]),
            "verify_ms": vars(spreads[2]),
            "waits": len(plan.waits),
            "requirements": plan.requirements,
        }
        print(f"{name:22} " + "   ".join(map(str, spreads)) + f"  {len(plan.waits)}")
    save("compile_time", {"pipelines": table}, given.json)


if __name__ == "__main__":
    main()
