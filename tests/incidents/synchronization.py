"""F: hidden or needless synchronization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch

from stepweave.graph.answers.delay import delayable
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.events import Precedence, plan_edges
from stepweave.graph.planner.period import period
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify, violations
from stepweave.policies.admission import Eager, JustInTime
from stepweave.requests.pacer import Pacer
from stepweave.testing import decode_step
from tests.graph.build import host, op, value
from tests.graph.pipelines import decode
from tests.incidents.incident import Derived, Incident, Mistake, Refusal, Told, strictly
from tests.incidents.reused_early import LOOP_WAITS


def picking(rows: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> StepGraph:
    """A device op that picks rows by a mask."""

    def fill(ctx: OpContext) -> None:
        ctx.write("logits", torch.arange(4.0))

    def sample(ctx: OpContext) -> None:
        logits = ctx.read("logits")
        ctx.write("sampled", rows(logits, logits > 1))

    return StepGraph.build(
        [
            Node("forward", device=(Op(writes=("logits",), run=fill),), stream="compute"),
            Node(
                "sample",
                device=(Op((Read("logits"),), ("sampled",), run=sample),),
                stream="compute",
            ),
        ],
        [Value("logits", "device"), Value("sampled", "device")],
        order="keep",
    )


def rows_are_picked_on_the_device() -> None:
    strictly(picking(lambda logits, mask: torch.where(mask, logits, -1.0)))


def boolean_mask() -> None:
    strictly(picking(lambda logits, mask: logits[mask]))


def to_the_host_and_back() -> None:
    strictly(picking(lambda logits, mask: logits + float(logits.sum().item())))


def period_with(plan: Plan, *more: Wait) -> float:
    """The period if the plan had these waits too."""
    waiting = replace(plan, waits=(*plan.waits, *more))
    assert violations(waiting) == [], "it is sound, only slow"
    edges = [Precedence(*edge) for edge in plan_edges(waiting)]
    return period(plan.graph, edges, plan.costs).us


def no_wait_without_a_reason() -> None:
    plan = compile_plan(decode_step(2))
    assert all(wait.protects for wait in plan.waits)
    for index in range(len(plan.waits)):
        assert violations(replace(plan, waits=plan.waits[:index] + plan.waits[index + 1 :]))


def the_whole_stream() -> Told:
    """`stream.synchronize()` before each schedule: the device idles while the host works."""
    plan = compile_plan(decode_step(2))
    coarse = period_with(plan, Wait("draft.device", "schedule.host", 1))
    assert coarse > 1.15 * plan.period_us
    return Told("the period", f"{plan.period_us:.0f} µs a step, {coarse:.0f} µs with the wait")


def ranks(carry: int = 1) -> StepGraph:
    """Two ranks; each may begin a step when the other has come as far."""
    return StepGraph.build(
        [
            host("rank0", op(f"done1@-{carry}" if carry else "done1", "done0", 100), actor="r0"),
            host("rank1", op("done0", "done1", 100), actor="r1"),
        ],
        [value("done0"), value("done1")],
        order="keep",
    )


def both_in_one_step() -> None:
    compile_plan(ranks(carry=0))


@dataclass
class Loop:
    """A decode loop at depth 2 under its own clock: schedule, launch, then wait for step i − 1."""

    pacer: Pacer
    now: float = 0.0
    free: float = 0.0  # when the device has done all it was given
    device_s: float = 4e-3
    host_s: float = 4e-4
    scheduled: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, steps: int) -> None:
        for step in range(steps):
            self.pacer.before_schedule(4 if step else 0)
            self.scheduled.append(self.now)
            self.now += self.host_s
            self.free = max(self.free, self.now) + self.device_s
            self.ended.append(self.free)
            if step:
                done = self.ended[step - 1]
                self.pacer.waited(max(0.0, done - self.now))
                self.now = max(self.now, done)

    def first_token_s(self, steps: int) -> float:
        """From a request's arrival to the end of the first step it is in, on average over time."""
        total = span = 0.0
        for step in range(steps - 20, steps):
            before, at = self.scheduled[step - 1], self.scheduled[step]
            total += (at - before) * (self.ended[step] - (before + at) / 2)
            span += at - before
        return total / span


