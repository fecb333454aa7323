"""Just-in-time schedules: on a pipeline with a clock of its own, then on plans and on threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from stepweave.executors import run
from stepweave.graph.answers.delay import delayable
from stepweave.graph.declare import op, step_graph, value
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.parameters import context, read
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.nodes.kind import NodeKind
from stepweave.nodes.node_config import NodeConfig
from stepweave.policies.admission import Eager, JustInTime, latest_start
from stepweave.policies.registry import policy
from stepweave.requests.pacer import Pacer
from stepweave.requests.table import RequestTable
from stepweave.testing import decode_step
from stepweave.timelines.simulated import Turn, simulate
from tests.requests.memory_model import limits

US = 1e-6
COPY = 40 * US
Costs = Callable[[int], float]


@dataclass
class Clock:
    """Time that passes only when somebody sleeps or works."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)
    late: float = 0.0  # how much longer than asked a sleep takes

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.late

    def pacer(self, **options: float) -> Pacer:
        return Pacer(
            policy("admission", "just_in_time", **options), clock=self.read, sleep=self.sleep
        )


@dataclass
class Pipeline:
    """A decode loop at depth 2, written out: launch step i, wait for i − 1, settle it, mask i.

    `launch`, `settle`, `forward` and `sample` give the seconds that each takes in a step.
    """

    clock: Clock
    pacer: Pacer
    launch: Costs
    settle: Costs
    forward: Costs
    sample: Costs
    tokens: Callable[[int], int] = lambda step: 1
    step: int = 0
    free: float = 0.0  # when the device has ended what it was given
    done: float = 0.0  # when the step before is on the host
    seen: list[float] = field(default_factory=list)  # when each step was scheduled
    settled: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)  # of the device, per step
    waits: list[float] = field(default_factory=list)

    def go(self, steps: int) -> Pipeline:
        for _ in range(steps):
            self._one()
        return self

    def _one(self) -> None:
        clock, step = self.clock, self.step
        self.pacer.before_schedule(in_flight=self.tokens(step - 1) if step else 0)
        self.seen.append(clock.now)
        clock.now += self.launch(step)
        idle = max(0.0, clock.now - self.free)
        ended = max(self.free, clock.now) + self.forward(step)
        wait = max(0.0, self.done - clock.now)
        clock.now += wait
        self.pacer.waited(wait)
        self.waits.append(wait)
        clock.now += self.settle(step)
        if step:
            self.settled.append(clock.now)
        idle += max(0.0, clock.now - ended)
        self.free = max(ended, clock.now) + self.sample(step)
        self.done = self.free + COPY
        self.idle.append(idle)
        self.step += 1

    def idle_per_step(self, last: int) -> float:
        return sum(self.idle[-last:]) / last

    def period(self, last: int) -> float:
        return (self.seen[-1] - self.seen[-1 - last]) / last

    def first_token_s(self, last: int) -> float:
        """Mean time to first token of a request that arrives at any time of the last steps."""
        total = weight = 0.0
        for step in range(self.step - 1 - last, self.step - 1):
            gap = self.seen[step] - self.seen[step - 1]
            total += gap * (self.settled[step] - self.seen[step] + gap / 2)
            weight += gap
        return total / weight


def steady(us: float) -> Costs:
    return lambda step: us * US


def jittered(us: float, share: float, seed: int) -> Costs:
    random = Random(seed)
    return lambda step: us * US * (1 + random.uniform(-share, share))


def pipeline(
    pacer: Pacer,
    clock: Clock,
    *,
    launch: Costs | None = None,
    settle: Costs | None = None,
    forward: Costs | None = None,
    sample: Costs | None = None,
    tokens: Callable[[int], int] = lambda step: 1,
) -> Pipeline:
    """The device takes 5,000 µs a step, the host 1,500: so 3,540 µs of slack with the copy."""
    return Pipeline(
        clock,
        pacer,
        launch or steady(600),
        settle or steady(900),
        forward or steady(4000),
        sample or steady(1000),
        tokens,
    )


SLACK = 3540 * US
PERIOD = 5000 * US
MARGIN = 150 * US


