"""What the interpreter costs per step on CUDA streams, and what the derived waits save.

The eight-node decode step of `benchmarks.interpreter`, whose device ops launch a few small kernels
(or none). Three ways to run it: by the plan; by a hand-written loop with the same two streams, the
same launches and the same two waits; by the same plan with a wait for *every* requirement between
two actors, which is what one writes who derives nothing. Host bodies do nothing, so the time per
step is what the calls take. The loop is not told of failures, cannot be stopped or watched, and
keeps nothing alive.

    python -m benchmarks.gpu.interpreter [--steps 500] [--kernels 0 4] [--toy]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from stepweave.executors import run
from stepweave.graph.plan import Plan, Wait

from ..interpreter import decode_step
from ..paired import at_least_one
from .session import Session, alternate, begin, ratios, spread

Body = Callable[..., int]


class Bodies:
    """What ops do: on the device a few kernels, on the host nothing."""

    def __init__(self, session: Session, kernels: int) -> None:
        self._kernels = kernels
        self._numbers = torch.zeros(1024, device=session.device)

    def __call__(self, *inputs: int) -> int:
        for _ in range(self._kernels):
            self._numbers.add_(1.0)
        return 0


def with_host_idle(plan: Plan) -> Plan:
    """Only device ops launch kernels."""
    nodes = tuple(
        replace(
            node,
            host=tuple(
                op if op.run is None else replace(op, run=_writer(op.writes)) for op in node.host
            ),
        )
        for node in plan.graph.nodes
    )
    return replace(plan, graph=replace(plan.graph, nodes=nodes))


def _writer(names: Sequence[str]) -> Callable[[Any], None]:
    def write(context: Any) -> None:
        for name in names:
            context.write(name, 0)

    return write


def every_edge(plan: Plan) -> Plan:
    """The same plan, in which each requirement between two actors has a wait of its own.

    What a device op needs of a host op is met by launching it after that: no wait is needed where
    the same thread launches it.
    """
    vertices = plan.graph.vertices
    waits: dict[Wait, None] = {}
    for edge in plan.edges:
        source, target = vertices[edge.source], vertices[edge.target]
        if source.side == "host" and target.launch is not None:
            target = vertices[target.launch]
        if source.actor != target.actor:
            waits[Wait(edge.source, target.name, edge.distance)] = None
    return replace(plan, waits=tuple(waits))


class Streams:
    """Two streams and their events, by hand; nothing of the kind in a rehearsal."""

    def __init__(self, session: Session) -> None:
        self.toy = session.toy
        made: Any = torch.cuda
        self.compute: Any = None if self.toy else made.Stream()
        self.copy: Any = None if self.toy else made.Stream()

    def on(self, stream: Any) -> Any:
        return nullcontext() if self.toy else torch.cuda.stream(stream)

    def record(self, stream: Any) -> Any:
        if self.toy:
            return None
        made: Any = torch.cuda.Event
        event = made(blocking=True)
        event.record(stream)
        return event


def by_hand(session: Session, body: Body, steps: int) -> None:
    """The same launches and the same two waits, as one loop of one thread."""
    streams = Streams(session)
    copied: list[Any] = [None, None]
    for step in range(steps + 1):
        if step < steps:
            with streams.on(streams.compute):
                body()  # prepare
            with streams.on(streams.compute):
                body()  # forward
            with streams.on(streams.compute):
                body()  # sample
            with streams.on(streams.compute):
                body()  # draft
            drafted = streams.record(streams.compute)
            if drafted is not None:
                streams.copy.wait_event(drafted)
            with streams.on(streams.copy):
                body()  # d2h_copy
            copied[step % 2] = streams.record(streams.copy)
        if step and (event := copied[(step - 1) % 2]) is not None:
            event.synchronize()  # commit
    session.synchronize()


def measure(session: Session) -> dict[str, Any]:
    given = session.options
    found: dict[str, Any] = {"parts": {}}
    for number, kernels in enumerate(given.kernels):
        body = Bodies(session, kernels)
        plan = with_host_idle(decode_step(body))
        naive = every_edge(plan)
        executor = session.executor(graphs=False)
        steps = given.steps

        def timed(work: Callable[[], object]) -> float:
            session.synchronize()
            began = perf_counter()
            work()
            session.synchronize()
            return perf_counter() - began

        def running(plan: Plan, steps: int, executor: Any = executor) -> Callable[[], float]:
            return partial(timed, partial(run, plan, executor=executor, steps=steps))

        sides: dict[str, Callable[[], float]] = {
            "by hand": partial(timed, partial(by_hand, session, body, steps)),
            "plan": running(plan, steps),
            "every edge": running(naive, steps),
            "plan, no steps": running(plan, 0),
            "every edge, no steps": running(naive, 0),
        }
        for side in sides.values():
            side()
        until = session.until((number + 1) / len(given.kernels))
        runs = alternate(sides, rounds=given.rounds, until=until)
        us = {
            "by hand": [each / steps * 1e6 for each in runs["by hand"]],
            **{
                name: [
                    (each - once) / steps * 1e6
                    for each, once in zip(runs[name], runs[f"{name}, no steps"], strict=True)
                ]
                for name in ("plan", "every edge")
            },
        }
        extra = [a - b for a, b in zip(us["plan"], us["by hand"], strict=True)]
        saved = [a - b for a, b in zip(us["every edge"], us["plan"], strict=True)]
        found["parts"][str(kernels)] = part = {
            "kernels_per_op": kernels,
            "waits": {"plan": len(plan.waits), "every edge": len(naive.waits)},
            "us_per_step": {name: spread(each) for name, each in us.items()},
            "plan_over_hand": ratios(us["plan"], us["by hand"]),
            "plan_minus_hand_us": spread(extra),
            "saved_by_the_plan_us": spread(saved),
            "setup_us": spread([each * 1e6 for each in runs["plan, no steps"]]),
            "rounds": len(extra),
        }
        session.say(
            f"{kernels} kernels per device op: by hand "
            f"{part['us_per_step']['by hand']['median']:.1f} µs per step, the plan "
            f"{part['us_per_step']['plan']['median']:.1f} with {len(plan.waits)} waits, every edge "
            f"{part['us_per_step']['every edge']['median']:.1f} with {len(naive.waits)}; the plan "
            f"saves {part['saved_by_the_plan_us']['median']:.1f}"
        )
        session.save(found)
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=at_least_one, default=500)
    parser.add_argument("--kernels", type=int, nargs="+", default=[0, 4])
    parser.add_argument("--rounds", type=at_least_one, default=21)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    return measure(begin("interpreter", __doc__, argv, options, minutes=2))


if __name__ == "__main__":
    main()
