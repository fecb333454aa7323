"""What it costs two ranks to agree: the time that a step takes for it, as a share of the step.

A llama of the shape of a 135M model, with random weights, divided between two ranks on a CPU with
gloo. Rank 0 notes how long it is inside agreements on what is sampled, and in the log: in the
first it also waits for the other rank, so the share is an upper bound. On a busy machine both are.
The figures are those of the round with the shortest step.

    torchrun --nproc-per-node 2 -m benchmarks.agreement [--tokens 32] [--layers 30] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

from stepweave import LLM
from stepweave.distributed.agreement import Agreement
from stepweave.distributed.log import Log
from stepweave.models.source import resolve

from .paired import at_least_one, save


def model(folder: Path, layers: int) -> None:
    """A model of that shape, with the tokenizer of the embedded one."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for file in Path(resolve("embedded")).glob("token*"):
        shutil.copy(file, folder)


class Timed:
    """How long calls of a method took, in all and how often."""

    def __init__(self, owner: type, name: str) -> None:
        self.seconds, self.calls = 0.0, 0
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*given: Any, **named: Any) -> Any:
            began = perf_counter()
            try:
                return inner(*given, **named)
            finally:
                self.seconds += perf_counter() - began
                self.calls += 1

        setattr(owner, name, timed)


def measured(folder: Path, tokens: int, rounds: int) -> dict[str, Any]:
    """µs of a step, of its agreement and of its log, on this rank: of the fastest round."""
    overrides = {"model.dtype": "float32", "scheduler.max_rows": 4}
    with LLM(folder, pipeline="async", tp=2, overrides=overrides) as llm:
        params = {"max_tokens": tokens, "ignore_eos": True}
        llm.generate([[1, 2, 3]] * 4, params)  # warm
        agreed, logged = Timed(Agreement, "__call__"), Timed(Log, "append")
        together = dist.new_group()
        found = [_round(llm, params, agreed, logged, together) for _ in range(rounds)]
    return {"rank": dist.get_rank(), **min(found, key=lambda each: each["step_us"])}


def _round(
    llm: LLM, params: dict[str, Any], agreed: Timed, logged: Timed, together: Any
) -> dict[str, Any]:
    steps = llm.engine.totals.steps
    # Or rank 0 might be done, and this rank with it, before it begins to count.
    dist.barrier(together)
    agreed.seconds = logged.seconds = 0.0
    began = perf_counter()
    llm.generate([[4, 5, 6]] * 4, params)
    took, steps = perf_counter() - began, llm.engine.totals.steps - steps
    step_us = took / steps * 1e6
    agreement_us, log_us = (each.seconds / steps * 1e6 for each in (agreed, logged))
    return {
        "steps": steps,
        "step_us": step_us,
        "agreement_us": agreement_us,
        "log_us": log_us,
        "share": (agreement_us + log_us) / step_us,
    }


def main() -> None:
    """Print what each rank has measured, a line of JSON for each; rank 0 writes both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=at_least_one, default=32)
    parser.add_argument("--layers", type=at_least_one, default=30)
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as own:
        if dist.get_rank() == 0:
            model(Path(own), asked.layers)
        told = [own]
        dist.broadcast_object_list(told, src=0)  # all ranks load the same model
        found = measured(Path(told[0]), asked.tokens, asked.rounds)
    print(json.dumps(found), flush=True)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    if dist.get_rank() == 0:
        save("agreement", {"layers": asked.layers, "rows": 4, "ranks": every}, asked.json)


if __name__ == "__main__":
    main()