def eager(*, forward: Costs | None = None, settle: Costs | None = None) -> Pipeline:
    return pipeline(Pacer(Eager()), Clock(), forward=forward, settle=settle)


# --- in steady state ---


def test_the_delay_converges_to_the_slack_less_a_margin() -> None:
    clock = Clock()
    paced = pipeline(clock.pacer(), clock).go(100)
    assert SLACK - MARGIN <= clock.slept[-1] <= SLACK - MARGIN + 0.01 * PERIOD
    assert 0.5 * MARGIN < paced.waits[-1] <= MARGIN
    assert clock.slept[-20:] == pytest.approx([clock.slept[-1]] * 20)
    assert len(clock.slept) >= 90, "it begins after a few steps"


def test_the_device_is_never_idle_for_a_steady_delay() -> None:
    clock = Clock()
    paced = pipeline(clock.pacer(), clock).go(200)
    assert paced.idle_per_step(190) == 0
    assert paced.period(150) == pytest.approx(PERIOD, rel=1e-4)


def test_the_margin_is_a_share_of_a_long_period() -> None:
    clock = Clock()
    long = pipeline(clock.pacer(margin_share=0.1), clock, forward=steady(49000)).go(100)
    assert 0.08 * 50000 * US < long.waits[-1] < 0.1 * 50000 * US


def test_a_host_that_bounds_the_period_is_not_delayed() -> None:
    clock = Clock()
    bound = pipeline(clock.pacer(), clock, launch=steady(4500)).go(100)
    assert clock.slept == []
    assert bound.period(50) == pytest.approx(5400 * US)


def test_what_is_left_where_masks_bound_the_period_is_used_at_no_cost() -> None:
    """The device waits for the mask; the driver then waits for sampling only: 440 µs."""
    clock = Clock()
    masked = pipeline(clock.pacer(), clock, settle=steady(5200)).go(100)
    assert 440 * US - MARGIN <= clock.slept[-1] < 440 * US
    assert masked.period(50) == pytest.approx(6240 * US, rel=1e-4)
    assert eager(settle=steady(5200)).go(100).period(50) == pytest.approx(6240 * US)


def test_a_slack_within_the_margin_is_left_alone() -> None:
    clock = Clock()
    pipeline(clock.pacer(), clock, launch=steady(4045)).go(100)  # 95 µs are left
    assert clock.slept == []


@pytest.mark.parametrize("share", [0.05, 0.1, 0.25])
def test_jitter_costs_the_device_at_most_a_hundredth_of_the_period(share: float) -> None:
    def noisy(pacer: Pacer, clock: Clock) -> Pipeline:
        return pipeline(
            pacer,
            clock,
            launch=jittered(600, share, 1),
            settle=jittered(900, share, 2),
            forward=jittered(4000, share, 3),
            sample=jittered(1000, share, 4),
        ).go(2000)

    clock = Clock()
    paced, plain = noisy(clock.pacer(), clock), noisy(Pacer(Eager()), Clock())
    added = paced.idle_per_step(1900) - plain.idle_per_step(1900)
    assert added <= 0.01 * PERIOD
    assert sum(clock.slept[-1900:]) / 1900 > 0.6 * SLACK


def test_steps_that_are_sometimes_longer_do_not_lengthen_the_delay() -> None:
    """One step in six also computes a prompt: the delay is that of the others."""
    clock = Clock()

    def forward(step: int) -> float:
        return (4000 + 3000 * (step % 6 == 0)) * US

    paced = pipeline(clock.pacer(), clock, forward=forward).go(400)
    assert paced.idle_per_step(300) <= 0.01 * PERIOD
    assert max(clock.slept[-300:]) < SLACK
    assert clock.slept[-1] == pytest.approx(SLACK - MARGIN, rel=0.05)


