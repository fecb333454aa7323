"""How a model's authors have its tokens drawn: the numbers of its `generation_config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from transformers import GenerationConfig

NAMES: Final[Mapping[str, str]] = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "max_new_tokens": "max_tokens",
}
"""What is taken, and what the parameters of a request call it."""


def sampling_defaults(config: GenerationConfig | None) -> dict[str, Any]:
    """Parameters of requests, as the file has them: nobody has checked their values."""
    said = {} if config is None else config.to_diff_dict()
    return {ours: said[name] for name, ours in NAMES.items() if said.get(name) is not None}
