"""What a target shows its EAGLE head: the hidden states that transformers itself reports."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepweave.models.attention import AttentionBatch
from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import ModelError, UnsupportedModel
from stepweave.testing.models import FAMILIES, tiny_model

IDS = torch.tensor([5, 17, 3, 90, 41, 8, 60])


def run(
    lm: CausalLM, *chunks: tuple[int, int, int], cache: Any = None, masked: int = 0
) -> tuple[Tensor, Tensor]:
    """Chunks (row, start, stop) of `IDS` in one pass, each with masked tokens after it."""
    cache = lm.new_cache(5, 4) if cache is None else cache
    ids, positions, slots = [], [], []
    for row, start, stop in chunks:
        where = torch.arange(start, stop)
        ids += [IDS[start:stop], torch.full((masked,), -1)]
        positions += [where, torch.full((masked,), -1)]
        slots += [where + 4 + 8 * row, torch.zeros(masked, dtype=torch.int64)]
    batch = AttentionBatch(
        query_lens=tuple(stop - start + masked for _, start, stop in chunks),
        block_tables=torch.tensor([[1 + 2 * row, 2 + 2 * row] for row, _, _ in chunks]),
        positions=torch.cat(positions),
        slots=torch.cat(slots),
        cache=cache,
    )
    return lm.forward(torch.cat(ids), batch)


def reported(model: Any) -> tuple[Tensor, ...]:
    """By transformers, from the model's own attention: what enters each layer, and the last."""
    ours = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(IDS[None], use_cache=False, output_hidden_states=True)
    model.set_attn_implementation(ours)
    states: tuple[Tensor, ...] = output.hidden_states
    return states


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("invariant", [True, False], ids=["invariant", "fast"])
def test_features_are_what_enters_the_layers_asked_for(family: str, invariant: bool) -> None:
    model: Any = tiny_model(family, 1, torch.float64)
    lm = CausalLM.wrap(model, invariant=invariant)
    states = reported(model)
    plain_logits, last = run(lm, (0, 0, len(IDS)))
    lm.record_features((2, 0, 3, 1))
    logits, features = run(lm, (0, 0, len(IDS)), masked=2)
    assert features.shape == (len(IDS) + 2, 4 * lm.hidden_size)
    two, zero, end, one = torch.split(features[: len(IDS)], lm.hidden_size, dim=-1)
    for found, wanted in ((two, states[2]), (zero, states[0]), (one, states[1])):
        # Norms are in single precision in some families, whatever the model is in.
        torch.testing.assert_close(found, wanted[0], rtol=1e-5, atol=1e-5)
    decoder = model.get_decoder()
    with torch.no_grad():
        torch.testing.assert_close(decoder.norm(end), states[3][0], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(end, last, atol=1e-3), "it must be from before the final norm"
    torch.testing.assert_close(logits[: len(IDS)], plain_logits, rtol=1e-5, atol=1e-5)
    lm.record_features(None)
    _, again = run(lm, (0, 0, len(IDS)))
    assert torch.equal(again, last)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_in_invariant_mode_features_have_the_same_bits_in_every_batch(family: str) -> None:
    lm = CausalLM.wrap(tiny_model(family, 2))
    lm.record_features((1, 3))
    _, whole = run(lm, (0, 0, 7))
    cache = lm.new_cache(5, 4)
    _, first = run(lm, (0, 0, 4), (1, 0, 7), cache=cache)
    _, rest = run(lm, (1, 6, 7), (0, 4, 7), cache=cache, masked=1)
    assert torch.equal(first, torch.cat([whole[:4], whole]))
    assert torch.equal(rest[0], whole[6])
    assert torch.equal(rest[2:5], whole[4:])


def test_one_layer_may_be_asked_for_twice() -> None:
    lm = CausalLM.wrap(tiny_model("llama", 2))
    lm.record_features((1, 1))
    _, features = run(lm, (0, 0, 3))
    assert torch.equal(features[:, : lm.hidden_size], features[:, lm.hidden_size :])


def test_watching_anew_leaves_no_hook_behind() -> None:
    model = tiny_model("llama", 2)
    lm = CausalLM.wrap(model)
    lm.record_features((0, 2, 3))
    lm.record_features((1,))
    again = CausalLM.wrap(model)
    hooks = [len(m._forward_pre_hooks) for m in model.modules()]
    assert sum(hooks) == 0, "the new owner starts without"
    _, hidden = run(again, (0, 0, 3))
    assert hidden.shape[1] == again.hidden_size
    assert not lm._streams


@pytest.mark.parametrize("layers", [(4,), (0, -1), (7, 0)])
def test_a_layer_that_is_not_there_is_refused(layers: tuple[int, ...]) -> None:
    lm = CausalLM.wrap(tiny_model("llama", 2))
    lm.record_features((1,))
    with pytest.raises(ModelError, match=r"at layer (4|-1|7); it has layers 0 to 2, and 3 stands"):
        lm.record_features(layers)
    _, features = run(lm, (0, 0, 3))
    assert features.shape == (3, lm.hidden_size), "what was watched before still is"


def test_no_layer_at_all_is_refused() -> None:
    with pytest.raises(ModelError, match="no layer at all"):
        CausalLM.wrap(tiny_model("llama", 2)).record_features(())


def test_decoder_layers_that_cannot_be_found_are_a_clear_error() -> None:
    model: Any = tiny_model("llama", 2)
    lm = CausalLM.wrap(model)
    model.model.more = nn.ModuleList([nn.Identity() for _ in range(3)])
    with pytest.raises(UnsupportedModel, match=r"cannot find its decoder layers.* 2 lists of 3"):
        lm.record_features((1,))


def test_hidden_states_of_another_form_are_a_clear_error() -> None:
    """Some models pass several streams from layer to layer."""
    lm = CausalLM.wrap(tiny_model("llama", 2))
    lm.record_features((1,))
    layer: Any = lm.hf
    layer.model.layers[1].register_forward_pre_hook(
        lambda module, args: lm._streams.update({1: torch.zeros(2, 1, 8, 48)})
    )
    with pytest.raises(UnsupportedModel, match=r"at layer 1 .* shape \(2, 1, 8, 48\)"):
        run(lm, (0, 0, 3))


def test_layers_may_return_tuples_and_take_keywords() -> None:
    """As those of older families do."""
    lm = CausalLM.wrap(tiny_model("llama", 2))
    keep: Any = lm._keep_stream
    first = nn.Identity()
    calls: list[Any] = []
    last = SimpleNamespace(register_forward_hook=calls.append)
    keep([first, last], 2)
    calls[0](None, (), (torch.ones(1, 2, 3), "cache"))
    assert torch.equal(lm._streams[2], torch.ones(1, 2, 3))
    entering: list[Any] = []
    named = SimpleNamespace(
        register_forward_pre_hook=lambda hook, with_kwargs: entering.append(hook)
    )
    keep([named, last], 0)
    entering[0](None, (), {"hidden_states": torch.zeros(1)})
    assert torch.equal(lm._streams[0], torch.zeros(1))