def test_steps_known_to_be_longer_are_used_to_the_full() -> None:
    """The same, but the pacer is told how many tokens are in flight."""
    clock = Clock()

    def forward(step: int) -> float:
        return (4000 + 3000 * (step % 6 == 0)) * US

    def tokens(step: int) -> int:
        return 16 + 128 * (step % 6 == 0)

    paced = pipeline(clock.pacer(), clock, forward=forward, tokens=tokens).go(400)
    assert paced.idle_per_step(300) <= 0.01 * PERIOD
    longer = pytest.approx(SLACK + 3000 * US - MARGIN, rel=0.05)
    usual = pytest.approx(SLACK - MARGIN, rel=0.05)
    assert clock.slept[-12:] == [usual if step % 6 != 1 else longer for step in range(388, 400)]


def test_a_step_of_an_unknown_size_is_held_back_like_a_smaller_one() -> None:
    clock = Clock()
    pacer = clock.pacer()
    pipeline(pacer, clock, tokens=lambda step: 16).go(50)
    assert pacer.delay_s(31) == pacer.delay_s(16) == pytest.approx(SLACK - MARGIN, rel=0.05)
    assert pacer.delay_s(4000) == pacer.delay_s(16)
    assert pacer.delay_s(15) == 0.0, "smaller steps may be shorter"


def test_steps_that_are_sometimes_shorter_cost_no_more_than_the_budget() -> None:
    clock = Clock()

    def forward(step: int) -> float:
        return (4000 - 3300 * (step % 10 == 0)) * US

    paced = pipeline(clock.pacer(), clock, forward=forward).go(600)
    plain = eager(forward=forward).go(600)
    assert paced.idle_per_step(400) - plain.idle_per_step(400) <= 0.012 * PERIOD
    assert sum(clock.slept[-400:]) > 0


def test_oversleeping_is_taken_off_the_delay() -> None:
    clock = Clock(late=400 * US)
    paced = pipeline(clock.pacer(), clock).go(200)
    assert paced.idle_per_step(150) == 0
    assert clock.slept[-1] + clock.late <= SLACK - MARGIN + 0.01 * PERIOD


# --- time to first token ---


def test_the_first_token_comes_as_much_earlier_as_the_schedule_comes_later() -> None:
    clock = Clock()
    paced = pipeline(clock.pacer(), clock).go(200)
    gained = eager().go(200).first_token_s(100) - paced.first_token_s(100)
    assert gained == pytest.approx(clock.slept[-1])


# --- changes ---


def test_a_slower_host_ends_the_delay_within_a_few_steps() -> None:
    clock = Clock()
    change = 200

    def settle(step: int) -> float:
        return (900 if step < change else 4950) * US

    paced = pipeline(clock.pacer(), clock, settle=settle).go(change)
    before = clock.slept[-1]
    assert before > 3000 * US
    paced.go(6)
    assert clock.slept[-1] < before / 8
    paced.go(200)
    assert paced.idle_per_step(100) == pytest.approx(
        eager(settle=steady(4950)).go(200).idle_per_step(100), abs=0.01 * PERIOD
    )


def test_a_faster_device_ends_the_delay_within_a_few_steps() -> None:
    clock = Clock()

    def forward(step: int) -> float:
        return (4000 if step < 200 else 400) * US

    paced = pipeline(clock.pacer(), clock, forward=forward).go(206)
    assert clock.slept[-1] < 3000 / 8 * US
    paced.go(200)
    fast = eager(forward=steady(400)).go(300).period(100)
    assert paced.period(100) == pytest.approx(fast, rel=0.02)


def test_slack_that_comes_back_is_used_again() -> None:
    clock = Clock()

    def launch(step: int) -> float:
        return (600 if step < 200 or step >= 300 else 4500) * US

    paced = pipeline(clock.pacer(), clock, launch=launch).go(300)
    assert len(clock.slept) < 300 - 60
    paced.go(100)
    assert clock.slept[-1] == pytest.approx(SLACK - MARGIN, rel=0.05)
    assert paced.idle_per_step(30) == 0


def test_one_slow_step_of_the_host_costs_a_few_short_delays() -> None:
    clock = Clock()

    def launch(step: int) -> float:
        return (600 if step != 200 else 9000) * US

    pipeline(clock.pacer(), clock, launch=launch).go(220)
    assert min(clock.slept[195:205]) < 0.6 * SLACK
    assert clock.slept[-1] > 0.9 * SLACK


