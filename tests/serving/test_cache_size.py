"""A cache whose size is left open fits into the memory that is free, on an emulated device."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import CompileFailed, NoMemory
from stepweave.models.loading import Loading
from stepweave.models.mtp_checkpoint import mtp_networks, of_module
from stepweave.models.paged_cache import bytes_per_block
from stepweave.models.source import EMBEDDED, EMBEDDED_MTP, resolve
from stepweave.serving import cache_size
from stepweave.serving.cache_size import SHARE, USUAL, blocks_of
from stepweave.serving.loading import load_engine
from tests.device.emulated import BACKEND, is_installed
from tests.models.families import built, tiny_config


@pytest.fixture(autouse=True)
def free() -> Iterator[None]:
    with is_installed():
        yield
    BACKEND.free = None


def on_the_device(name: str = "async", **settings: Any) -> PipelineConfig:
    config = load_config(name, {"executor": "emulated", **settings})
    assert isinstance(config, PipelineConfig)
    return config


@pytest.fixture(scope="module")
def target() -> CausalLM:
    with is_installed():
        return CausalLM.load("embedded", device="emulated", invariant=False)


def cache_bytes(model: CausalLM, blocks: int, block_size: int = 16) -> int:
    return blocks * block_size * sum(each.elements for each in model.layer_shapes) * 4


def test_it_takes_what_is_left_beside_the_steps(target: CausalLM) -> None:
    taken = []
    for mib in (160, 200):
        BACKEND.free = mib << 20
        blocks = blocks_of(on_the_device(), target)
        assert 0 < cache_bytes(target, blocks + 1) < SHARE * BACKEND.free
        taken.append(cache_bytes(target, blocks))
    more = taken[1] - taken[0]
    assert more == pytest.approx(SHARE * (40 << 20), rel=0.01), "the rest is for steps, in both"


def test_wider_steps_and_a_drafter_leave_less(target: CausalLM) -> None:
    BACKEND.free = 400 << 20
    plain = blocks_of(on_the_device(), target)
    assert blocks_of(on_the_device(**{"scheduler.token_budget": "6144"}), target) < plain
    assert blocks_of(on_the_device("async_speculation"), target) < plain
    assert blocks_of(on_the_device("async_eagle"), target) < plain


@pytest.mark.parametrize("own", [False, True], ids=["a folder", "the target's checkpoint"])
def test_a_module_is_one_more_layer_wherever_its_weights_are(
    target: CausalLM, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the configuration beside it says of its target."""
    (module,) = mtp_networks("embedded-mtp", target)
    weights = sum(each.numel() for each in module.state_dict().values()) * 4
    changes: dict[str, Any] = {}
    if own:
        for name, folder in (("embedded", "target"), ("embedded-mtp", "mtp")):
            file = Path(resolve(name, EMBEDDED | EMBEDDED_MTP)) / "model.safetensors"
            shutil.copy(file, tmp_path / f"{folder}.safetensors")
        monkeypatch.setattr(CausalLM, "checkpoint", str(tmp_path))
        changes["nodes.draft.model"] = None
    BACKEND.free = 400 << 20
    config = on_the_device("async_mtp", **changes)
    each = bytes_per_block([*target.layer_shapes, target.layer_shapes[-1]], 16, torch.float32)
    free = int(SHARE * BACKEND.free) - cache_size._step_bytes(config, target) - weights
    assert blocks_of(config, target) == free // each - 1


