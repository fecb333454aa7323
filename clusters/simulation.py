"""A layout of a cluster under a load, in simulated time, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..configs.abstract import AbstractGraph
from ..configs.costs import Costs, load_costs
from ..configs.errors import ConfigError
from ..configs.load import load
from ..configs.schema import ParallelConfig, PipelineConfig
from ..graph.plan import Plan
from ..graph.verifier.verified import verified
from ..loadgen.outcome import Outcome
from ..loadgen.runner import Ran
from ..loadgen.summary import Distribution, Summary
from ..policies.chosen import Policies
from ..policies.scheduling import Groups
from ..requests.limits import Limits
from ..serving.pipeline import placed, policies_of, step_graph
from .file import Cluster, wrong_at
from .forward_cost import ForwardCost, Work
from .jobs import Job
from .layout import Layout
from .links import Fabric
from .memory import Memory, memory_of
from .replica import Replica
from .spent import Spent
from .step_costs import StepCosts
from .step_rows import StepScheduler

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Simulator:
    """Runs layouts of one cluster file; what they share is read once. Raises as `of` does."""

    cluster: Cluster
    pipeline: PipelineConfig
    costs: Costs
    policies: Policies

    @staticmethod
    def of(cluster: Cluster) -> Simulator:
        """Raises `ConfigError` for a pipeline or costs that are wrong, or that contradict it."""
        config = cluster.config
        beside = cluster.folder / config.pipeline
        pipeline = load(beside if beside.is_file() else config.pipeline).config
        if isinstance(pipeline, AbstractGraph):
            raise wrong_at(cluster, ("pipeline",), "is an abstract graph: name a pipeline")
        if pipeline.drafter is not None and config.speculation is None:
            said = (
                f"{config.pipeline!r} drafts: say `speculation: {{acceptance: 0.7}}` in the "
                "cluster file, or name another pipeline"
            )
            raise wrong_at(cluster, ("pipeline",), said)
        if pipeline.drafter is None and config.speculation is not None:
            said = f"the pipeline {config.pipeline!r} has no drafter: name one that has"
            raise wrong_at(cluster, ("speculation",), said)
        form, kept = pipeline.model.target_cache_form, config.model.cache_form
        if form not in ("auto", kept):
            here = "has no `latent`" if config.model.latent is None else f"has latent.cache: {kept}"
            said = f"keeps its cache {form} (model.kv_cache_form), but the model here {here}"
            raise wrong_at(cluster, ("pipeline",), f"{config.pipeline!r} {said}")
        stored, numbers = pipeline.model.kv_cache_dtype, config.model.cache
        if stored != "auto" and numbers != "float8":
            said = (
                f"{config.pipeline!r} keeps its cache in {stored} (model.kv_cache_dtype), but the "
                f"model here has cache: {numbers}: say cache: float8, or name another pipeline"
            )
            raise wrong_at(cluster, ("pipeline",), said)
        beside = cluster.folder / config.costs
        try:
            costs = load_costs(beside if beside.is_file() else config.costs)
        except ConfigError as error:
            if error.code != "SW-NO-FILE":
                raise
            raise wrong_at(cluster, ("costs",), error.message) from error
        return Simulator(cluster, pipeline, costs, policies_of(pipeline))

    def run(self, layout: Layout, shares: Sequence[Sequence[Job]], progress: Progress) -> Outcomes:
        """Serve the requests of each replica. Raises `Unfit`, `GraphError` or `PolicyError`."""
        config = self.cluster.config
        memory = memory_of(
            layout,
            config.model,
            config.device,
            share=config.memory,
            block_size=self._limits(1).block_size,
            drafter_bytes=(config.speculation.draft_gb if config.speculation else 0.0) * 1e9,
        )
        limits = self._limits(memory.blocks)
        plan: Plan | None = None
        replicas = []
        ended = 0
        for number, jobs in enumerate(shares):
            costs = self.step_costs(layout, number)
            plan = plan or self.plan(layout, costs, self._nominal(limits, jobs))
            replica = Replica(
                plan,
                costs,
                StepScheduler(
                    limits,
                    self.policies_of(layout),
                    acceptance=config.speculation.acceptance if config.speculation else 0.0,
                ),
                jobs,
                lambda count, before=ended: progress(before + count),  # type: ignore[misc]
            )
            replica.run()
            ended += len(jobs)
            replicas.append(replica)
        assert plan is not None, "a layout has a replica"
        return Outcomes(self.cluster, layout, memory, limits, plan, tuple(replicas))

    def step_costs(self, layout: Layout, replica: int = 0) -> StepCosts:
        """How long the ops of one replica take."""
        config = self.cluster.config
        fabric = Fabric(config.link, config.network, config.devices, config.all_reduce)
        forwards = [
            ForwardCost(config.model, config.device, fabric, layout, stage, replica)
            for stage in range(layout.pipeline)
        ]
        return StepCosts(step_graph(self._in_stages(layout)), self.costs, forwards)

    def plan(self, layout: Layout, costs: StepCosts, work: Work) -> Plan:
        """The plan for steps of this work, proved sound: that of which ranks run their parts."""
        name = f"{self.cluster.name}, simulated"
        config = self._in_stages(layout)
        return verified(placed(config, costs.graph, costs.all(work), costs_from=name))

    def policies_of(self, layout: Layout) -> Policies:
        """Those of the pipeline; with stages, rows run in the groups of the layout."""
        if layout.pipeline == 1:
            return self.policies
        return replace(self.policies, scheduling=Groups(groups=layout.groups))

    def _in_stages(self, layout: Layout) -> PipelineConfig:
        """The pipeline with the stages and groups of the layout; of one stage, as it is."""
        if layout.pipeline == 1:
            return self.pipeline
        parallel = ParallelConfig.model_construct(pipeline=layout.pipeline)  # a file says 8 at most
        model = self.pipeline.model.model_copy(update={"parallel": parallel})
        return self.pipeline.model_copy(update={"depth": layout.groups, "model": model})

    def _nominal(self, limits: Limits, jobs: Sequence[Job]) -> Work:
        """A step of a full batch that decodes, half-way through the answers."""
        rows = max(1, min(limits.max_rows, len(jobs)))
        tokens = rows * limits.window
        context = sum(job.prompt + job.output // 2 for job in jobs) * rows // max(1, len(jobs))
        return Work(rows, tokens, tokens, context, context * limits.window)

    def _limits(self, blocks: int) -> Limits:
        """Of one replica."""
        scheduler = self.cluster.config.scheduler.over(self.pipeline.scheduler)
        drafter = self.pipeline.drafter
        return Limits(
            max_rows=scheduler.max_rows,
            token_budget=scheduler.token_budget,
            block_size=scheduler.block_size,
            num_blocks=blocks,
            context_length=self.cluster.config.scheduler.max_context,
            draft_tokens=drafter.tokens if drafter is not None else 0,
            max_queue=scheduler.max_queue,
        )


@dataclass(frozen=True)
class Outcomes:
    """What one layout came to under the load. Everything in it is simulated."""

    cluster: Cluster
    layout: Layout
    memory: Memory
    limits: Limits
    plan: Plan
    replicas: tuple[Replica, ...]

    @cached_property
    def jobs(self) -> list[Job]:
        """Of all replicas, by number."""
        return sorted((job for each in self.replicas for job in each.jobs), key=lambda job: job.uid)

    @cached_property
    def summary(self) -> Summary:
        """The figures of a load test."""
        outcomes = tuple(_outcome(job) for job in self.jobs)
        return Summary.of(Ran(outcomes, 0.0, self.end_us / 1e6))

    @cached_property
    def queue(self) -> Distribution:
        """From when a request comes to its first step."""
        waits = ((job.began_us - job.due_us) / 1e6 for job in self.jobs if job.began_us is not None)
        return Distribution.of(waits, (50.0, 90.0, 99.0))

    @property
    def end_us(self) -> float:
        """When the last request ended."""
        return max(each.end_us for each in self.replicas)

    @cached_property
    def shares(self) -> dict[str, float]:
        """Where the time of the devices goes, until the last request of all replicas ended."""
        together = Spent(())
        for number, each in enumerate(self.replicas):
            for stream, found in each.spent.us.items():
                filled = together.us[f"{number} {stream}"] = found.copy()
                filled["idle"] += max(0.0, self.end_us - each.end_us)
        return together.shares()

    @property
    def utilization(self) -> float:
        """The share of their time for which devices work."""
        busy = sum(each.spent.busy_us() for each in self.replicas)
        total = self.end_us * self.layout.pipeline * len(self.replicas)
        return busy / total if total else 0.0

    @property
    def rows_a_step(self) -> float:
        steps = sum(each.steps for each in self.replicas)
        return sum(each.rows for each in self.replicas) / steps if steps else 0.0

    @property
    def cache_peak(self) -> float:
        """The largest share of its KV blocks that a replica had in use."""
        blocks = self.limits.num_blocks
        return max(1 - each.least_free_blocks / blocks for each in self.replicas)

    @property
    def tokens_a_window(self) -> float | None:
        """Tokens of a step that verifies drafts, on average; None where none does."""
        windows = sum(job.windows for job in self.jobs)
        return 1 + sum(job.accepted for job in self.jobs) / windows if windows else None

    @property
    def preemptions(self) -> int:
        return sum(each.scheduler.preemptions for each in self.replicas)

    def to_json(self) -> dict[str, Any]:
        """All figures, in the names of the load generator where it has them."""
        return {
            "simulated": True,
            "layout": {
                "tensor": self.layout.tensor,
                "pipeline": self.layout.pipeline,
                "replicas": self.layout.replicas,
                "groups": self.layout.groups,
            },
            **self.summary.to_json(),
            "mean_queue_ms": self.queue.mean if self.queue.count else None,
            "p99_queue_ms": self.queue.percentiles[99.0] if self.queue.count else None,
            "utilization": self.utilization,
            "time": self.shares,
            "steps": sum(each.steps for each in self.replicas),
            "rows_a_step": self.rows_a_step,
            "kv_blocks": self.limits.num_blocks,
            "kv_tokens": self.limits.num_blocks * self.limits.block_size,
            "kv_peak": self.cache_peak,
            "preemptions": self.preemptions,
            "tokens_a_window": self.tokens_a_window,
            "weights_gb": max(self.memory.weights) / 1e9,
            "period_us": self.plan.period_us,
        }


def _outcome(job: Job) -> Outcome:
    """The request as a load generator sees it."""
    arrivals = tuple(at_us / 1e6 for at_us, _ in job.arrivals)
    return Outcome(
        name=str(job.uid),
        due_s=job.due_us / 1e6,
        sent_s=job.due_us / 1e6,
        ended_s=arrivals[-1] if arrivals else job.due_us / 1e6,
        arrivals=arrivals,
        tokens=job.settled,
        prompt_tokens=job.prompt,
        finish_reason=None if job.refused else "length",
        error=job.refused,
    )
