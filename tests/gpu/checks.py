"""What is asked of a GPU, as functions of device and executor: rehearsed where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from stepweave import LLM
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.executors.report import OpEvent, RunReport
from stepweave.executors.run import Executor
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.step_graph import StepGraph, Vertex
from stepweave.nodes.ops import transfer
from tests.device.pipelines import (
    DRAFTERS,
    Told,
    generated,
    llm_on,
    prompts,
    requests,
    served,
    tiny_on,
)
from tests.device.replays import compared, in_turn, why_too_little

Around = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Surrounded:
    """An executor: another one, with something around the body of each device op, by its name."""

    executor: Executor
    around: Around

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        return self.executor(replace(plan, graph=plan.graph.with_ops(self._within)), given)

    def _within(self, vertex: Vertex) -> Op:
        if vertex.side == "host":
            return vertex.op

        def run(context: OpContext) -> None:
            with self.around(vertex.name):
                if vertex.op.run is not None:
                    vertex.op.run(context)

        return replace(vertex.op, run=run)


def held_up(op: str, wait: Callable[[], None]) -> Around:
    """The stream spins before the kernels of `op`: whoever does not wait comes too early."""

    @contextmanager
    def around(name: str) -> Iterator[None]:
        if name == op:
            wait()
        yield

    return around


def pipeline(name: str, **changes: object) -> PipelineConfig:
    """A shipped pipeline with changes; on a GPU's own kernels unless they say `invariant`."""
    config = load_config(name)
    assert isinstance(config, PipelineConfig)
    model = config.model.model_copy(update={"invariant": changes.pop("invariant", False)})
    return config.model_copy(update={"model": model, **changes})


class Shipped:
    """A pipeline, loaded once, under one executor after another: each finds empty caches."""

    def __init__(self, device: torch.device, config: PipelineConfig) -> None:
        self.llm = llm_on(device, config, "serial")

    def tokens(self, executor: Executor | str) -> Told:
        """Tokens, text, drafted and accepted counts of each request.

        Log-probabilities are left out: when a grammar is compiled decides which rows a step has,
        and so their last bits.
        """
        engine = self.llm.engine
        engine.reset()
        self.llm.service.renew()
        engine.executor = executor
        told = generated(self.llm)
        assert [each[0] for each in told] == [None] * len(told), told
        return [each[:5] for each in told]


def tiny_tokens(
    device: torch.device, drafter: str, depth: int, executor: Executor | str, **changes: Any
) -> Told:
    """The same of the small random model: everything that a request can ask for."""
    structured = list(DRAFTERS).index(drafter) % 2 == 1
    config = replace(
        DRAFTERS[drafter], depth=depth, structured=structured, dtype=torch.float32, **changes
    )
    told = served(tiny_on(device, config, executor), requests(structured))
    assert [each[3] for each in told] == [None] * len(told), told
    return told


def device_ops(config: PipelineConfig) -> Sequence[str]:
    """The device ops of a pipeline, by name."""
    from stepweave.serving.pipeline import compiled

    vertices = compiled(config).graph.vertices.values()
    return [vertex.name for vertex in vertices if vertex.side == "device"]


def traced(device: torch.device, config: PipelineConfig, executor: Executor | str) -> list[OpEvent]:
    """What ran when; the first run, which loads kernels, is not looked at."""
    llm: LLM = llm_on(device, config, executor)
    llm.generate(prompts(config))
    return list(llm.traced(prompts(config, most=60)).report.events)


def replayed_as_usual(llm: LLM, usual: Executor) -> None:
    """What its executor captures comes to what `usual`, which captures nothing, makes of it.

    Plans take turns. What prompts have in common is computed once; from then on steps repeat.
    """
    engine, lines = llm.engine, prompts(llm.config, most=24)
    engine.steer = in_turn
    llm.warm_up()
    found = [compared(llm.config, llm.generate(lines)) for _ in range(4)]
    captures = engine.captures
    assert captures is not None
    too_little = why_too_little(llm.config, captures)
    assert too_little is None, too_little
    assert engine.turned if llm.config.plans else not engine.turned
    engine.executor = usual
    assert [compared(llm.config, llm.generate(lines)) for _ in range(2)] == found[2:] == found[:2]


def beside(events: Sequence[OpEvent], op: str, other: str) -> tuple[int, int]:
    """In how many steps `op` of step i and `other` of i + 1 went on at once, of how many."""
    spans = {(event.op, event.step): event for event in events}
    pairs = [
        (event, spans[other, event.step + 1])
        for event in events
        if event.op == op and (other, event.step + 1) in spans
    ]
    both = sum(a.start_s < b.end_s and b.start_s < a.end_s for a, b in pairs)
    return both, len(pairs)


def handed_over(device: torch.device, slow: Callable[[], None]) -> StepGraph:
    """One stream writes, another copies to the host after a while, a host op reads: `read`."""

    def make(ctx: OpContext) -> None:
        ctx.write("made", torch.full((1 << 16,), ctx.step, dtype=torch.int64, device=device))

    def copy(ctx: OpContext) -> None:
        slow()
        buffer = ctx.buffer("copied")
        buffer.copy_(ctx.read("made")[:8], non_blocking=True)
        ctx.write("copied", buffer)

    def read(ctx: OpContext) -> None:
        ctx.write("read", ctx.read("copied").tolist())

    def pinned() -> torch.Tensor:
        return transfer.pinned(8, fill=-1, device=device)

    return StepGraph.build(
        [
            Node("make", (Op(),), (Op(writes=("made",), run=make),), stream="compute"),
            Node("copy", (Op(),), (Op((Read("made"),), ("copied",), run=copy),), stream="copy"),
            Node("read", (Op((Read("copied"),), ("read",), run=read),)),
        ],
        [
            Value("made", "device", "slots"),
            Value("copied", "pinned", "slots", allocate=pinned),
            Value("read"),
        ],
    )
