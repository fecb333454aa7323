"""Stages of a model: each has its own layers and weights only, and together they are the model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from stepweave.models.attention import AttentionBatch
from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import ModelError, UnsupportedModel
from stepweave.models.stage import Stage
from stepweave.models.stage_lm import StageLM
from stepweave.models.trial import TwoRows
from stepweave.testing.models import tiny_model
from tests.models.families import built, families, tiny_config

SAMPLE = ("granite", "gemma3_text", "mixtral", "deepseek_v3", "gpt2")
TOKENS = 11


@pytest.fixture(autouse=True)
def quiet_library() -> Iterator[None]:
    """Building models of sizes that nobody has makes transformers warn."""
    logging: Any = transformers.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.enable_progress_bar()
    logging.set_verbosity(before)


def ids_of(model: CausalLM) -> Tensor:
    return (torch.arange(TOKENS) * 5 + 3) % model.vocab_size


def passed(stages: list[StageLM], features: tuple[int, ...] | None = None) -> tuple[Tensor, Tensor]:
    """Logits and hidden states of a prompt in two chunks, through all stages."""
    rows = [TwoRows(stage, TOKENS) for stage in stages]
    for stage in stages:
        stage.record_features(features)
    found = [
        through(stages, [each.batch((0, *chunk)) for each in rows], chunk)
        for chunk in ((0, 7), (7, TOKENS))
    ]
    return torch.cat([logits for logits, _ in found]), torch.cat([hidden for _, hidden in found])


def through(
    stages: list[StageLM], batches: list[AttentionBatch], chunk: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    arrived: Tensor | None = None
    for stage, batch in zip(stages, batches, strict=True):
        assert arrived is None or arrived.shape == (chunk[1] - chunk[0], stage.arrives)
        departs = stage.departs
        arrived, hidden = stage.forward(ids_of(stage)[slice(*chunk)], batch, arrived=arrived)
        assert stage.stage.last or arrived.shape[-1] == departs
    assert arrived is not None
    return arrived, hidden


def alone(model: CausalLM, features: tuple[int, ...] | None = None) -> tuple[Tensor, Tensor]:
    model.record_features(features)
    rows = TwoRows(model, TOKENS)
    found = [
        model.forward(ids_of(model)[slice(*chunk)], rows.batch((0, *chunk)))
        for chunk in ((0, 7), (7, TOKENS))
    ]
    return torch.cat([logits for logits, _ in found]), torch.cat([hidden for _, hidden in found])


def check(family: str, folder: Path) -> str:
    """Load a family's tiny model whole and in stages: the same bits, or a `ModelError`."""
    config = tiny_config(family)
    if config is None:
        return "not tried"
    built(config, torch.float64).save_pretrained(folder)
    try:
        whole = CausalLM.load(folder, dtype="float64", invariant=False)
    except ModelError:
        return "not served"
    layers = whole.num_layers
    try:
        stages = [
            StageLM.load_stage(folder, Stage(index, 2), dtype="float64", invariant=False)
            for index in range(2)
        ]
    except ModelError as error:
        return f"refused: {error}"
    assert [len(stage.layer_shapes) for stage in stages] == [-(-layers // 2), layers // 2]
    for features in (None, (layers, 0, 1)):
        for mine, theirs in zip(passed(stages, features), alone(whole, features), strict=True):
            assert torch.equal(mine, theirs), f"{family}, features {features}"
    return "served"


@pytest.mark.parametrize("family", SAMPLE)
def test_the_stages_of_a_family_compute_the_bits_of_the_whole(family: str, tmp_path: Path) -> None:
    assert check(family, tmp_path) == "served"


@pytest.mark.nightly
@pytest.mark.parametrize("family", families())
def test_the_stages_of_every_family_compute_its_bits_or_are_refused(
    family: str, tmp_path: Path
) -> None:
    check(family, tmp_path)


def llama(layers: int = 5) -> PreTrainedModel:
    return tiny_model("llama", 0, torch.float64, num_hidden_layers=layers)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_any_number_of_stages_has_the_bits_of_the_whole_in_invariant_arithmetic(count: int) -> None:
    stages = [StageLM(llama(), Stage(index, count), invariant=True) for index in range(count)]
    whole = CausalLM.wrap(llama(), invariant=True)
    for features in (None, (0, 2, 5)):
        for mine, theirs in zip(passed(stages, features), alone(whole, features), strict=True):
            assert torch.equal(mine, theirs)


def test_a_stage_reads_its_own_weights_only(tmp_path: Path) -> None:
    llama(4).save_pretrained(tmp_path)
    whole = CausalLM.load(tmp_path, invariant=False)
    stages = [StageLM.load_stage(tmp_path, Stage(index, 4), invariant=False) for index in range(4)]

    def names(model: CausalLM) -> set[str]:
        return {name for name, _ in model.hf.named_parameters()}

    for index, stage in enumerate(stages):
        others = {name for name in names(whole) if f".{index}." not in name and ".layers." in name}
        assert names(stage) <= names(whole) - others
        assert any(f"layers.{index}." in name for name in names(stage))
    assert set().union(*map(names, stages)) == names(whole)
    held = ["lm_head.weight" in names(stage) for stage in stages]
    assert held == [False, False, False, True]
    held = ["model.embed_tokens.weight" in names(stage) for stage in stages]
    assert held == [True, False, False, True], "a drafter may read it on the last stage"


def test_a_weight_that_a_stage_needs_and_the_file_lacks_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    llama(4).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.3.mlp.up_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    StageLM.load_stage(tmp_path, Stage(0, 2), invariant=False)
    with pytest.raises(ModelError, match=r"lack model\.layers\.3\.mlp\.up_proj\.weight"):
        StageLM.load_stage(tmp_path, Stage(1, 2), invariant=False)
    weights["model.layers.9.mlp.up_proj.weight"] = torch.zeros(1)
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"have model\.layers\.9\.mlp\.up_proj\.weight"):
        StageLM.load_stage(tmp_path, Stage(0, 2), invariant=False)


def test_a_model_whose_later_layers_read_the_embeddings_is_refused() -> None:
    model = llama(4)
    seen: list[Tensor] = []
    base: Any = model.base_model

    def remember(module: nn.Module, args: Any, kwargs: Any) -> None:
        seen[:] = [kwargs["inputs_embeds"]]

    def add(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output + seen[0]

    base.register_forward_pre_hook(remember, with_kwargs=True)
    base.layers[3].register_forward_hook(add)
    with pytest.raises(UnsupportedModel, match="its later layers read the embeddings"):
        StageLM(model, Stage(1, 2), invariant=False)


def test_more_stages_than_layers_are_refused_with_both_numbers() -> None:
    with pytest.raises(ModelError, match="2 layers cannot be divided into 3 stages"):
        StageLM(llama(2), Stage(0, 3), invariant=False)
