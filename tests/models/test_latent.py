"""Latents in the cache: what they take, and that the model computes what it does on its own."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from stepweave.clusters.model_shape import Format, ShapeConfig
from stepweave.models.cache_dtype import CacheDType, CacheForm
from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import UnsupportedModel
from stepweave.models.invariant import by_head
from stepweave.models.paged_cache import LayerShape, PagedCache, bytes_per_block
from stepweave.models.support import plain_experts
from stepweave.testing.models import tiny_model
from tests.models.families import built, tiny_config
from tests.models.paged_rows import PagedRows

LATENT, TURNED, EACH = 16, 8, 16 + 16  # of the tiny model; a head's key and value
HEADS, LAYERS, BLOCK = 4, 2, 4
TEXT = [5, 9, 40, 7, 33, 21, 60, 11, 8, 72, 19, 4, 55]


def hf(dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    config = tiny_config("deepseek_v3")
    assert config is not None
    model = built(config, dtype)
    plain_experts(model)
    return model


@cache
def model(form: CacheForm) -> CausalLM:
    return CausalLM.wrap(hf(), invariant=False, cache_form=form)


@pytest.mark.parametrize("kept", get_args(CacheDType))
def test_a_token_takes_its_latent_and_the_part_of_keys_that_all_heads_share(
    kept: CacheDType,
) -> None:
    lm = model("auto")
    numbers = LAYERS * (LATENT + TURNED)
    each = 8 * numbers if kept == "auto" else numbers + 4 * LAYERS  # a scale for both
    shapes = lm.layer_shapes
    assert bytes_per_block(shapes, BLOCK, torch.float64, kept) == BLOCK * each
    paged = lm.new_cache(5, BLOCK, kept)
    assert sum(tensor.nbytes for tensor in paged.tensors) == 5 * BLOCK * each
    assert lm.notes == (f"keeps latents in place of keys and values: {8 * numbers} bytes a token",)
    expanded = model("expanded")
    assert expanded.notes == ()
    assert sum(shape.elements for shape in expanded.layer_shapes) == LAYERS * HEADS * EACH


@pytest.mark.parametrize("form", ["latent", "expanded"])
def test_a_simulated_cluster_counts_the_bytes_that_are_kept(form: CacheForm) -> None:
    config = model(form).config
    shape = ShapeConfig.model_validate(
        {
            "describes": "the tiny model, by its config.json",
            "layers": config.num_hidden_layers,
            "hidden": config.hidden_size,
            "heads": config.num_attention_heads,
            "kv_heads": config.num_key_value_heads,
            "head_dim": config.v_head_dim,
            "ffn": config.intermediate_size,
            "vocab": config.vocab_size,
            "latent": {
                "query": config.q_lora_rank,
                "key_value": config.kv_lora_rank,
                "rope": config.qk_rope_head_dim,
                "no_rope": config.qk_nope_head_dim,
                "value": config.v_head_dim,
                "cache": form,
            },
        }
    )
    formats: list[tuple[Format, CacheDType]] = [("bfloat16", "auto"), ("float8", "float8_e4m3")]
    for numbers, stored in formats:
        kept = bytes_per_block(model(form).layer_shapes, 1, torch.bfloat16, stored)
        told = shape.model_copy(update={"cache": numbers})
        assert told.layers * told.cache_bytes(1) == kept


def logits(lm: CausalLM, *sizes: int) -> Tensor:
    """Of the text in chunks of these sizes, then by token; drafts are forgotten on the way."""
    rows, parts, at = PagedRows(lm), [], 0
    for size in (*sizes, *[1] * (len(TEXT) - sum(sizes))):
        rows.feed(("a", [3, 3, 3]), masked=1)
        rows.rewind("a", 3)
        parts += rows.feed(("a", TEXT[at : at + size]), ("b", [7, 7]), spare_blocks=1)[:1]
        at += size
    return torch.cat(parts)


def test_logits_are_those_of_expanded_keys_and_of_the_model_itself() -> None:
    own = hf()(torch.tensor([TEXT]), use_cache=False).logits[0]
    for form in get_args(CacheForm):
        torch.testing.assert_close(logits(model(form), 6, 3), own, rtol=0, atol=1e-5)


def test_in_invariant_arithmetic_bits_depend_on_neither_chunks_nor_drafts() -> None:
    lm = CausalLM.wrap(hf(torch.float32), invariant=True)
    assert lm.layer_shapes[0].within
    whole = logits(lm, len(TEXT))
    assert torch.equal(logits(lm, 5, 4), whole)
    assert torch.equal(logits(lm), whole)


@pytest.mark.parametrize("turned", [False, True])
def test_products_of_heads_have_the_bits_that_each_token_has_alone(turned: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(37, 4, 24, generator=draw)
    weight = torch.randn(4, 40, 24, generator=draw)
    weight = weight.transpose(1, 2) if turned else weight.reshape(4, 24, 40)
    found = by_head(x, weight)
    torch.testing.assert_close(found, torch.einsum("thk,hkn->thn", x, weight))
    alone = [by_head(x[at : at + 1], weight) for at in range(37)]
    assert torch.equal(torch.cat(alone), found)


@pytest.mark.parametrize("kept", get_args(CacheDType))
def test_values_are_the_first_numbers_of_keys_and_move_with_them(kept: CacheDType) -> None:
    shape = LayerShape(1, 7, 5, within=True)
    paged = PagedCache([shape] * 2, 4, 2, torch.float32, "cpu", cache_dtype=kept)
    new = torch.randn(3, 1, 7, generator=torch.Generator().manual_seed(1))
    new[:, 0, 6] = 50.0  # values take the scale of their keys, though they are far smaller
    paged.write(1, torch.tensor([2, 3, 4]), new, new[..., :5])
    paged.move(torch.tensor([2]), torch.tensor([6]))
    paged.copy_block(1, 2)
    tables = torch.tensor([[1, 2, 3]])
    k, v = paged.gather(1, tables)
    assert torch.equal(v, k[..., :5])
    error = {"auto": 0.0, "int8": 0.2, "float8_e4m3": 1.0}[kept]
    torch.testing.assert_close(k[0, [0, 1, 2, 4]], new[[0, 1, 0, 0]], rtol=0, atol=error)
    assert not paged.keys[0].view(torch.int8).any(), "other layers are left alone"


def test_a_model_without_latents_is_refused_where_they_are_asked_for() -> None:
    with pytest.raises(UnsupportedModel, match=r"no latent attention.*kv_cache_form"):
        CausalLM.wrap(tiny_model(), invariant=False, cache_form="latent")


def test_taking_the_model_over_again_gives_it_its_own_expansion_back() -> None:
    taken: Any = hf()
    assert CausalLM.wrap(taken, invariant=False).layer_shapes[0].within
    again = CausalLM.wrap(taken, invariant=False, cache_form="expanded")
    torch.testing.assert_close(logits(again, 6), logits(model("expanded"), 6), rtol=0, atol=1e-5)
