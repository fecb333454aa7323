"""What the live page shows: one object, with all that it needs of a moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..insight import Insight, Seen

if TYPE_CHECKING:
    from ...graph.plan import Plan
    from ...requests.spans import RequestSpan
    from ...serving.async_llm import AsyncLLM
    from ...serving.flight import Stretch
    from ...serving.llm import LLM
    from ..open_engine import OpenEngine

DRAWN = 8
"""Steps whose ops are drawn."""

REQUESTS = 16
"""Requests that are listed: those that run, and the last that have ended."""

CAUSES = 8

SWITCHES = 8
"""Switches from plan to plan that are listed, the latest."""

_MOST_LETTERS = 128  # of an id, which a client may have chosen

_TOTALS = (
    *("tokens", "steps", "drafted", "accepted", "windows", "preemptions", "failed_steps"),
    *("requests", "failed_requests", "prompt_tokens", "cached_tokens"),
)


def snapshot(engine: OpenEngine, insight: Insight, began: float) -> dict[str, Any]:
    """All that is told at `live`, from any thread. Times are seconds, but for names with `us`.

    `at` is the time of the answer, and `began`, also by `perf_counter`, that of the service.
    """
    llm, service = insight.llm, insight.llm.service
    table, limits, totals = service.table, llm.engine.limits, service.totals
    flight = service.flight
    drawn = None if flight is None else flight.stretch(llm.plans, DRAWN)
    shown = llm.engine.at if drawn is None else drawn.plan
    seen = insight.latest()
    now = perf_counter()
    return {
        "at": now,
        "began": began,
        "model": engine.settings.models[0],
        "version": version("stepweave"),
        "state": _state(engine),
        "recorder": flight is not None,
        "plan": _plan(llm, shown),
        "switches": _switches(llm),
        "running": service.running,
        "queued": service.queued,
        "rows": limits.max_rows,
        "queue_limit": limits.max_queue,
        "blocks": len(table.blocks.pool.held),
        "blocks_in_all": limits.num_blocks,
        "totals": {
            **{name: getattr(totals, name) for name in _TOTALS},
            "accepted_at": [*totals.accepted_at],
        },
        "lanes": None if drawn is None else _lanes(llm.plans[shown], drawn, now),
        "figures": None if seen is None or seen.plan != shown else _figures(seen),
        "requests": [_request(each, now) for each in service.spans(REQUESTS)],
    }


def _state(engine: OpenEngine) -> str:
    if not engine.front.alive:
        return "failed"
    return "draining" if engine.draining else "serving"


def _plan(llm: AsyncLLM | LLM, name: str) -> Mapping[str, Any]:
    """`waits`: (source, target, distance), of ops by their places in `ops`.

    `of`: how many plans there are; `name` is told apart from others.
    """
    plan, config = llm.plans[name], llm.config
    ops = [*plan.graph.vertices]
    return {
        "name": name,
        "of": len(llm.plans),
        "digest": plan.digest,
        "depth": config.form(name).depth,
        "executor": config.executor,
        "ops": ops,
        "waits": [
            [ops.index(wait.source), ops.index(wait.target), wait.distance] for wait in plan.waits
        ],
    }


def _switches(llm: AsyncLLM | LLM) -> Mapping[str, Any]:
    """How often the engine went from one plan to another, and the last times, the newest first."""
    turned = [*llm.engine.turned.copy()][-SWITCHES:]
    return {
        "count": sum(llm.service.totals.switches.copy().values()),
        "latest": [each._asdict() for each in reversed(turned)],
    }


def _lanes(plan: Plan, drawn: Stretch, now: float) -> Mapping[str, Any]:
    """`spans`: (place of the op in `ops`, step, begin in µs, µs), by begin."""
    places = {op: place for place, op in enumerate(plan.graph.vertices)}
    lanes: dict[str, list[Sequence[float]]] = {actor: [] for actor in plan.actors}
    for each in drawn.report.events:
        start, us = round(each.start_us, 1), round(each.end_us - each.start_us, 1)
        lanes[each.actor].append((places[each.op], drawn.first + each.step, start, us))
    return {
        "first": drawn.first,
        "steps": drawn.report.steps,
        "age_s": max(now - drawn.report.ended_s, 0.0),
        "lanes": [{"actor": actor, "spans": spans} for actor, spans in lanes.items()],
    }


def _figures(seen: Seen) -> Mapping[str, Any]:
    trace, found = seen.trace, seen.trace.analysis
    return {
        "period_us": trace.run.period_us,
        "predicted_us": trace.predicted_us,
        "hidden": found.overlap.hidden,
        "steps": len(found.steady),
        "idle": [
            {
                "actor": each.actor,
                "op": each.op,
                "why": trace.why(each),
                "us": each.us,
                "late_us": each.late_us,
            }
            for each in found.causes[:CAUSES]
        ],
        "waits": [
            {"op": wait.target, "event": wait.source, "us": us}
            for wait, us in trace.waited_us().items()
        ],
        "ops": [
            {"op": each.op, "actor": each.actor, "median_us": each.median_us, "share": each.share}
            for each in found.ops
        ],
    }


def _request(span: RequestSpan, now: float) -> Mapping[str, Any]:
    """Its moments as seconds since it was asked for; `so_far_s`: until it ended, or now."""

    def since(moment: float | None) -> float | None:
        return None if moment is None else round(moment - span.asked_s, 6)

    return {
        "id": span.id[:_MOST_LETTERS],
        "submitted_s": since(span.submitted_s),
        "scheduled_s": since(span.scheduled_s),
        "first_token_s": since(span.first_token_s),
        "so_far_s": since(now if span.ended_s is None else span.ended_s),
        "prompt_tokens": span.prompt_tokens,
        "tokens": span.tokens,
        "preemptions": span.preemptions,
        "end": span.finish_reason,
    }
