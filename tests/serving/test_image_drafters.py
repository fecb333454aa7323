"""Prompts with images, drafted for by heads: the tokens of the plain loop at every depth.

Log-probabilities are that loop's too, and as many drafts are offered and kept at each depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.parameters import Resource
from stepweave.models.causal_lm import CausalLM
from stepweave.models.vision import Pixels
from stepweave.nodes.eagle import HEAD
from stepweave.nodes.mtp import MTP
from stepweave.requests.limits import Limits
from stepweave.requests.request import Request
from stepweave.serving.engine import Engine
from stepweave.serving.pipeline import compiled
from stepweave.testing.models import tiny_eagle, tiny_model, tiny_mtp
from stepweave.testing.vision import FAMILIES, VOCAB, tiny_vision_model
from tests.serving.matrix import DEPTHS, TREES
from tests.serving.reference import Expected, expected
from tests.serving.test_images import GRID, TEXT, Prompt, model, pixels, request, served
from tests.serving.test_matrix import check_logprobs

CONTEXT = 64
ONE, OTHER = pixels(1, GRID), pixels(2, GRID)
PROMPTS = (
    Prompt((*TEXT, ONE, 8, 41)),
    Prompt((*TEXT, OTHER, 8, 41)),  # other pixels, and all else the same
    Prompt((11, 12, 13, 14, 15)),
    Prompt((5, pixels(3, (1, 4, 4)), 6, ONE, *TEXT)),
)
SAMPLING: Mapping[str, dict[str, Any]] = {
    "greedy": {"max_tokens": 16, "logprobs": 2},
    "seeded": {"max_tokens": 16, "temperature": 0.8, "seed": 5, "logprobs": 1},
    "penalties": {"max_tokens": 16, "presence_penalty": 0.9, "logprobs": 0},
}
ROOMS: Mapping[str, Mapping[str, int | bool]] = {
    "room": {},
    "chunks": {"budget": 15},  # an image takes two steps
    "gives way": {"blocks": 20},
    "prefix cache": {"prefix_cache": True},
}


def sure_of_itself(family: str) -> Any:
    """The tiny model with less of its later layers, so that what the first one does decides."""
    hf: Any = tiny_vision_model(family).double()
    with torch.no_grad():
        for layer in hf.get_decoder().layers[1:]:
            layer.self_attn.o_proj.weight.mul_(0.15)
            layer.mlp.down_proj.weight.mul_(0.15)
    return hf


def reading_text(hf: Any) -> Any:
    """A Llama of the same weights, as far as it has them."""
    decoder = hf.get_decoder()
    sizes = {"vocab_size": VOCAB, "head_dim": decoder.config.head_dim}
    llama: Any = tiny_model("llama", 0, torch.float64, **sizes, max_position_embeddings=CONTEXT)
    weights = {f"model.{name}": each for name, each in decoder.state_dict().items()}
    weights["lm_head.weight"] = hf.lm_head.weight
    names = llama.state_dict()
    llama.load_state_dict({name: each for name, each in weights.items() if name in names})
    return llama


class Seeing:
    """The model itself over the text so far, with the images of the prompt."""

    def __init__(self, family: str, prompt: Prompt) -> None:
        self.hf = seen(family)
        ids = prompt.ids(model(family).encoder)
        image = self.hf.config.image_token_id
        self.kinds = [int(each == image) for each in ids]
        self.images = prompt.images

    def __call__(self, *, input_ids: Tensor, use_cache: bool) -> Any:
        given: dict[str, Any] = {}
        if self.images:
            kinds = self.kinds + [0] * (input_ids.shape[1] - len(self.kinds))
            given = {
                "pixel_values": torch.cat([patches(each) for each in self.images]),
                "image_grid_thw": torch.tensor([each.grid for each in self.images]),
                "mm_token_type_ids": torch.tensor([kinds], dtype=torch.int32),
            }
        return self.hf(input_ids=input_ids, use_cache=use_cache, **given)


@cache
def seen(family: str) -> Any:
    return sure_of_itself(family)


def patches(image: Pixels) -> Tensor:
    return torch.frombuffer(bytearray(image.patches), dtype=torch.float32).view(-1, 96).double()


@cache
def said(family: str, sampling: str) -> list[Expected]:
    found = []
    for uid, prompt in enumerate(PROMPTS):
        asked = request(family, uid, prompt, **SAMPLING[sampling])
        plain = Seeing(family, prompt)
        found.append(expected(plain, asked.prompt_ids, asked.params, context=CONTEXT))
    return found


def engine(
    family: str,
    method: str,
    depth: int,
    *,
    budget: int = 64,
    blocks: int = 100,
    prefix_cache: bool = False,
) -> Engine:
    kind, tree, tokens = TREES.get(method, (method, None, 3))
    hf = sure_of_itself(family)
    heads: dict[Resource[Any], object] = (
        {MTP: tiny_mtp(hf, context=CONTEXT)}
        if kind == "mtp"
        else {HEAD: tiny_eagle(reading_text(hf), kind, context=CONTEXT)}  # type: ignore[arg-type]
    )
    draft: dict[str, Any] = {"kind": kind, "after": "sample", "tokens": tokens}
    nodes: dict[str, Any] = {"draft": draft}
    if tree is not None:
        draft["tree"] = (
            [list(each) for each in tree] if isinstance(tree, tuple) else tree.model_dump()
        )
        nodes["keep_path"] = {"after": "sample"}
    scheduler = {"max_rows": 3, "token_budget": budget}
    config = load_config("async_vision", {"depth": depth, "scheduler": scheduler, "nodes": nodes})
    assert isinstance(config, PipelineConfig)
    limits = Limits(
        max_rows=3, token_budget=budget, block_size=4, num_blocks=blocks, context_length=CONTEXT,
        draft_tokens=tokens, max_queue=100,
    )  # fmt: skip
    return Engine(
        lambda resources: compiled(config, resources), CausalLM.wrap(hf, invariant=False), limits,
        resources=heads, prefix_cache=prefix_cache, executor="serial" if depth == 1 else "threads",
        check="strict" if depth == 1 else "off", watchdog_s=30.0,
    )  # fmt: skip


def counts(requests: Sequence[Request]) -> list[tuple[int, int]]:
    return [(each.drafted, each.accepted) for each in requests]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("method", ["mtp", "eagle", "eagle3", "eagle3 tree", "mtp grown"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_the_model_itself(
    family: str, method: str, room: str, sampling: str
) -> None:
    wanted = said(family, sampling)
    assert wanted[0].tokens != wanted[1].tokens, "the image counts"
    found = []
    for depth in DEPTHS:
        built = engine(family, method, depth, **ROOMS[room])  # type: ignore[arg-type]
        asked = [
            request(family, uid, prompt, **SAMPLING[sampling]) for uid, prompt in enumerate(PROMPTS)
        ]
        table = served(built, asked)
        for each, expecting in zip(asked, wanted, strict=True):
            assert each.output_ids == expecting.tokens
            check_logprobs(
                each.logprobs, each.params.logprobs, expecting.tokens, expecting.log_probs
            )
        assert table.totals.encoded >= 4
        if room == "gives way":
            assert table.preemptions > 0
        found.append(counts(asked))
    assert found[0] == found[1] == found[2]
    drafted, accepted = (sum(each) for each in zip(*found[0], strict=True))
    assert 0 < accepted < drafted
    assert sum(found[0][at][1] for at in (0, 1, 3)) > 0, "after images, too"