def test_nothing_in_flight_means_no_delay_and_no_lesson() -> None:
    clock = Clock()
    pacer = clock.pacer()
    pipeline(pacer, clock).go(50)
    pacer.before_schedule(in_flight=0)  # which ends the last of these steps
    delays, delay = len(clock.slept), pacer.delay_s(1)
    assert delay > 3000 * US
    for _ in range(50):
        clock.now += 1  # nobody asked for anything
        pacer.before_schedule(in_flight=0)
        pacer.waited(0.5)
    assert len(clock.slept) == delays
    assert pacer.delay_s(1) == delay, "an idle engine says nothing about a busy one"
    for _ in range(100):
        pacer.before_schedule(in_flight=0)
        clock.now += 100
        pacer.before_schedule(in_flight=1)
        pacer.waited(100 * US)
    assert pacer.delay_s(1) > 0.9 * delay, "nor is the time that it was idle a period"


def test_a_delay_is_never_longer_than_a_period() -> None:
    clock = Clock()
    pacer = clock.pacer()
    for _ in range(6):
        pacer.before_schedule(in_flight=1)
        clock.now += 1.0
        pacer.waited(50.0)  # far more than a whole step took
    assert clock.slept == [1.0, 1.0]


# --- release ---


def test_a_release_from_another_thread_ends_the_delay() -> None:
    pacer = Pacer(JustInTime())
    pretend(pacer, slack_s=30.0)
    threading.Timer(0.05, pacer.release).start()
    began = time.perf_counter()
    pacer.before_schedule(in_flight=1)
    assert 0.02 < time.perf_counter() - began < 10.0


def test_a_release_is_good_for_one_delay() -> None:
    pacer = Pacer(JustInTime())
    pretend(pacer, slack_s=60.0)
    pacer.release()
    began = time.perf_counter()
    pacer.before_schedule(in_flight=1)
    assert time.perf_counter() - began < 30.0
    pretend(pacer, slack_s=0.3)
    began = time.perf_counter()
    pacer.before_schedule(in_flight=1)
    assert time.perf_counter() - began > 0.2


def test_a_released_delay_counts_as_long_as_it_lasted() -> None:
    clock = Clock()
    pacer = Pacer(JustInTime(), clock=clock.read, sleep=lambda seconds: None)
    for _ in range(200):
        pacer.before_schedule(in_flight=1)
        clock.now += 0.005
        pacer.waited(0.003)
    assert pacer.delay_s(1) < 0.003, "the slack was 3 ms each time, and never what was asked on top"


def pretend(pacer: Pacer, *, slack_s: float) -> None:
    """Let the pacer learn that every step has this slack, without letting the time pass."""
    now = 0.0
    clock, sleep = pacer._clock, pacer._sleep
    pacer._clock, pacer._sleep = lambda: now, lambda seconds: None
    for _ in range(8):
        pacer.before_schedule(in_flight=1)
        now += 2 * slack_s
        pacer.waited(slack_s)
    pacer._clock, pacer._sleep = clock, sleep


# --- the rule ---


def test_the_latest_start_spends_its_budget_exactly() -> None:
    random = Random(5)
    for _ in range(50):
        slacks = [random.choice([0.0, random.uniform(0, 4)]) for _ in range(random.randint(1, 20))]
        idle = random.uniform(0.001, 0.5)
        latest = latest_start(slacks, idle)
        excess = [max(0.0, latest - slack) for slack in slacks]
        assert sum(excess) / len(slacks) == pytest.approx(idle)
    assert latest_start([3.0, 1.0, 2.0], 0.0) == 1.0


# --- plans ---


