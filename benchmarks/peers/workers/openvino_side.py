"""OpenVINO GenAI: its pipeline with continuous batching, on tokens."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import openvino
import openvino_genai

Tokens = list[list[int]]


def start(work: dict[str, Any]) -> tuple[Callable[[], Tokens], dict[str, Any]]:
    """Loads it; what runs it, and what it says of itself."""
    prompts, count = work["prompts"], work["tokens"]
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_seqs = len(prompts)
    scheduler.enable_prefix_caching = False  # prompts are computed in each round, as by the others
    scheduler.num_kv_blocks = len(prompts) * (-(-(max(map(len, prompts)) + count) // 32) + 2)
    precision = "f32" if work["dtype"] == "float32" else "bf16"
    hints: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
    }
    if work["threads"] is not None:
        hints["INFERENCE_NUM_THREADS"] = work["threads"]
    pipeline = openvino_genai.ContinuousBatchingPipeline(work["openvino"], scheduler, "CPU", hints)
    wanted = openvino_genai.GenerationConfig()
    wanted.max_new_tokens, wanted.ignore_eos, wanted.do_sample = count, True, False
    inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]

    def run() -> Tokens:
        found = pipeline.generate(inputs, [wanted] * len(inputs))
        return [list(each.m_generation_ids[0]) for each in found]

    return run, {"openvino-genai": version("openvino-genai"), "threads": work["threads"]}
