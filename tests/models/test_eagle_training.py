"""Training sees what drafting will see, counts as decoding counts, and writes what loads."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stepweave.models.attention import AttentionBatch
from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.eagle_network import EagleConfig, EagleNetwork
from stepweave.testing.models import tiny_model
from training import eagle, medusa
from training.eagle import export, new_head
from training.measuring import Conditional, table
from training.train import load_model
from training.unrolling import read, unroll

TARGET = Path(__file__).parents[2] / "models" / "embedded" / "target"


def test_what_training_unrolls_is_what_drafting_computes() -> None:
    """Chains from every start at once, in plain attention, against the cache, one at a time."""
    hf = tiny_model("llama", 4, torch.float64)
    llama: Any = hf.config
    llama.num_hidden_layers = 2
    network = EagleNetwork(EagleConfig("eagle", llama, llama.hidden_size))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for weight in network.parameters():
            weight.detach().normal_(std=0.2)
        features = torch.randn(9, llama.hidden_size, dtype=torch.float64)
        ids: list[int] = torch.randint(llama.vocab_size, (9,)).tolist()
    llama.num_hidden_layers = 3
    head = EagleHead(network, CausalLM.wrap(hf, invariant=False))
    embedding: Any = hf.get_input_embeddings()
    with torch.no_grad():
        unrolled = list(
            unroll(head.network, embedding.weight, torch.tensor([ids]), features[None], 3)
        )
    assert [states.shape[1] for states in unrolled] == [8, 7, 6]

    def place(start: int, stop: int) -> AttentionBatch:
        where = torch.arange(start, stop)
        return AttentionBatch(
            (stop - start,), torch.tensor([[2, 1, 3]]), where, slots[where], cache
        )

    slots = torch.tensor([8, 9, 10, 11, 4, 5, 6, 7, 12])
    for start in range(6):
        cache = head.new_cache(4, 4)
        known = torch.tensor(ids[1 : start + 2])
        _, states = head.forward(known, features[: start + 1], place(0, start + 1))
        for step in range(3):
            torch.testing.assert_close(unrolled[step][0, start], states[-1], rtol=0, atol=1e-10)
            at = start + step + 1
            if step < 2:
                token = torch.tensor([ids[at + 1]])
                _, states = head.forward(token, states[-1:], place(at, at + 1))


def test_training_reads_the_states_that_a_watched_target_gives() -> None:
    target = load_model(TARGET)
    ids = torch.arange(5, 15)
    features, last = read(target, ids[None], (4, 1, 2))
    plain, same = read(target, ids[None], None)
    assert torch.equal(plain, same)
    assert torch.equal(last, same)
    lm = CausalLM.load("embedded", invariant=False)
    for layers, wanted in (((4, 1, 2), features), (None, last)):
        lm.record_features(layers)
        where = torch.arange(10)
        batch = AttentionBatch(
            (10,), torch.tensor([[1, 2, 3]]), where, where + 4, lm.new_cache(4, 4)
        )
        _, found = lm.forward(ids, batch)
        torch.testing.assert_close(found, wanted[0], rtol=1e-4, atol=1e-4)


def test_decoding_is_replayed_draft_by_draft() -> None:
    right, wrong = True, False
    agrees = torch.tensor(
        [
            [right, right, right],  # three accepted, and the target's own: on to the fifth
            [wrong, wrong, wrong],
            [wrong, wrong, wrong],
            [wrong, wrong, wrong],
            [right, wrong, right],  # what follows a wrong draft was never tried
            [wrong, wrong, wrong],
            [right, right, wrong],  # the end of the answer: two are left to draft
            [right, wrong, wrong],
        ]
    )
    found = Conditional()
    found.replay(agrees)
    assert found == Conditional(tried=[3, 3, 1], right=[3, 2, 1], steps=3, tokens=9)
    assert found.rates() == [1.0, 2 / 3, 1.0]
    assert "| all | 100.0 % | 66.7 % | 100.0 % | 3.00 |" in table({"all": found})
    assert (found + found).tried == [6, 6, 2]


@pytest.mark.parametrize("style", ["eagle", "eagle3"])
def test_what_training_writes_is_the_published_layout_and_loads(style: str, tmp_path: Path) -> None:
    draft_ids = torch.arange(3, 1024, 2) if style == "eagle3" else None
    network = new_head(load_model(TARGET), draft_ids)
    for _ in range(2):  # over an older one, too
        export(network, draft_ids, tmp_path / "head")
    assert [each.name for each in tmp_path.iterdir()] == ["head"]
    written = load_file(tmp_path / "head" / "model.safetensors")
    if style == "eagle3":
        assert {"d2t", "t2d", "midlayer.hidden_norm.weight", "lm_head.weight"} <= set(written)
        assert int(written["t2d"].sum()) == 511
    else:
        assert "layers.0.input_layernorm.weight" not in written
        assert "layers.1.input_layernorm.weight" in written
    head = EagleHead.load(tmp_path / "head", CausalLM.load("embedded", invariant=False))
    assert head.style == style
    if draft_ids is not None:
        assert head.draft_ids is not None
        assert torch.equal(head.draft_ids, draft_ids)
        assert head.feature_layers == (1, 2, 4)
    loaded = head.network.state_dict()
    for name, weight in network.state_dict().items():
        assert torch.equal(loaded[name], weight.half().float())


@pytest.mark.parametrize("module", [eagle, medusa])
def test_what_was_trained_is_measured_in_the_precision_of_its_target(
    module: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {eagle: "eagle3", medusa: "medusa"}[module]
    out = str(TARGET.parent / name)
    asked = ["--evaluate", "--out", out, "--prompts", "1", "--stories", "1"]
    monkeypatch.setattr(sys, "argv", [name, *asked])
    module.main()
    assert "| all |" in capsys.readouterr().out
