"""transformers: `generate` on a padded batch, with an assistant, with look-up; `generate_batch`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

Tokens = list[list[int]]
BLOCK = 16


def start(work: dict[str, Any]) -> tuple[Callable[[], Tokens], dict[str, Any]]:
    """Loads it; what runs it, and what it says of itself."""
    if work["threads"] is not None:
        torch.set_num_threads(work["threads"])
    model = _model(work["target"], work["dtype"])
    about = {"transformers": transformers.__version__, "threads": torch.get_num_threads()}
    match work["how"]:
        case "generate_batch":
            return _continuous(model, work), about
        case "assistant":
            return _generate(
                model, work, assistant_model=_model(work["draft"], work["dtype"])
            ), about
        case "lookup":
            return _generate(model, work, prompt_lookup_num_tokens=work["drafts"]), about
    return _generate(model, work), about


def _model(folder: str, dtype: str) -> Any:
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    for config in (model.config, model.generation_config):
        config.eos_token_id = None  # every row runs to its last token
    return model.eval()


def _generate(model: Any, work: dict[str, Any], **how: Any) -> Callable[[], Tokens]:
    """All prompts at once, padded on the left to the longest."""
    prompts, count = work["prompts"], work["tokens"]
    widest = max(map(len, prompts))
    ids = torch.tensor([[0] * (widest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (widest - len(p)) + [1] * len(p) for p in prompts])
    if "assistant_model" in how:
        how["assistant_model"].generation_config.num_assistant_tokens = work["drafts"]
        how["assistant_model"].generation_config.num_assistant_tokens_schedule = "constant"
        how["assistant_model"].generation_config.assistant_confidence_threshold = 0.0

    def run() -> Tokens:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
                **how,
            )
        tokens: Tokens = found[:, widest:].tolist()
        return tokens

    return run


def _continuous(model: Any, work: dict[str, Any]) -> Callable[[], Tokens]:
    """`generate_batch`, with a cache of the size of the work: its default is the machine's."""
    prompts, count = work["prompts"], work["tokens"]
    known = inspect.signature(ContinuousBatchingConfig).parameters
    wanted: dict[str, Any] = {
        "page_size" if "page_size" in known else "block_size": BLOCK,
        "num_blocks": sum(-(-(len(p) + count) // BLOCK) for p in prompts) + 8,
        "max_batch_tokens": 256,
        "use_cuda_graph": False,
    }
    made: Any = GenerationConfig
    wished = made(do_sample=False, max_new_tokens=count, eos_token_id=-1, pad_token_id=0)

    def run() -> Tokens:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = model.generate_batch(
                [list(p) for p in prompts],
                generation_config=wished,
                continuous_batching_config=ContinuousBatchingConfig(**wanted),
                progress_bar=False,
            )
        rows = sorted(found.items(), key=lambda item: int(item[0].rsplit("_", 1)[1]))
        failed = next((row.error for _, row in rows if row.error), None)
        if failed is not None:
            raise RuntimeError(failed)
        return [list(row.generated_tokens)[:count] for _, row in rows]

    return run