def masked(*, schedule_first: bool) -> Plan:
    """schedule(i + 1) before or after the launches of step i for whose copy commit(i) waits."""
    ahead = Node("schedule", (Op((Read("table"),), ("batch", "table")),), offset=-1)
    launches = [
        Node("bitmask", (Op((Read("batch"),), ("mask",)),)),
        Node("sample", (Op((Read("mask"),)),), (Op(writes=("copied",)),), stream="compute"),
    ]
    middle = [ahead, *launches] if schedule_first else [*launches, ahead]
    nodes = [*middle, Node("commit", (Op((Read("copied"),)),))]
    values = [Value("batch"), Value("mask"), Value("copied", "pinned", "slots")]
    return compile_plan(StepGraph.build(nodes, values, ["table"], order="keep"))


@pytest.mark.parametrize(("depth", "expected"), [(1, False), (2, True), (3, True)])
def test_a_pipelined_schedule_can_be_delayed_and_a_synchronous_one_cannot(
    depth: int, expected: bool
) -> None:
    plan = compile_plan(decode_step(depth))
    assert delayable(plan, "schedule.host", "commit.host.advance") is expected


def test_a_schedule_before_launches_that_are_waited_for_cannot_be_delayed() -> None:
    late, early = masked(schedule_first=False), masked(schedule_first=True)
    assert [wait.target for wait in late.waits] == ["commit.host"]
    assert delayable(late, "schedule.host", "commit.host")
    assert not delayable(early, "schedule.host", "commit.host")


def test_an_op_without_a_wait_has_none_to_give() -> None:
    plan = compile_plan(decode_step(2))
    assert not delayable(plan, "schedule.host", "bitmask.host")
    assert not delayable(plan, "schedule.host", "forward.device")


def slowed(plan: Plan, delay_us: float) -> float:
    """The period with a delay before each schedule."""
    return simulate(
        plan, steps=60, takes=lambda t: t.cost_us + delay_us * (t.op == "schedule.host")
    ).period_us


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_what_can_be_delayed_by_its_wait_keeps_the_period(depth: int) -> None:
    plan = compile_plan(decode_step(depth))
    timeline = simulate(plan, steps=20)
    commit = timeline.span("commit.host.advance", 10).start_us
    slack = commit - max(s.end_us for s in timeline.on("driver") if s.end_us < commit)
    assert slack > 1000
    keeps = slowed(plan, slack - 100) == pytest.approx(plan.period_us)
    assert keeps is delayable(plan, "schedule.host", "commit.host.advance")


