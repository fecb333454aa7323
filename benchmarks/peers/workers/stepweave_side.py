"""Stepweave: the pipeline of the work, with the prompts as tokens."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from stepweave import LLM, SamplingParams


def start(work: dict[str, Any]) -> tuple[Callable[[], list[list[int]]], dict[str, Any]]:
    """Loads it; what runs it, and what it says of itself."""
    block = 16
    length = max(map(len, work["prompts"])) + work["tokens"]
    rows = len(work["prompts"])
    drafter = {"nodes.draft.model": work["draft"]} if work["drafter"] else {}
    llm = LLM(
        pipeline=work["pipeline"],
        overrides={
            "model.name": work["target"],
            "model.dtype": work["dtype"],
            "scheduler.max_rows": rows,
            "scheduler.num_blocks": rows * (-(-(length + 16) // block) + 1) + 2,
            "scheduler.prefix_cache": False,
            "torch_threads": work["threads"],
            **drafter,
            **work["overrides"],
        },
    )
    params = SamplingParams(max_tokens=work["tokens"], ignore_eos=True)

    def run() -> list[list[int]]:
        found = llm.generate(work["prompts"], params)
        for output in found:
            if output.error is not None:
                raise RuntimeError(output.error)
        return [list(output.token_ids) for output in found]

    libraries = {name: version(name) for name in ("stepweave", "torch", "transformers")}
    return run, {**libraries, "notes": list(llm.engine.notes())}
