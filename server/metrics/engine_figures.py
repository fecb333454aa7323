"""What the engine and its service count: read when somebody asks, so that counting costs nothing.

The names that begin with `vllm:` are those that dashboards for vLLM use, with the meanings there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from .figures import Figure, Labelled

if TYPE_CHECKING:
    from ...requests.request import FinishReason
    from ...requests.totals import Totals
    from ...serving.async_llm import AsyncLLM
    from ...serving.llm import LLM
    from ..open_engine import OpenEngine

_ENDS: dict[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "cancelled": "abort",  # the word of those dashboards
    "error": "error",
}


@dataclass(frozen=True)
class Counted:
    """An engine while it serves."""

    engine: OpenEngine
    llm: AsyncLLM | LLM

    @property
    def totals(self) -> Totals:
        """What it has done."""
        return self.llm.service.totals

    @property
    def blocks(self) -> tuple[int, int]:
        """KV blocks that requests hold, and all there are."""
        table = self.llm.service.table
        return len(table.blocks.pool.held), table.limits.num_blocks


def _ends(of: Counted) -> Iterator[Labelled]:
    ended = of.llm.service.ended
    for reason, said in _ENDS.items():
        yield (said,), ended.get(reason, 0)


def _positions(of: Counted) -> Iterator[Labelled]:
    """From 0, for all drafts that a step may have."""
    accepted = [*of.totals.accepted_at]
    for position in range(max(of.llm.engine.limits.draft_tokens, len(accepted))):
        times = accepted[position] if position < len(accepted) else 0
        yield (str(position),), times


def _plan(of: Counted) -> Iterator[Labelled]:
    config, release, at = of.llm.config, version("stepweave"), of.llm.engine.at
    for name, plan in of.llm.plans.items():
        depth = str(config.form(name).depth)
        labels = (plan.digest, plan.graph.name, depth, config.executor, release, name)
        yield labels, int(name == at)


def _cache(of: Counted) -> Iterator[Labelled]:
    limits = of.llm.engine.limits
    yield (str(limits.block_size), str(limits.num_blocks)), 1


ENGINE: tuple[Figure[Counted], ...] = (
    Figure(
        "vllm:num_requests_running",
        "gauge",
        "Requests that have a row.",
        lambda of: of.llm.service.running,
    ),
    Figure(
        "vllm:num_requests_waiting",
        "gauge",
        "Requests that wait for a row, or for their grammar.",
        lambda of: of.llm.service.queued,
    ),
    Figure(
        "vllm:kv_cache_usage_perc",
        "gauge",
        "The share of the KV blocks that requests hold; 1 is all.",
        lambda of: of.blocks[0] / max(of.blocks[1], 1),
    ),
    Figure(
        "vllm:prompt_tokens_total",
        "counter",
        "Tokens of the prompts of requests that have ended.",
        lambda of: of.totals.prompt_tokens,
    ),
    Figure(
        "vllm:generation_tokens_total",
        "counter",
        "Tokens that were settled.",
        lambda of: of.totals.tokens,
    ),
    Figure(
        "vllm:request_success_total",
        "counter",
        "Requests that have ended, by how; a prompt with n completions is n of them.",
        _ends,
        ("finished_reason",),
    ),
    Figure(
        "vllm:num_preemptions_total",
        "counter",
        "How often a request lost its row, to be computed again.",
        lambda of: of.totals.preemptions,
    ),
    Figure(
        "stepweave:swapped_blocks_total",
        "counter",
        "KV blocks of requests that gave way, copied to host memory (out) and back (in).",
        lambda of: [(("out",), of.totals.swapped_out), (("in",), of.totals.swapped_in)],
        ("direction",),
    ),
    Figure(
        "stepweave:forked_tokens_total",
        "counter",
        "Tokens of prompts that one of n completions took over from another.",
        lambda of: of.totals.forked_tokens,
    ),
    Figure(
        "stepweave:copied_blocks_total",
        "counter",
        "KV blocks copied for one of n completions, to write on in them.",
        lambda of: of.totals.copied_blocks,
    ),
    Figure(
        "vllm:prefix_cache_queries_total",
        "counter",
        "Tokens that were looked up in the prefix cache.",
        lambda of: of.llm.service.table.prefix_queries,
    ),
    Figure(
        "vllm:prefix_cache_hits_total",
        "counter",
        "Tokens that were found there, and not computed.",
        lambda of: of.llm.service.table.prefix_hits,
    ),
    Figure(
        "vllm:spec_decode_num_drafts_total",
        "counter",
        "Windows in which at least one draft was verified.",
        lambda of: of.totals.windows,
    ),
    Figure(
        "vllm:spec_decode_num_draft_tokens_total",
        "counter",
        "Drafts that were verified.",
        lambda of: of.totals.drafted,
    ),
    Figure(
        "vllm:spec_decode_num_accepted_tokens_total",
        "counter",
        "Drafts that were accepted.",
        lambda of: of.totals.accepted,
    ),
    Figure(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "counter",
        "Windows whose draft at this position, from 0, was accepted.",
        _positions,
        ("position",),
    ),
    Figure(
        "vllm:cache_config_info",
        "gauge",
        "The KV cache: tokens of a block, and how many blocks there are. Always 1.",
        _cache,
        ("block_size", "num_gpu_blocks"),
    ),
    Figure(
        "stepweave:plan_info",
        "gauge",
        "The plans: 1 for the one that runs, 0 for those that the engine may go over to.",
        _plan,
        ("digest", "graph", "depth", "executor", "version", "plan"),
    ),
    Figure(
        "stepweave:plan_switches_total",
        "counter",
        "How often the engine went over from one plan to another, by why: predicted or measured to "
        "be faster, or meant for so many rows.",
        lambda of: [(move, times) for move, times in of.totals.switches.copy().items()],
        ("before", "after", "reason"),
    ),
    Figure(
        "stepweave:up",
        "gauge",
        "1 while the engine answers, 0 when it is dead, as /health says.",
        lambda of: int(of.llm.service.alive),
    ),
    Figure(
        "stepweave:draining",
        "gauge",
        "1 while the service finishes what runs and takes nothing in.",
        lambda of: int(of.engine.draining),
    ),
    Figure(
        "stepweave:steps_total",
        "counter",
        "Steps with at least one row.",
        lambda of: of.totals.steps,
    ),
    Figure(
        "stepweave:failed_steps_total",
        "counter",
        "Steps that failed and were recovered from: their requests ended with an error.",
        lambda of: of.totals.failed_steps,
    ),
    Figure(
        "stepweave:requests_total",
        "counter",
        "Prompts that were taken in, whatever became of them. One that is refused is not.",
        lambda of: of.totals.requests,
    ),
    Figure(
        "stepweave:failed_requests_total",
        "counter",
        "Prompts that ended with an error.",
        lambda of: of.totals.failed_requests,
    ),
    Figure(
        "stepweave:rows_limit",
        "gauge",
        "Requests that may have a row at a time.",
        lambda of: of.llm.engine.limits.max_rows,
    ),
    Figure(
        "stepweave:queue_limit",
        "gauge",
        "Requests that may wait; more are refused.",
        lambda of: of.llm.engine.limits.max_queue,
    ),
)
