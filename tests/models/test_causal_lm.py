"""Each family on the paged cache says what its own `generate` says."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GenerationConfig,
)
from transformers.models.llama.modeling_llama import LlamaAttention

from stepweave.models import attention
from stepweave.models.attention import AttentionBatch
from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import (
    AttentionNotCalled,
    NotInvariant,
    UnsupportedModel,
)
from stepweave.models.kernels.reference import How
from stepweave.models.paged_cache import LayerShape
from stepweave.testing.models import FAMILIES, save_tiny, tiny_model
from tests.models.paged_rows import PagedRows, own_greedy
from tests.shares import one_in

COUNT = 24
FAMILY = pytest.mark.parametrize("family", sorted(FAMILIES))


def prompts(seed: int, rows: int = 3) -> dict[str, list[int]]:
    draw = random.Random(seed)
    return {
        f"request{row}": [draw.randrange(96) for _ in range(draw.randint(1, 21))]
        for row in range(rows)
    }


def greedy(
    rows: PagedRows, wanted: dict[str, list[int]], lengths: dict[str, int], seed: int
) -> dict[str, list[int]]:
    """Feed the wanted sequences in random chunks and windows, in random company.

    Returns the greedy token at every position from the end of the prompt on. Windows of decode
    rows are teacher-forced; now and then their end is replaced by wrong drafts and rejected.
    """
    draw = random.Random(seed)
    fed = dict.fromkeys(wanted, 0)
    said: dict[str, list[int]] = {name: [] for name in wanted}
    while pending := [name for name in wanted if fed[name] < len(wanted[name])]:
        company = draw.sample(pending, draw.randint(1, len(pending)))
        chunks, wrong = [], {}
        for name in company:
            left = len(wanted[name]) - fed[name]
            prefill = fed[name] < lengths[name]
            size = min(draw.randint(1, 11 if prefill else 4), left)
            new = wanted[name][fed[name] : fed[name] + size]
            wrong[name] = draw.randint(0, size - 1) if draw.random() < 0.3 else 0
            kept = size - wrong[name]
            chunks.append((name, new[:kept] + [(t + 1) % 96 for t in new[kept:]]))
        masked, spare = draw.choice([0, 0, 2]), draw.choice([0, 0, 20])
        for (name, new), logits in zip(
            chunks, rows.feed(*chunks, masked=masked, spare_blocks=spare), strict=True
        ):
            kept = len(new) - wrong[name]
            rows.rewind(name, wrong[name])
            for position, token in enumerate(logits[:kept].argmax(-1).tolist(), fed[name]):
                if position >= lengths[name] - 1:
                    said[name].append(token)
            fed[name] += kept
    return said


@pytest.mark.sampled(4)
@FAMILY
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("invariant", [True, False], ids=["invariant", "fast"])
def test_greedy_tokens_are_those_of_generate(
    family: str, dtype: torch.dtype, invariant: bool
) -> None:
    model = tiny_model(family, 1, dtype)
    lm = CausalLM.wrap(model, invariant=invariant)
    asked = prompts(5)
    answers = {name: own_greedy(model, prompt, COUNT) for name, prompt in asked.items()}
    assert all(len(set(answer)) > 4 for answer in answers.values()), "too bland to prove anything"
    wanted = {name: asked[name] + answers[name][:-1] for name in asked}
    for seed in range(2 if invariant else 1):
        rows = PagedRows(lm, block_size=(4, 5)[seed], seed=seed)
        lengths = {name: len(prompt) for name, prompt in asked.items()}
        assert greedy(rows, wanted, lengths, seed) == answers


def test_the_probe_of_greedy_tokens_bites() -> None:
    """The same comparison fails if one key in the cache is wrong."""
    model = tiny_model("llama", 1)
    lm = CausalLM.wrap(model)
    prompt = prompts(5)["request0"]
    answer = own_greedy(model, prompt, COUNT)
    rows = PagedRows(lm)
    rows.feed(("a", prompt))
    rows.cache.keys[1][rows.blocks["a"][0] * 4] += 3.0
    logits = rows.feed(("a", answer[:-1]))[0]
    assert logits.argmax(-1).tolist() != answer[1:]


def test_logits_are_computed_only_for_the_rows_asked_for() -> None:
    lm = CausalLM.wrap(tiny_model("gemma2", 2))
    cache = lm.new_cache(4, 4)
    batch = AttentionBatch(
        query_lens=(5,),
        block_tables=torch.tensor([[2, 3]]),
        positions=torch.arange(5),
        slots=torch.arange(8, 13),
        cache=cache,
    )
    ids = torch.tensor([5, 6, 7, 8, 9])
    every, hidden = lm.forward(ids, batch)
    some, same = lm.forward(ids, batch, torch.tensor([4, 1]))
    none, _ = lm.forward(ids, batch, torch.tensor([], dtype=torch.int64))
    assert every.shape == (5, lm.vocab_size)
    assert none.shape == (0, lm.vocab_size)
    assert torch.equal(some, every[[4, 1]])
    assert torch.equal(hidden, same)
    assert hidden.shape == (5, lm.hidden_size)
    assert every.abs().max() <= 4.0, "the model's final soft cap must apply"


def test_hidden_states_are_those_before_the_head() -> None:
    model = tiny_model("llama", 3)
    lm = CausalLM.wrap(model)
    batch = AttentionBatch(
        query_lens=(2,),
        block_tables=torch.tensor([[1]]),
        positions=torch.arange(2),
        slots=torch.arange(4, 6),
        cache=lm.new_cache(2, 4),
    )
    logits, hidden = lm.forward(torch.tensor([1, 2]), batch)
    whole: Any = model
    torch.testing.assert_close(whole.lm_head(hidden), logits)


def test_a_model_says_what_it_is() -> None:
    model = tiny_model("llama", eos_token_id=[3, 5], max_position_embeddings=77)
    model.generation_config.eos_token_id = 9
    lm = CausalLM.wrap(model)
    assert (lm.vocab_size, lm.context_length, lm.hidden_size, lm.num_layers) == (96, 77, 48, 3)
    assert lm.eos_token_ids == {3, 5, 9}
    assert lm.dtype == torch.float32
    assert lm.device == torch.device("cpu")
    assert lm.layer_shapes == (LayerShape(2, 16, 16),) * 3


def test_a_model_says_how_its_authors_have_tokens_drawn() -> None:
    model = tiny_model("llama")
    assert CausalLM.wrap(model).sampling_defaults == {}
    said = {"temperature": 0.6, "top_k": 50, "top_p": 1.0, "min_p": 0.1, "repetition_penalty": 1.1}
    untyped: Any = GenerationConfig
    model.generation_config = untyped(**said, max_new_tokens=9, do_sample=True)
    assert CausalLM.wrap(model).sampling_defaults == {**said, "max_tokens": 9}


def test_a_model_without_end_tokens_has_none() -> None:
    assert CausalLM.wrap(tiny_model("llama")).eos_token_ids == frozenset()


# --- what is refused


def test_a_model_with_attention_of_its_own_is_refused() -> None:
    size: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "num_attention_heads": 2}
    falcon = FalconForCausalLM(FalconConfig(num_hidden_layers=2, **size))
    bloom = BloomForCausalLM(BloomConfig(n_layer=2, **size))
    for model in (falcon, bloom):
        with pytest.raises(UnsupportedModel, match=f"{type(model).__name__}.*interface"):
            CausalLM.wrap(model)


def test_a_layer_that_skips_our_attention_is_named() -> None:
    model = tiny_model("llama")
    layers: Any = model.base_model.layers
    attend = layers[1].self_attn

    def own_way(hidden_states: torch.Tensor, **_: object) -> tuple[torch.Tensor, None]:
        return hidden_states, None

    attend.forward = own_way
    with pytest.raises(AttentionNotCalled, match=r"LlamaForCausalLM: of 3 layers, \[1\]"):
        CausalLM.wrap(model)


def test_a_layer_that_stops_calling_our_attention_is_noticed_in_the_pass() -> None:
    model = tiny_model("llama")
    lm = CausalLM.wrap(model)
    layers: Any = model.base_model.layers
    layers[2].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(AttentionNotCalled, match=r"\[2\] did not call"):
        PagedRows(lm).feed(("a", [1, 2, 3]))


def test_attention_that_does_something_unknown_is_refused() -> None:
    """Such as a bias on the scores: every layer calls us, yet the logits are others."""
    model = tiny_model("llama")
    own = LlamaAttention.forward

    def biased(self: Any, *args: Any, **kwargs: Any) -> Any:
        out, weights = own(self, *args, **kwargs)
        eager = self.config._attn_implementation == "eager"
        return (out * 1.5 if eager else out), weights

    layers: Any = model.base_model.layers
    layers[0].self_attn.forward = MethodType(biased, layers[0].self_attn)
    with pytest.raises(UnsupportedModel, match="differ by"):
        CausalLM.wrap(model)


@pytest.mark.parametrize(
    ("dtype", "invariant"), one_in(2, [torch.bfloat16, torch.float16], [True, False])
)
def test_half_precision_is_served_and_tried_out_as_well(
    dtype: torch.dtype, invariant: bool
) -> None:
    for family in FAMILIES:
        lm = CausalLM.wrap(tiny_model(family, 1, dtype), invariant=invariant)
        assert PagedRows(lm).feed(("a", [5, 6, 7]))[0].dtype == dtype
    model = tiny_model("llama", 1, dtype)
    layers: Any = model.base_model.layers
    own = layers[0].self_attn.forward

    def biased(*args: Any, **kwargs: Any) -> Any:
        out, weights = own(*args, **kwargs)
        eager = model.config._attn_implementation == "eager"
        return (out * 1.5 if eager else out), weights

    layers[0].self_attn.forward = biased
    with pytest.raises(UnsupportedModel, match="differ by"):
        CausalLM.wrap(model, invariant=invariant)


WRONG: dict[str, tuple[str, Callable[[How], How]]] = {
    "no soft cap": ("gemma2", lambda how: replace(how, softcap=None)),
    "other scores": ("gemma2", lambda how: replace(how, scaling=how.scaling * 1.5)),
    "no sinks": ("gpt_oss", lambda how: replace(how, sinks=None)),
    "a narrower window": ("mistral", lambda how: replace(how, window=(how.window or 9) - 1)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("wrong", WRONG)
def test_attention_that_is_a_little_wrong_is_found_in_half_precision(
    wrong: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its effect on the logits is smaller than the rounding of other models."""
    family, changed = WRONG[wrong]
    own: Any = attention.attend_layer

    def attend(*args: Any, **kwargs: Any) -> Any:
        *others, how = args
        return own(*others, changed(how), **kwargs)

    monkeypatch.setattr(attention, "attend_layer", attend)
    with pytest.raises(UnsupportedModel, match="differ by"):
        CausalLM.wrap(tiny_model(family, 1, dtype), invariant=False)


