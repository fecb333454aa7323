"""The period of a model in two stages with K = 1, 2 and 3 steps in flight, against its plan's.

Two ranks with gloo run the real engine on a tiny model. In place of computing more, each stage
waits for a fixed time after its pass, as a host waits for its device: so the figures are of the
order of things, and not of how two processes share the cores of a busy machine. What each op takes
is noted in a traced run with K = 1; the plans of all ranks together, with these costs, predict each
period. A period is the time of a run by its steps; the figure is the shortest of all rounds.

    python -m benchmarks.stages [--rounds 2] [--wait-ms 200] [--tokens 16]
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from statistics import median
from time import perf_counter, sleep
from typing import Any

import torch

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.configs.stages import for_stages
from stepweave.policies.chosen import Policies
from stepweave.policies.scheduling import Groups
from stepweave.requests.params import SamplingParams
from stepweave.serving.engine import Engine
from stepweave.serving.pipeline import compiled
from stepweave.testing.engines import TinyConfig, tiny_engine, tiny_requests

from .paired import at_least_one, save

STAGES = 2
ROWS = 6
GROUPS = (1, 2, 3)
LOOK_S = 1.0
"""How often whoever waits for the ranks looks whether one has failed."""


@dataclass(frozen=True)
class Load:
    """What each run is asked: rounds of it, tokens of each request, the wait of a stage."""

    rounds: int
    tokens: int
    wait_ms: float


@dataclass(frozen=True)
class Ranks:
    """What the links need of a group; there is no supervision here."""

    rank: int
    size: int

    def check(self) -> None:
        return None

    def meeting(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()


def rank_main(rank: int, store: str, load: Load, answer: Any) -> None:
    """One of the two processes; each puts its rank, its op times and its periods into `answer`."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    from stepweave.distributed.communicators import Communicators
    from stepweave.distributed.stage_links import StageLinks

    torch.set_num_threads(1)
    shared: Any = FileStore(store, STAGES)
    dist.init_process_group("gloo", store=shared, rank=rank, world_size=STAGES)
    links = StageLinks(Ranks(rank, STAGES), Communicators())
    took: dict[str, float] = {}
    periods: dict[int, list[float]] = {groups: [] for groups in GROUPS}
    for groups in GROUPS:
        engine = tiny_engine(
            TinyConfig(
                depth=groups,
                executor="threads",
                max_rows=ROWS,
                token_budget=128,
                dtype=torch.float32,
                policies=Policies(scheduling=Groups(groups=groups)),
            ),
            links=links,
        )
        _wait_after_each_pass(engine, load.wait_ms)
        if groups == 1:
            took = _traced(engine, load)
        for _ in range(load.rounds):
            periods[groups].append(_period_us(engine, load))
    answer.put((rank, took, periods))
    dist.barrier()
    dist.destroy_process_group()


def _wait_after_each_pass(engine: Engine, wait_ms: float) -> None:
    own = engine.model.forward

    def forward(*args: Any, **named: Any) -> Any:
        result = own(*args, **named)
        sleep(wait_ms / 1e3)
        return result

    engine.model.forward = forward  # type: ignore[method-assign]


def _submitted(engine: Engine, load: Load) -> Any:
    asked = SamplingParams(max_tokens=load.tokens, ignore_eos=True)
    table = engine.new_table()
    table.submit_all(tiny_requests([asked] * ROWS, longest=4))
    return table


def _period_us(engine: Engine, load: Load) -> float:
    table = _submitted(engine, load)
    began = perf_counter()
    engine.run(table)
    steps: int = table.steps
    return (perf_counter() - began) / steps * 1e6


def _traced(engine: Engine, load: Load) -> dict[str, float]:
    """The median of what each op takes, in µs."""
    report = engine.run(_submitted(engine, load), trace=True)
    found: defaultdict[str, list[float]] = defaultdict(list)
    for event in report.events:
        found[event.op].append(event.end_us - event.start_us)
    return {op: median(each) for op, each in found.items()}


def costs_of(took: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Costs of the graph of all ranks, of what was noted on each.

    Of a message the sender's time counts: with one step in flight whoever receives waits already,
    so the receiver's time is mostly that of the stage before.
    """
    found: dict[str, float] = {}
    for rank, ops in took.items():
        for op, us in ops.items():
            node, _, rest = op.partition(".")
            found[f"{node}@{rank}.{rest}"] = us
    for message, sender in (("send0", 0), ("tell", max(took))):
        us = took[sender][f"{message}.device.leave"]
        found |= {f"{message}@{rank}.device.leave": us for rank in took}
    return found


def predicted_us(groups: int, costs: Mapping[str, float]) -> float:
    """The period of the plan of all ranks with these costs."""
    said = for_stages(STAGES, {"depth": groups}) | {"depth": groups}
    config = load_config("base", said)
    assert isinstance(config, PipelineConfig)
    return compiled(config.model_copy(update={"costs": dict(costs)})).period_us


def measured(load: Load) -> dict[str, Any]:
    """What both ranks came to, and what their plans predict."""
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answer = context.Queue()
        store = str(Path(folder) / "store")
        ranks = [
            context.Process(target=rank_main, args=(rank, store, load, answer))
            for rank in range(STAGES)
        ]
        for each in ranks:
            each.start()
        answers = list(_answers(answer, ranks))
        for each in ranks:
            each.join()
    took = {rank: ops for rank, ops, _ in answers}
    periods = next(each for rank, _, each in answers if rank == 0)
    costs = costs_of(took)
    found: dict[str, Any] = {"wait_ms": load.wait_ms, "stages": STAGES, "rows": ROWS}
    for groups in GROUPS:
        period, predicted = min(periods[groups]), predicted_us(groups, costs)
        found[f"K = {groups}"] = {
            "period_us": period,
            "predicted_us": predicted,
            "ratio": period / predicted,
        }
    found["K = 1 over K = 2"] = min(periods[1]) / min(periods[2])
    return found


def _answers(answer: Any, ranks: Sequence[Any]) -> Iterator[Any]:
    """What the ranks came to. Raises `RuntimeError` where one of them has failed."""
    for _ in ranks:
        while True:
            try:
                yield answer.get(timeout=LOOK_S)
                break
            except Empty:
                failed = [each.exitcode for each in ranks if each.exitcode]
            if failed:
                for each in ranks:
                    each.kill()
                raise RuntimeError(f"a rank has ended with status {failed[0]}: see what it said")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="The period of a model in two stages.")
    parser.add_argument("--rounds", type=at_least_one, default=2)
    parser.add_argument("--tokens", type=at_least_one, default=16)
    parser.add_argument("--wait-ms", type=float, default=200.0)
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()
    found = measured(Load(asked.rounds, asked.tokens, asked.wait_ms))
    for groups in GROUPS:
        each = found[f"K = {groups}"]
        print(
            f"K = {groups}: {each['period_us'] / 1e3:.1f} ms a step, predicted "
            f"{each['predicted_us'] / 1e3:.1f}: {each['ratio']:.2f}"
        )
    print(f"K = 1 over K = 2: {found['K = 1 over K = 2']:.2f}")
    save("stages", found, asked.json)


if __name__ == "__main__":
    main()
