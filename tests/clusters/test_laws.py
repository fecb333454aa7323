"""Laws that any simulation of requests in a cluster keeps, whatever the figures of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest

from stepweave.clusters.file import Cluster, load_cluster
from stepweave.clusters.forward_cost import Parts, Work
from stepweave.clusters.jobs import Job
from stepweave.clusters.layout import Layout, LayoutConfig
from stepweave.clusters.load import jobs_of, routed
from stepweave.clusters.replica import Replica
from stepweave.clusters.simulation import Outcomes, Simulator
from stepweave.clusters.step_costs import StepCosts
from stepweave.clusters.step_rows import Step, StepScheduler
from stepweave.configs.costs import load_costs
from stepweave.policies.chosen import Policies
from stepweave.policies.scheduling import Groups
from stepweave.requests.limits import Limits
from stepweave.serving.pipeline import placed
from stepweave.timelines.simulated import simulate

LAYOUTS = ["8x1x1", "2x2x2", "1x4x1"]
SMALL = {
    "model": "llama_8b",
    "scheduler": "{max_rows: 8, token_budget: 256}",
    "load": "{requests: 16, rate: 20, input: 200, output: 16, spread: 0.9}",
}


def cluster(name: str = "llama_70b_h200", **settings: str) -> Cluster:
    return load_cluster(name, {**SMALL, **{k.replace("__", "."): v for k, v in settings.items()}})


def ran(found: Cluster, layout: str = "1x1x1") -> Outcomes:
    tensor, pipeline, replicas = map(int, layout.split("x"))
    asked = LayoutConfig(tensor=tensor, pipeline=pipeline, replicas=replicas)
    laid = Layout.of(asked, found.config.model)
    shares = routed(jobs_of(found), laid.replicas, found.config.routing)
    return Simulator.of(found).run(laid, shares, lambda ended: None)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_request_comes_out_once_with_all_its_tokens_and_no_memory_is_lost(
    layout: str,
) -> None:
    found = cluster()
    outcomes = ran(found, layout)
    asked = {job.uid: (job.prompt, job.output) for job in jobs_of(found)}
    assert {job.uid: (job.prompt, job.settled) for job in outcomes.jobs} == asked
    for job in outcomes.jobs:
        times = [at_us for at_us, _ in job.arrivals]
        assert sum(count for _, count in job.arrivals) == job.output
        assert job.began_us is not None
        assert job.due_us <= job.began_us < times[0]
        assert times == sorted(times)
    for replica in outcomes.replicas:
        assert replica.scheduler.inside == 0
        assert replica.scheduler.free_blocks == outcomes.limits.num_blocks
    assert sum(outcomes.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("layout", ["1x1x1", "1x2x1"])
def test_littles_law(layout: str) -> None:
    """Requests inside, counted step by step as time goes on, against rate times time inside."""
    found = cluster()
    tensor, pipeline, _ = map(int, layout.split("x"))
    laid = Layout.of(LayoutConfig(tensor=tensor, pipeline=pipeline), found.config.model)
    simulator = Simulator.of(found)
    changes: list[tuple[float, int]] = []

    class Watched(StepScheduler):
        def add(self, job: Job) -> None:
            super().add(job)
            changes.append((job.due_us, 1))

        def settle(self, step: object, now_us: float) -> None:
            before = self.inside
            super().settle(step, now_us)  # type: ignore[arg-type]
            changes.append((now_us, self.inside - before))

    costs = simulator.step_costs(laid)
    limits = Limits(8, 256, 16, 4000, 4096, 0, 4096)
    plan = simulator.plan(laid, costs, Work(8, 8, 8, 1600, 1600))
    jobs = jobs_of(found)
    Replica(plan, costs, Watched(limits, simulator.policies_of(laid)), jobs).run()
    changes.sort()
    end_us, inside, area = changes[-1][0], 0, 0.0
    for (now_us, change), (next_us, _) in pairwise([*changes, (end_us, 0)]):
        inside += change
        assert inside >= 0
        area += inside * (next_us - now_us)
    assert inside == 0
    mean_inside, rate = area / end_us, len(jobs) / end_us
    mean_time = sum(job.arrivals[-1][0] - job.due_us for job in jobs) / len(jobs)
    assert mean_inside == pytest.approx(rate * mean_time)


def test_the_work_of_devices_is_the_sum_of_what_steps_cost() -> None:
    """Utilization law: time of the parts, added up as steps run, is the busy time of the stream."""
    outcomes = ran(cluster())
    (replica,) = outcomes.replicas
    (stream,) = replica.spent.us.values()
    assert sum(stream.values()) == pytest.approx(outcomes.end_us)
    busy = sum(us for name, us in stream.items() if name not in ("host", "bubbles", "idle"))
    assert outcomes.utilization == pytest.approx(busy / outcomes.end_us)


FASTER = [
    ("device__memory_gb_s", "4800", "9600"),
    ("device__tflops", "300", "989"),
    ("device__kernel_us", "2.6", "1.3"),
    ("link__all_reduce__nccl__latency_us", "24", "7"),
    ("link__all_reduce__nccl__gb_s", "47", "475"),
]


@pytest.mark.parametrize(("key", "slow", "fast"), FASTER)
@pytest.mark.parametrize("layout", ["4x1x1", pytest.param("2x2x1", marks=pytest.mark.nightly)])
def test_a_faster_device_or_link_is_never_slower_on_average(
    key: str, slow: str, fast: str, layout: str
) -> None:
    before, after = (ran(cluster(**{key: value}), layout).summary for value in (slow, fast))
    assert after.latencies["e2el"].mean < before.latencies["e2el"].mean
    assert after.seconds <= before.seconds


def test_messages_between_stages_take_time_of_requests_and_not_of_stages() -> None:
    slow, fast = (
        ran(cluster(load="{requests: 1, output: 9}", link__latency_us=us), "1x2x1")
        for us in ("2000", "7")
    )
    gained = slow.summary.latencies["tpot"].mean - fast.summary.latencies["tpot"].mean
    assert gained == pytest.approx(2 * 1.993), "hidden states one way, and the token back"


class ByFile(StepCosts):
    """The forward pass too as long as a costs file says."""

    def parts(self, op: str, work: Work) -> Parts:
        found = self.file.op_costs(op, self.graph.vertices[op])
        assert found is not None
        return Parts(weights=found.at(work.rows, work.sampled))


@pytest.mark.parametrize("pipeline", ["synchronous", "async", "async_grammar"])
def test_one_rank_takes_the_period_that_simulate_gives_for_the_same_costs(pipeline: str) -> None:
    rows = 8
    found = cluster(pipeline=pipeline, costs="llama_8b")
    simulator = Simulator.of(found)
    laid = Layout()
    costs = ByFile(simulator.step_costs(laid).graph, load_costs("llama_8b"), ())
    work = Work(rows, rows, rows, rows * 100, rows * 100)
    plan = simulator.plan(laid, costs, work)
    jobs = [Job(uid, 0.0, 1, 60, f"{uid}") for uid in range(rows)]
    Replica(plan, costs, StepScheduler(Limits(rows, 64, 16, 99, 99, 0, 9), Policies()), jobs).run()
    times = [at_us for at_us, _ in jobs[0].arrivals]
    period = (times[50] - times[10]) / 40
    times_of = load_costs("llama_8b").of(plan.graph, rows=rows).costs
    other = placed(simulator.pipeline, plan.graph, times_of)
    assert period == pytest.approx(simulate(other, steps=40).period_us)
    assert period == pytest.approx(plan.period_us)


@pytest.mark.parametrize("groups", [1, 2, pytest.param(3, marks=pytest.mark.nightly)])
def test_two_stages_take_the_period_of_their_plan(groups: int) -> None:
    found = cluster()
    simulator = Simulator.of(found)
    laid = Layout(pipeline=2, groups=groups)
    costs = simulator.step_costs(laid)
    work = Work(2, 2, 2, 130, 130)
    plan = simulator.plan(laid, costs, work)
    jobs = [Job(uid, 0.0, 1, 40, f"{uid}") for uid in range(2 * groups)]
    scheduler = StepScheduler(Limits(2 * groups, 64, 16, 99, 99, 0, 9), simulator.policies_of(laid))
    Replica(plan, costs, scheduler, jobs).run()
    times = [at_us for at_us, _ in jobs[0].arrivals]
    # each row has a token in every K-th step; its attention grows by a little
    assert (times[30] - times[10]) / 20 == pytest.approx(plan.period_us * groups, rel=2e-3)


def test_acceptance_is_that_of_the_file_and_does_not_depend_on_when_steps_run() -> None:
    settings = {"pipeline": "async_eagle", "speculation": "{acceptance: 0.8}"}
    found = [
        ran(cluster(**settings, load__output="150", device__memory_gb_s=speed))
        for speed in ("4800", "1000")
    ]
    expected = 1 + 0.8 + 0.8**2 + 0.8**3
    accepted: Sequence[list[list[int]]] = [
        [[count for _, count in job.arrivals] for job in each.jobs] for each in found
    ]
    assert accepted[0] == accepted[1]
    assert found[0].tokens_a_window == pytest.approx(expected, rel=0.02)


def test_little_memory_preempts_and_every_request_still_ends() -> None:
    asked = cluster(load="{requests: 12, input: 60, output: 60, spread: 0.3}")
    limits = Limits(8, 256, 16, 20, 1024, 0, 4096)
    simulator = Simulator.of(asked)
    costs = simulator.step_costs(Layout())
    jobs = jobs_of(asked)
    scheduler = StepScheduler(limits, Policies())
    Replica(simulator.plan(Layout(), costs, Work(8, 8, 8, 900, 900)), costs, scheduler, jobs).run()
    assert scheduler.preemptions > 0
    assert all(job.settled == job.output for job in jobs)
    assert scheduler.free_blocks == 20


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_rows_in_groups_with_little_memory_all_end(groups: int) -> None:
    """The row whose turn it is may be the one that sits out: that has to count as its turn."""
    preemptions = 0
    for seed in range(20):
        rnd = Random(seed)
        limits = Limits(rnd.randrange(2, 7), 64, 4, rnd.randrange(6, 14), 99, 0, 99)
        scheduler = StepScheduler(limits, Policies(scheduling=Groups(groups=groups)))
        jobs = [Job(u, 0.0, rnd.randrange(1, 9), rnd.randrange(2, 14), f"{u}") for u in range(6)]
        for job in jobs:
            scheduler.add(job)
        flying: list[Step] = []
        for now in range(1000):
            flying.append(scheduler.next_step(now))
            assert all(row.job.in_flight + row.job.silent == 1 for row in flying[-1].rows)
            if len(flying) >= groups and (step := flying.pop(0)).rows:
                scheduler.settle(step, now)
        assert [job.settled for job in jobs] == [job.output for job in jobs], seed
        preemptions += scheduler.preemptions
    assert preemptions


@dataclass
class Largest:
    rows: int = 0  # that decode
    tokens: int = 0


@pytest.mark.parametrize("layout", ["1x1x1", "1x4x1"])
def test_no_step_is_above_the_limits(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = Largest()
    chosen = StepScheduler.next_step

    def watched(self: StepScheduler, now_us: float) -> Step:
        step = chosen(self, now_us)
        decoding = [row for row in step.rows if row.gives == "window"]
        largest.rows = max(largest.rows, len(decoding))
        largest.tokens = max(largest.tokens, step.work.tokens)
        assert len(self.running) <= self.limits.max_rows
        return step

    monkeypatch.setattr(StepScheduler, "next_step", watched)
    ran(cluster(load__rate="1000"), layout)
    assert largest.tokens <= 256
    assert largest.rows == (8 if layout == "1x1x1" else 2)


def test_a_request_that_can_never_run_is_refused_with_the_numbers() -> None:
    found = ran(cluster(scheduler__max_context="256"))
    reasons = {job.refused for job in found.jobs if job.refused}
    assert reasons
    assert all("the context has 256" in str(reason) for reason in reasons)
    assert found.summary.failed == sum(job.refused is not None for job in found.jobs)
    assert found.summary.completed + found.summary.failed == 16