def paced(make: Callable[[Loop], Pacer]) -> tuple[float, float]:
    """Time to the first token, and the period."""
    loop = Loop(Pacer(Eager()))
    loop.pacer = make(loop)
    loop.run(80)
    return loop.first_token_s(80), (loop.ended[-1] - loop.ended[-21]) / 20


def just_in_time(loop: Loop) -> Pacer:
    return Pacer(JustInTime(), clock=lambda: loop.now, sleep=loop.sleep)


def scheduled_as_late_as_is_safe() -> None:
    eager, period_s = paced(lambda loop: Pacer(Eager()))
    late, late_period_s = paced(just_in_time)
    assert late < 0.75 * eager
    assert late_period_s == pytest.approx(period_s, rel=0.02)
    plan = compile_plan(decode_step(2))
    verify(plan)
    assert delayable(plan, "schedule.host", "commit.host.advance")


def scheduled_at_once() -> Told:
    eager, _ = paced(lambda loop: Pacer(Eager()))
    late, _ = paced(just_in_time)
    return Told("the measurement", f"{eager / late:.2f} times as long to the first token")


INCIDENTS = [
    Incident(
        "F1",
        "vLLM #31336, #43107, #44800; TRT-LLM #10120, #7971",
        "boolean masks, pageable copies and `.cpu()` on the device path: the overlap was gone, and "
        "nobody noticed",
        "checking mode: whatever makes the host wait is an error that names the line, on a CPU too",
        safe=rows_are_picked_on_the_device,
        refusals=(
            Refusal(
                "a boolean mask (checking mode)",
                boolean_mask,
                "SW-HIDDEN-SYNC",
                ("sample.device", "boolean mask", "synchronization.py"),
            ),
            Refusal(
                "`.item()` (checking mode)",
                to_the_host_and_back,
                "SW-HIDDEN-SYNC",
                ("sample.device", "synchronization.py"),
            ),
        ),
    ),
    Incident(
        "F2",
        "SGLang #28218, #26646",
        "a wait for a whole stream serialized schedule and forward",
        "the fewest waits that order what must be, each with what it protects",
        Derived(lambda: decode(None), LOOP_WAITS),
        safe=no_wait_without_a_reason,
        refusals=(
            Refusal(
                "a wait for the whole stream: sound, so not refused, but never derived, and priced",
                the_whole_stream,
                "the period",
                ("µs a step",),
            ),
        ),
    ),
    Incident(
        "F3",
        "SGLang #31072",
        "an event was armed again for the next step: a deadlock across ranks",
        "a cycle of total distance ≤ 0 is refused when the plan is made, and printed",
        Derived(ranks, ("rank1.host → rank0.host +1", "rank0.host → rank1.host +0")),
        (
            Mistake(
                "each rank waits for the other in the same step",
                lambda plan: replace(
                    plan,
                    waits=tuple(replace(wait, distance=0) for wait in plan.waits),
                ),
                "SW-DEADLOCK",
                ("the plan waits for itself", "take away one of its waits"),
            ),
        ),
        refusals=(
            Refusal(
                "the same, declared",
                both_in_one_step,
                "SW-DEADLOCK",
                ("rank0.host", "rank1.host"),
            ),
        ),
        encoded_as_graph=True,
    ),
    Incident(
        "F4",
        "vLLM, since #29821",
        "time to the first token was 27 % longer in asynchronous mode",
        "`admission: just_in_time` schedules as late as the device can bear",
        safe=scheduled_as_late_as_is_safe,
        refusals=(
            Refusal(
                "scheduling at once: not refused, but measured",
                scheduled_at_once,
                "the measurement",
                ("times as long to the first token",),
            ),
        ),
    ),
]
