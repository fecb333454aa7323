"""The kernels on a GPU: launched, captured in a graph, and serving a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.models.causal_lm import CausalLM
from stepweave.models.kernels import operators, packed
from stepweave.models.kernels.reference import How
from stepweave.testing.models import FAMILIES, tiny_model
from tests.models import kernel_checks
from tests.models.paged_oracle import Batch, randomized
from tests.models.paged_rows import PagedRows, own_greedy
from tests.models.test_kernels_glue import ARGUMENTS

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

ERRORS = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def attend(batch: Batch, how: dict[str, Any]) -> Tensor:
    how = {**how, "sinks": None if how.get("sinks") is None else how["sinks"].cuda()}
    on_device = [x.cuda() for x in batch.arguments()]
    out: Tensor = operators.attend_paged(*on_device, batch.query_len, batch.block_size, **how)
    return out.cpu()


@pytest.mark.parametrize("seed", range(40))
def test_it_is_softmax_over_the_past(seed: int) -> None:
    batch, how, _ = randomized(seed)
    out = attend(batch, how)
    torch.testing.assert_close(out.double(), batch.expected(**how), rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("query_len", [1, 4, 40])
def test_every_width_and_type(dtype: torch.dtype, dim: int, query_len: int) -> None:
    lengths = (700, 41, 64, 1000)
    batch = Batch(lengths, query_len, 32, 8, dim, dim, 16, dtype=dtype, masked={1: 1})
    how = {"scaling": 0.5 * dim**-0.5}
    error = ERRORS[dtype]
    out = attend(batch, how)
    torch.testing.assert_close(out.double(), batch.expected(**how), rtol=error, atol=error)


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("query_len", [1, 40])
def test_keys_and_values_in_8_bits_are_read_with_their_scales(
    dtype: torch.dtype, query_len: int
) -> None:
    batch = Batch((700, 41, 64, 1000), query_len, 32, 8, 128, 128, 16, dtype=dtype)
    key_scales, value_scales = batch.narrow()
    scales = {"key_scales": key_scales.cuda(), "value_scales": value_scales.cuda()}
    out = attend(batch, {"scaling": 0.04, **scales})
    error = ERRORS[dtype]
    torch.testing.assert_close(out.double(), batch.expected(0.04), rtol=error, atol=error)


def test_a_captured_launch_follows_positions_and_blocks() -> None:
    first, second = Batch((90, 17, 0), 3, seed=1), Batch((33, 200, 64), 3, columns=60, seed=2)
    columns = second.tables.shape[1]
    first = Batch((90, 17, 0), 3, columns=columns, seed=1)
    slots = max(len(first.keys), len(second.keys))
    places: list[Tensor] = []
    for x, y in zip(first.arguments(), second.arguments(), strict=True):
        shape = (slots, *x.shape[1:]) if len(x) != len(y) else x.shape
        places.append(torch.zeros(shape, dtype=x.dtype, device="cuda"))

    def fill(batch: Batch) -> None:
        for place, x in zip(places, batch.arguments(), strict=True):
            place[: len(x)].copy_(x)

    fill(first)
    operators.attend_paged(*places, 3, 4, 0.3)  # compiled outside of the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = operators.attend_paged(*places, 3, 4, 0.3)
    for batch in (second, first, second):
        fill(batch)
        graph.replay()
        expected = batch.expected(0.3)
        torch.testing.assert_close(out.cpu().double(), expected, rtol=2e-5, atol=5e-6)


def test_bits_do_not_depend_on_what_the_other_rows_are() -> None:
    """They do on how many there are, which decides into how many splits the keys of each go."""
    batch = Batch((900, 3, 560, 0), 4, 32, 8, 128, 128, 16, dtype=torch.bfloat16)
    every = attend(batch, {"scaling": 0.1})
    assert torch.equal(every, attend(batch, {"scaling": 0.1}))
    batch.query, batch.positions = batch.query.roll(-8, 0), batch.positions.roll(-8)
    batch.query[4:], batch.positions[4:] = 0, -1
    batch.tables = batch.tables.roll(-2, 0)[:, :35]
    assert torch.equal(attend(batch, {"scaling": 0.1})[:4], every[8:12])


def test_the_cache_is_written_at_its_slots() -> None:
    keys = torch.zeros(64, 8, 128, dtype=torch.bfloat16, device="cuda")
    values = keys.clone()
    new = torch.randn(1, 8, 5, 128, dtype=torch.bfloat16, device="cuda")[0].transpose(0, 1)
    slots = torch.tensor([3, 60, 17, 4, 16], device="cuda")
    operators.write_cache(keys, values, slots, new, 2 * new, None, None)
    assert torch.equal(keys[slots], new)
    assert torch.equal(values[slots], 2 * new)
    assert int((keys != 0).any(-1).any(-1).sum()) == 5


@pytest.mark.parametrize("window", [None, 1, 30])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_prompts_by_torchs_own_kernel(window: int | None, dtype: torch.dtype) -> None:
    batch = Batch((300, 64, 90), 60, 8, 2, 64, 64, 16, dtype=dtype, masked={2: 7})
    how = How(0.1, window, None, None)
    query, keys, values, tables, positions = (x.nan_to_num().cuda() for x in batch.arguments())
    if reason := packed.why_not(query, values, how):
        pytest.skip(reason)
    rows = packed.sequences(
        tables, positions, query_lens=[batch.query_len] * len(tables), block_size=16
    )
    out = packed.attend(query, keys, values, rows, how).cpu()
    real = batch.positions >= 0
    expected = batch.expected(0.1, window)[real]
    error = ERRORS[dtype]
    torch.testing.assert_close(out[real].double(), expected, rtol=error, atol=error)


@pytest.mark.parametrize("layout", ["offset", "column_view", "transposed"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_stands_between_products_in_any_layout(name: str, layout: str) -> None:
    assert kernel_checks.between(name, layout, "narrow", torch.float32, "cuda")


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_stands_between_products_of_usual_widths(name: str, dtype: torch.dtype) -> None:
    assert kernel_checks.between(name, "leading_columns", "wide", dtype, "cuda")


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize(
    ("nodes", "lengths", "dim", "window", "kept"),
    [
        ("few", (300, 41, 0, 10), 64, None, None),
        ("few", (300, 41, 0, 10), 128, 40, torch.int8),
        ("few", (12,) * 70, 128, None, None),  # of so many rows keys are not split
        ("most", (300, 90, 63), 96, 40, None),
        ("most", (300, 90, 63), 64, None, torch.int8),
    ],
)
def test_tokens_of_draft_trees_see_their_paths(
    nodes: str,
    lengths: tuple[int, ...],
    dim: int,
    window: int | None,
    kept: torch.dtype | None,
    dtype: torch.dtype,
) -> None:
    assert kernel_checks.trees(nodes, lengths, dim, window, kept, dtype, "cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kept", [None, torch.int8], ids=["as computed", "8 bits"])
@pytest.mark.parametrize("query_len", [1, 40, None], ids=["one token", "a prompt", "a tree"])
def test_values_that_are_part_of_their_keys_are_read_with_them(
    query_len: int | None, kept: torch.dtype | None, dtype: torch.dtype
) -> None:
    given = (query_len or 1, (576, 512), kept, dtype, "cuda")
    assert kernel_checks.latents((300, 41, 64), *given, planted=query_len is None)


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("kept", [None, torch.int8], ids=["as computed", "8 bits"])
def test_latents_are_stored_at_their_slots(kept: torch.dtype | None, dtype: torch.dtype) -> None:
    assert kernel_checks.stored_latents((576, 512), kept, dtype, "cuda")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_says_what_it_says_on_its_own(family: str) -> None:
    model, prompt = tiny_model(family), [5, 9, 2, 7, 11]
    wanted = own_greedy(model, prompt, 8)
    torch.nn.Module.to(model, "cuda")
    rows = PagedRows(CausalLM.wrap(model, invariant=False))
    out: list[int] = []
    logits = rows.feed(("mine", prompt), ("other", range(40)))[0]
    for step in range(8):
        out.append(int(logits[-1].argmax()))
        _, logits = rows.feed(("other", [step, 3]), ("mine", [out[-1]]), masked=1)
    assert out == wanted