def test_further_modules_have_a_layer_each_and_leave_hidden_states(
    target: CausalLM, tmp_path: Path
) -> None:
    file = Path(resolve("embedded-mtp", EMBEDDED_MTP)) / "model.safetensors"
    weights = load_file(file)
    first = {name: each for name, each in weights.items() if of_module(name, target.num_layers)}
    assert all(f"layers.{target.num_layers}." in name for name in first)
    second = {
        name.replace(
            f"layers.{target.num_layers}.", f"layers.{target.num_layers + 1}."
        ): each.clone()
        for name, each in first.items()
    }
    save_file(first | second, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    head = Loading(invariant=False).mtp_head(tmp_path, target)
    BACKEND.free = 400 << 20
    config = on_the_device("async_mtp", **{"nodes.draft.model": str(tmp_path)})
    count, shapes = cache_size._drafter(config, target)
    assert count == 2 * 4 * sum(each.numel() for each in first.values())
    assert shapes == list(head.layer_shapes)
    assert len(shapes) == 3


def test_8_bits_let_as_many_more_blocks_fit(target: CausalLM) -> None:
    BACKEND.free = 160 << 20
    plain = blocks_of(on_the_device(), target)
    narrow = blocks_of(on_the_device(**{"model.kv_cache_dtype": "int8"}), target)
    assert narrow / plain == pytest.approx(4 * 32 / (32 + 4), rel=0.01), "heads of 32 numbers"


def test_states_that_layers_keep_of_each_row_and_draft_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny_config("lfm2")
    assert config is not None
    hybrid = CausalLM.wrap(built(config, torch.float32), invariant=False)
    pipeline = on_the_device("async_ngram", **{"scheduler.max_rows": "5"})
    made = hybrid.new_states(5 + 1, 1 + 4)
    assert made is not None
    kept = sum(each.nbytes for kinds in made.kept.values() for each in kinds.values())
    assert hybrid.state_bytes(5 + 1, 1 + 4) == kept > 0
    monkeypatch.setattr(cache_size, "backend_of", lambda device: BACKEND)
    each = bytes_per_block(hybrid.layer_shapes, 16, torch.float32)
    blocks = 7
    BACKEND.free = 1 + int(
        (cache_size._step_bytes(pipeline, hybrid) + kept + (blocks + 1) * each) / SHARE
    )
    assert blocks_of(pipeline, hybrid) == blocks
    BACKEND.free -= int(each / SHARE)
    assert blocks_of(pipeline, hybrid) == blocks - 1


def test_a_model_whose_layers_have_no_keys_has_blocks_for_its_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks are counted for each request, though nothing is kept in them."""
    config = tiny_config("lfm2")
    assert config is not None
    config = deepcopy(config)  # there is one for all tests
    config.layer_types = ["conv"] * len(config.layer_types)
    model = CausalLM.wrap(built(config, torch.float32), invariant=False)
    assert all(each.elements == 0 for each in model.layer_shapes)
    monkeypatch.setattr(cache_size, "backend_of", lambda device: BACKEND)
    pipeline = on_the_device(**{"scheduler.max_rows": "4"})
    BACKEND.free = 1 << 40
    assert blocks_of(pipeline, model) == 2 * 4 * -(-model.context_length // 16)
    BACKEND.free = 1
    with pytest.raises(NoMemory):
        blocks_of(pipeline, model)


def test_it_is_no_larger_than_rows_and_kept_prefixes_can_fill(target: CausalLM) -> None:
    BACKEND.free = 1 << 40
    config = on_the_device(**{"scheduler.max_rows": "4"})
    assert blocks_of(config, target) == 2 * 4 * -(-target.context_length // 16)


def test_without_room_it_is_refused_with_what_to_do(target: CausalLM) -> None:
    BACKEND.free = 1 << 20
    with pytest.raises(NoMemory, match=r"of 1\.0 MiB that are free .* scheduler\.token_budget"):
        blocks_of(on_the_device(), target)


def test_a_device_that_says_nothing_has_the_usual_number(target: CausalLM) -> None:
    assert blocks_of(on_the_device(), target) == USUAL
    assert blocks_of(on_the_device(**{"scheduler.num_blocks": "7"}), target) == 7


def test_the_engine_has_a_cache_of_that_size() -> None:
    BACKEND.free = 150 << 20
    config = on_the_device(**{"scheduler.max_rows": "4", "scheduler.token_budget": "512"})
    engine = load_engine(config)
    assert engine.limits.num_blocks == blocks_of(config, engine.model)
    assert engine.model.invariant is False
    assert engine.model.compile == "off", "this device compiles no kernels"


# -- layers are compiled where that is possible


def test_layers_are_compiled_on_a_device_with_kernels_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def load(name: object, *, compile: str, **_: object) -> str:
        seen.append(compile)
        return "a model"

    monkeypatch.setattr(CausalLM, "load", load)
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    for device, invariant in ((gpu, False), (gpu, True), (cpu, False)):
        Loading(invariant=invariant, compile="auto").causal_lm("embedded", device)
    assert seen == ["layer", "off", "off"]


def test_what_cannot_be_compiled_runs_as_it_is_and_a_note_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Loading, "_may_compile", lambda self, device: True)
    plain = CausalLM.load

    def load(name: str, *, compile: str, **rest: object) -> CausalLM:
        if compile == "layer":
            raise CompileFailed("its layers are of two kinds")
        found: CausalLM = plain(name, **rest)  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(CausalLM, "load", load)
    device = torch.device("cpu")
    model = Loading(invariant=False, compile="auto").causal_lm("embedded", device)
    assert model.notes[-1] == "its layers run uncompiled: its layers are of two kinds"
    asked = Loading(invariant=False, compile="layer")
    with pytest.raises(CompileFailed, match="two kinds"):
        asked.causal_lm("embedded", device)