@dataclass
class OnPlan:
    """A simulated run whose schedules a pacer holds back; the pacer's clock is the timeline's."""

    plan: Plan
    pacer: Pacer
    clock: Clock
    steps: int = 200
    seen_us: list[float] = field(default_factory=list)  # when each batch was chosen

    def __post_init__(self) -> None:
        self.timeline = simulate(self.plan, steps=self.steps, takes=self._takes)

    def _takes(self, turn: Turn) -> float:
        took = 0.0
        if turn.op == "schedule.host":
            self.clock.now = turn.start_us * US
            self.pacer.before_schedule(in_flight=turn.step > 0)
            took = self.clock.now / US - turn.start_us
            self.seen_us.append(self.clock.now / US)
        if turn.op == "commit.host.advance":
            self.pacer.waited((turn.start_us - turn.free_us) * US)
        return took + turn.cost_us

    def first_token_us(self) -> float:
        """Mean time to first token of a request that arrives at any time of the second half."""
        total = weight = 0.0
        for step in range(self.steps // 2, self.steps - 5):
            gap = self.seen_us[step] - self.seen_us[step - 1]
            settled = self.timeline.span("commit.host.finish", step).end_us
            total += gap * (settled - self.seen_us[step] + gap / 2)
            weight += gap
        return total / weight


def on_plan(depth: int, *, just_in_time: bool = False) -> OnPlan:
    clock = Clock()
    pacer = clock.pacer() if just_in_time else Pacer(Eager())
    return OnPlan(compile_plan(decode_step(depth)), pacer, clock)


@pytest.mark.parametrize("depth", [2, 3])
def test_on_a_simulated_plan_the_schedule_moves_to_the_end_of_the_wait(depth: int) -> None:
    paced, plain = on_plan(depth, just_in_time=True), on_plan(depth)
    period = plain.plan.period_us
    assert paced.timeline.gap_us("compute") <= 0.01 * period
    assert paced.timeline.period_us == pytest.approx(period, rel=0.01)
    gained = plain.first_token_us() - paced.first_token_us()
    assert gained == pytest.approx(paced.clock.slept[-1] / US, rel=0.01)
    assert gained > 0.35 * period


def test_just_in_time_the_pipeline_answers_as_soon_as_the_synchronous_loop() -> None:
    synchronous, plain, paced = on_plan(1), on_plan(2), on_plan(2, just_in_time=True)
    assert paced.first_token_us() < 1.05 * synchronous.first_token_us()
    assert plain.first_token_us() > 1.15 * synchronous.first_token_us()


# --- ops ---


def test_an_op_with_a_rewired_read_sees_its_waits_too() -> None:
    seen: list[tuple[str, float]] = []

    @op
    def work(text: str = read("text"), ctx: OpContext = context()) -> None:
        seen.append((text, ctx.waited_s))

    rewired = NodeConfig(reads={"text": "translated"})
    declared = NodeKind("reader", "", host=(work,)).declare("reader", rewired)
    graph = step_graph(declared, values=[value("translated", external=True)])
    [body] = [vertex.op.run for vertex in graph.vertices.values()]
    assert body is not None
    body(cast(OpContext, SimpleNamespace(read=lambda name: name, waited_s=1.5)))
    assert seen == [("translated", 1.5)]


def test_on_threads_the_wait_of_commit_moves_before_schedule() -> None:
    delays: list[float] = []

    def sleep(seconds: float) -> None:
        delays.append(seconds)
        time.sleep(seconds)

    pacer = Pacer(JustInTime(), sleep=sleep)

    def schedule(ctx: OpContext) -> None:
        pacer.before_schedule(in_flight=ctx.step > 0)
        ctx.write("batch", ctx.step)

    def launch(ctx: OpContext) -> None:
        ctx.write("staging", ctx.read("batch"))

    def forward(ctx: OpContext) -> None:
        time.sleep(0.006)
        ctx.write("copied", ctx.read("staging"))

    def commit(ctx: OpContext) -> None:
        if ctx.step > 0:
            pacer.waited(ctx.waited_s)
        ctx.write("text", ctx.read("copied"))

    graph = StepGraph.build(
        [
            Node("schedule", (Op(writes=("batch",), run=schedule),)),
            Node(
                "forward",
                (Op((Read("batch"),), ("staging",), run=launch),),
                (Op((Read("staging"),), ("copied",), run=forward),),
                stream="compute",
            ),
            Node("commit", (Op((Read("copied"),), ("text",), run=commit),), offset=1),
        ],
        [
            Value("batch"),
            Value("staging", "pinned", "slots"),
            Value("copied", "pinned", "slots"),
            Value("text"),
        ],
        order="keep",
    )
    plan = compile_plan(graph)
    assert delayable(plan, "schedule.host", "commit.host")
    report = run(plan, executor="threads", steps=40, keep=["text"], watchdog_s=10)
    assert report.kept["text"] == list(range(40))
    assert max(delays, default=0.0) > 0.0, "commit waited for forward in no step"


def test_releases_are_taken_back_where_no_step_is_delayed() -> None:
    pacer = Pacer(JustInTime())
    pacer.release()
    pacer.before_schedule(in_flight=0)
    pretend(pacer, slack_s=0.3)
    began = time.perf_counter()
    pacer.before_schedule(in_flight=1)
    assert time.perf_counter() - began > 0.2


def test_only_the_last_to_close_a_table_ends_a_delay() -> None:
    table = RequestTable(limits())
    table.pacer = Pacer(JustInTime())
    pretend(table.pacer, slack_s=0.3)
    table.open()
    table.open()
    table.close()
    began = time.perf_counter()
    table.pacer.before_schedule(in_flight=1)
    assert time.perf_counter() - began > 0.2
    table.close()
    pretend(table.pacer, slack_s=60.0)
    table.pacer.before_schedule(in_flight=1)
    assert time.perf_counter() - began < 30.0
