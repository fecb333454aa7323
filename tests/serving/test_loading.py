"""What a pipeline names is loaded whole, or refused with the key that helps."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stepweave.graph.errors import StepweaveError
from stepweave.models import memory
from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.errors import ModelError, NoMemory
from stepweave.models.memory import in_units, room_for
from stepweave.models.testing import save_tiny, tiny_model, tiny_tokenizer
from stepweave.requests.request import SamplingParams
from stepweave.serving.engine import EngineError
from stepweave.serving.llm import LLM

UP = "model.layers.1.mlp.up_proj.weight"
SMALL = {"scheduler.num_blocks": "32", "scheduler.max_rows": "2", "model.invariant": "false"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "model")


def loaded(pipeline: str, **keys: str) -> LLM:
    overrides = {**SMALL, **{key.replace("__", "."): value for key, value in keys.items()}}
    return LLM(pipeline=pipeline, overrides=overrides)


@pytest.mark.parametrize("role", ["target", "drafter"])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", f"its weights lack {UP}"),
        ("unexpected", "its weights have model.layers.1.x"),
        ("misshapen", rf"{UP} is \(2, 2\), not \(80, 48\)"),
    ],
)
def test_targets_and_drafters_with_a_faulty_weight_are_refused_by_name(
    role: str, fault: str, message: str, model: Path, tmp_path: Path
) -> None:
    weights = load_file(model / "model.safetensors")
    if fault == "missing":
        del weights[UP]
    else:
        weights["model.layers.1.x" if fault == "unexpected" else UP] = torch.ones(2, 2)
    faulty = save_tiny(tmp_path / "faulty")
    save_file(weights, faulty / "model.safetensors", metadata={"format": "pt"})
    target, drafter = (faulty, model) if role == "target" else (model, faulty)
    with pytest.raises(ModelError, match=f"^{faulty}: .*{message}"):
        loaded("async_speculation", model__name=str(target), speculation__model=str(drafter))


def test_a_drafter_of_another_vocabulary_is_refused_with_the_key_that_helps(
    model: Path, tmp_path: Path
) -> None:
    other = save_tiny(tmp_path / "other", vocab_size=99)
    said = "99 tokens, the target [0-9]+: .*; set speculation.model to .*, or speculation to null$"
    with pytest.raises(EngineError, match=said):
        loaded("async_speculation", model__name=str(model), speculation__model=str(other))
    with pytest.raises(ModelError, match=r"a head of this model, or speculation to null$"):
        EagleHead.load("embedded-eagle", CausalLM.load(model, invariant=False))
    for helps in ({"speculation__model": str(model)}, {"speculation": "null"}):
        llm = loaded("async_speculation", model__name=str(model), **helps)
        assert llm.generate("to be", SamplingParams(max_tokens=2))[0].error is None


def test_caches_without_room_are_refused_with_their_size_and_the_key(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_physical", lambda: 1 << 20)
    with pytest.raises(NoMemory) as caught:
        loaded("async", model__name=str(model), scheduler__num_blocks="1023")
    said = str(caught.value)
    assert "a KV cache of 1024 blocks of 16 tokens, 12288 bytes each, needs 12.0 MiB on" in said
    assert said.endswith("; lower scheduler.num_blocks")


def test_memory_that_is_refused_is_told_from_other_mistakes() -> None:
    cpu = torch.device("cpu")
    refused = RuntimeError("DefaultCPUAllocator: can't allocate memory\nand a trace")
    for error in (refused, MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")):
        with (
            pytest.raises(NoMemory, match=r"^a heap needs 2\.0 KiB on cpu, .*; lower x$") as caught,
            room_for("a heap", 2048, cpu, "lower x"),
        ):
            raise error
        assert "\n" not in str(caught.value)
    with pytest.raises(RuntimeError, match="sizes"), room_for("a heap", 1, cpu, "lower x"):
        raise RuntimeError("sizes do not match")


def test_more_than_the_machine_has_is_refused_before_it_is_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_physical", lambda: 1 << 20)
    tried: list[str] = []
    with (
        pytest.raises(NoMemory, match=r"and the machine has 1\.0 MiB; lower x"),
        room_for("a heap", 1 << 30, torch.device("cpu"), "lower x"),
    ):
        tried.append("it")
    assert tried == []
    with room_for("a heap", 1 << 30, torch.device("cuda"), "lower x"):
        tried.append("it")
    assert tried == ["it"]


def test_sizes_are_said_in_units() -> None:
    assert [in_units(n) for n in (0, 1023, 1024, 3 << 30)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "3.0 GiB",
    ]


@pytest.mark.parametrize("device", ["gpu", "mps", "cuda:1234"])
def test_a_device_that_is_none_is_refused_by_the_config(device: str) -> None:
    with pytest.raises(StepweaveError, match=r"model\.device: .* take auto, cpu, cuda or cuda:1$"):
        loaded("async", model__device=device)


def test_the_precision_is_that_of_the_checkpoint_and_of_the_embedded_model_float32(
    tmp_path: Path,
) -> None:
    path = save_tiny(tmp_path / "model")
    for dtype in (torch.bfloat16, torch.float16):
        save_tiny_in(dtype, path)
        said = []
        for depth in ("1", "2"):
            keys = {"model__invariant": "true", "speculation__model": str(path), "depth": depth}
            llm = loaded("async_speculation", model__name=str(path), **keys)
            assert llm.engine.model.dtype == dtype
            assert llm.engine.drafter is not None
            assert llm.engine.drafter.dtype == dtype
            said.append(llm.generate("to be or", SamplingParams(max_tokens=6))[0].token_ids)
        assert said[0] == said[1]
    assert loaded("async", model__name=str(path), model__dtype="float16").engine.model.dtype == (
        torch.float16
    )
    embedded = loaded("async_eagle")
    assert embedded.engine.model.dtype == torch.float32
    assert embedded.engine.drafter is not None
    assert embedded.engine.drafter.dtype == torch.float32


def save_tiny_in(dtype: torch.dtype, path: Path) -> None:
    """The same model, its weights in another precision."""
    tiny_model("llama", 0, dtype, vocab_size=len(tiny_tokenizer())).save_pretrained(path)
