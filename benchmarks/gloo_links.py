"""What two processes on a CPU take for small all-reduces and messages, and what steps take that are
made of them, measured against what the simulation of clusters predicts from the links alone.

Two ranks with gloo. A tensor pair does layers with two all-reduces each. A pipeline of two stages
sends hidden states one way and tokens back, with K groups in flight. In place of computing, ranks
wait for a fixed time, as a host waits for its device: so the figures are of links and of order, and
not of how two processes share the cores of a busy machine. What a wait takes, what an all-reduce
takes behind one, and half of a message there and back, is measured in the same rounds. Each figure
is the shortest of all rounds: that in which least else ran.

    python -m benchmarks.gloo_links [--rounds 40]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from stepweave.clusters.links import Fabric
from stepweave.clusters.parts import AllReduceConfig, LinkConfig
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.configs.stages import for_stages
from stepweave.nodes.stage_ranks import model_ops
from stepweave.serving.pipeline import placed, step_graph

from .gloo_ranks import GROUPS, SIZES, TOKENS, Shape, rank_main
from .paired import at_least_one, save


def fitted(measured: Mapping[str, float]) -> LinkConfig:
    """A link with the latency of the smallest size and the bandwidth between it and the largest."""
    small, large = SIZES[0], SIZES[-1]

    def fit(what: str) -> tuple[float, float]:
        low, high = measured[f"{what} {small}"], measured[f"{what} {large}"]
        return low, max((large - small) / max(high - low, 1e-3) / 1e3, 1e-6)

    latency, gb_s = fit("all_reduce")
    message, message_gb_s = fit("message")
    return LinkConfig(
        describes="two processes with gloo",
        gb_s=message_gb_s,
        latency_us=message,
        all_reduce={"gloo": AllReduceConfig(latency_us=latency, gb_s=gb_s)},
    )


def predicted(measured: Mapping[str, float], shape: Shape) -> dict[str, float]:
    """µs a step, from the link and from computing alone."""
    fabric = Fabric(fitted(measured), None, 2, "gloo")
    reduce_us = fabric.all_reduce_us(range(2), shape.message)
    found = {"pair": 2 * shape.layers * (measured["product"] + reduce_us)}
    message_us = fabric.message_us(0, 1, shape.message)
    back_us = fabric.message_us(1, 0, TOKENS * 4)
    for groups in GROUPS:
        found[f"pipeline {groups}"] = _period(measured["stage"], message_us, back_us, groups)
    return found


def _period(stage_us: float, message_us: float, back_us: float, groups: int) -> float:
    """Of the plan of two such stages, in which only computing and messages take time."""
    config = load_config("async", for_stages(2, {"depth": groups}) | {"depth": groups})
    assert isinstance(config, PipelineConfig), "`async` is a pipeline"
    graph = step_graph(config)
    costs = dict.fromkeys(graph.vertices, 0.0) | dict.fromkeys(model_ops(graph), stage_us)
    for rank in (0, 1):
        costs[f"send0@{rank}.device.leave"] = message_us
        costs[f"tell@{rank}.device.leave"] = back_us
    return placed(config, graph, costs).period_us


def measure(shape: Shape, rounds: int) -> list[dict[str, float]]:
    """The rounds of both ranks, as rank 0 saw them."""
    from multiprocessing import get_context

    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answer = context.SimpleQueue()
        store = str(Path(folder) / "store")
        ranks = [
            context.Process(target=rank_main, args=(rank, store, shape, rounds, answer))
            for rank in (0, 1)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise SystemExit("a rank failed; its error stands above")
        found: list[dict[str, float]] = answer.get()
    return found


def shortest(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each figure over the rounds; of all-reduces without the wait before them."""
    found = {key: min(each[key] for each in rounds) for key in rounds[0]}
    for size in SIZES:
        found[f"all_reduce {size}"] = max(0.0, found[f"all_reduce {size}"] - found["product"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=at_least_one, default=40)
    parser.add_argument("--layers", type=at_least_one, default=Shape.layers)
    parser.add_argument("--hidden", type=at_least_one, default=Shape.hidden)
    parser.add_argument("--steps", type=at_least_one, default=Shape.steps)
    parser.add_argument("--product-us", type=float, default=Shape.product_us)
    parser.add_argument("--stage-us", type=float, default=Shape.stage_us)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    shape = Shape(given.layers, given.hidden, given.steps, given.product_us, given.stage_us)
    found = shortest(measure(shape, given.rounds))
    said = predicted(found, shape)
    print(f"{'µs':16} {'measured':>10}")
    for key, us in found.items():
        beside = f"  predicted {said[key]:9,.0f}, {said[key] / us:.2f} of it" if key in said else ""
        print(f"{key:16} {us:10,.0f}{beside}")
    table = {"shape": vars(shape), "rounds": given.rounds, "measured_us": found}
    save("gloo_links", {**table, "predicted_us": said}, given.json)


if __name__ == "__main__":
    main()