@pytest.mark.parametrize("family", ["llama", "phi3", "gpt_oss"])
def test_what_rounding_does_to_a_deep_model_is_no_difference(family: str) -> None:
    """Such as other experts for a token, where two are about as good."""
    model = tiny_model(family, 1, torch.bfloat16, num_hidden_layers=24)
    assert CausalLM.wrap(model, invariant=False).num_layers == 24


def test_a_window_that_does_not_reach_attention_is_refused() -> None:
    model = tiny_model("gemma2")
    layers: Any = model.base_model.layers
    layers[0].self_attn.sliding_window = None
    with pytest.raises(UnsupportedModel, match="layer 0 has sliding window 9"):
        CausalLM.wrap(model)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "some layers only"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "does not say rope_parameters.original"),
        ({"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "linear_att"),
        ({"alibi": True}, "ALiBi"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"use_bidirectional_attention": True}, "looks ahead"),
    ],
)
def test_what_a_paged_cache_cannot_give_is_refused_by_name(
    config: dict[str, Any], why: str
) -> None:
    model = tiny_model("llama")
    for key, value in config.items():
        setattr(model.config, key, value)
    with pytest.raises(UnsupportedModel, match=f"LlamaForCausalLM cannot be served: .*{why}"):
        CausalLM.wrap(model)


def test_arithmetic_that_depends_on_the_batch_is_refused_in_invariant_mode() -> None:
    model = tiny_model("llama")
    layers: Any = model.base_model.layers
    own = layers[1].mlp.forward
    layers[1].mlp.forward = lambda x: own(x) * (1 + 1e-6 * x.shape[1])
    with pytest.raises(NotInvariant, match="invariant=False"):
        CausalLM.wrap(model)
    CausalLM.wrap(model, invariant=False)


# --- loading


def test_a_saved_model_is_loaded_and_runs(tmp_path: Path) -> None:
    save_tiny(tmp_path / "model", "qwen3", 4)
    for dtype, wanted in {
        "auto": torch.float32,
        "float64": torch.float64,
        "bfloat16": torch.bfloat16,
    }.items():
        lm = CausalLM.load(tmp_path / "model", dtype=dtype, invariant=False)  # type: ignore[arg-type]
        assert lm.dtype == wanted
        assert lm.eos_token_ids == {0}
        logits = PagedRows(lm).feed(("a", [5, 6, 7]))[0]
        assert logits.dtype == wanted
