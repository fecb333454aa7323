"""A model that loads takes the memory of its weights, and no second copy of them."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stepweave.models.causal_lm import CausalLM
from stepweave.models.memory import let_go
from tests.memory import settle

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
BESIDE = 96 << 20
"""What a few passes need, what the allocator keeps, and what products are tried on: weights of one
layer laid out anew, and others as large. On a processor with AMX that is 85 MB, else half of it."""


def kib(name: str) -> int:
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@pytest.fixture
def before() -> int:
    """Bytes in memory now, from which on the peak is counted."""
    settle()
    try:
        RESET.write_text("5")
    except OSError as error:
        pytest.skip(f"the peak of this process cannot be counted anew: {error}")
    if kib("VmHWM") > kib("VmRSS") * 1.2:
        pytest.skip("the peak of this process was not counted anew")
    return kib("VmRSS") * 1024


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 235 MB in bfloat16, nearly all of it in maps that are merged."""
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=1024,
        intermediate_size=8192,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=128,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    torch.nn.Module.to(model, torch.bfloat16)
    model.to_empty(device="cpu")
    for name, each in model.named_parameters():
        each.data.fill_(1.0 if "norm" in name else 0.001)
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(folder)
    return folder


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("invariant", "merge"),
    [pytest.param(False, False, marks=pytest.mark.nightly), (True, False), (False, True)],
)
def test_weights_are_in_memory_once(invariant: bool, merge: bool, saved: Path, before: int) -> None:
    model = CausalLM.load(saved, invariant=invariant, merge=merge)
    size = sum(each.nbytes for each in model.hf.parameters())
    assert size > 2 * BESIDE, "a second copy would show"
    assert kib("VmHWM") * 1024 - before < 1.1 * size + BESIDE


@pytest.mark.nightly
def test_in_another_precision_there_is_the_file_beside_it_and_no_more(
    saved: Path, before: int
) -> None:
    """The pages of the file count while it is read; the system takes them when it needs them."""
    model = CausalLM.load(saved, dtype="float32", invariant=False)
    size = sum(each.nbytes for each in model.hf.parameters())
    assert kib("VmHWM") * 1024 - before < 1.1 * size + size // 2 + BESIDE
    gc.collect()
    assert kib("VmRSS") * 1024 - before < 1.1 * size + BESIDE, "the file is not kept"


def test_what_was_let_go_comes_back_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "numbers"
    numbers = torch.arange(1 << 18)
    file.write_bytes(numbers.numpy().tobytes())
    mapped = torch.from_file(str(file), size=1 << 18, dtype=torch.int64)
    assert torch.equal(mapped, numbers)
    let_go(mapped)
    let_go(mapped[1:3])  # less than a page
    let_go(mapped[:0])
    assert torch.equal(mapped, numbers)


def test_what_is_in_no_file_stays() -> None:
    numbers = torch.arange(1 << 18)
    let_go(numbers)
    assert torch.equal(numbers, torch.arange(1 << 18))
