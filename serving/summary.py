"""What an engine has done, in one mapping."""

from __future__ import annotations

from typing import Any

from ..configs.schema import PipelineConfig
from ..policies.acceptance import Synthetic
from .engine import Engine


def summary(engine: Engine, config: PipelineConfig) -> dict[str, Any]:
    """Totals since it was made, and the plan that it runs."""
    totals, plan, rule = engine.totals, engine.plan, engine.policies.acceptance
    seconds = engine.seconds
    return {
        "tokens": totals.tokens,
        "steps": totals.steps,
        "drafted": totals.drafted,
        "accepted": totals.accepted,
        "acceptance_length": totals.acceptance_length(),
        "preemptions": totals.preemptions,
        "swapped_out": totals.swapped_out,
        "swapped_in": totals.swapped_in,
        "requests": totals.requests,
        "failed_requests": totals.failed_requests,
        "failed_steps": totals.failed_steps,
        "prompt_tokens": totals.prompt_tokens,
        "cached_tokens": totals.cached_tokens,
        "forked_tokens": totals.forked_tokens,
        "copied_blocks": totals.copied_blocks,
        "seconds": seconds,
        "tokens_per_second": totals.tokens / seconds if seconds > 0 else 0.0,
        "executor": engine.executor,
        "depth": config.depth,
        "waits": len(plan.waits),
        "slots": dict(plan.slots),
        "notes": engine.notes(),
        **({"plans": _plans(engine)} if engine.others else {}),
        # A label, where drafts are kept at given rates: what comes out is not the model's.
        **({"synthetic_acceptance": list(rule.rates)} if isinstance(rule, Synthetic) else {}),
    }


def _plans(engine: Engine) -> dict[str, Any]:
    """Of an engine that goes from plan to plan: which there are, which is on, how often it went."""
    moves = engine.totals.switches.copy().items()
    return {
        "at": engine.at,
        "digests": {name: plan.digest for name, plan in engine.plans.items()},
        "switches": [
            {"before": before, "after": after, "reason": reason, "count": count}
            for (before, after, reason), count in moves
        ],
    }
