"""Weights that are laid out for oneDNN: the same products, the same bits in every company."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepweave import LLM, SamplingParams
from stepweave.models import invariant, products
from stepweave.models.causal_lm import CausalLM
from stepweave.models.heads import output_head
from stepweave.models.invariant import linear, make_invariant, undo_invariant
from stepweave.models.products import lay_out, plain, product, undo
from stepweave.testing.models import FAMILIES, tiny_model
from tests.models.paged_rows import PagedRows

pytestmark = pytest.mark.skipif(
    not products._dtypes(), reason="this torch has no oneDNN that keeps weights in its own order"
)


@pytest.fixture
def every_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones too, so that small models show what large ones do."""
    monkeypatch.setattr(products, "LEAST", 1)
    monkeypatch.setattr(products, "LEAST_PLAIN", 1)
    monkeypatch.setattr(invariant, "_tiles", {})  # what is tried here holds for these products only


class Block(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(576, 320, dtype=dtype), nn.Linear(320, 576, dtype=dtype)
        self.small = nn.Linear(576, 8, bias=False, dtype=dtype)
        self.table = nn.Embedding(300, 576, dtype=dtype)
        self.head = nn.Linear(576, 300, bias=False, dtype=dtype)
        self.head.weight = self.table.weight
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`[..., 300]` and `[..., 8]` of `x[..., 576]`."""
        hidden = self.down(F.relu(self.up(x)))
        return self.head(hidden), self.small(hidden)


def test_layers_are_laid_out_in_place_and_given_back_as_they_were() -> None:
    torch.manual_seed(0)
    block, x = Block(), torch.randn(3, 5, 576)
    before = {name: each.clone() for name, each in block.named_parameters()}
    expected = block(x)
    for _ in range(2):  # the second time changes nothing
        lay_out(block)
        assert [each.weight.is_mkldnn for each in (block.up, block.down)] == [True, True]
        assert not block.small.weight.is_mkldnn, "its product is too small to gain"
        assert block.head.weight is block.table.weight, "what an embedding reads stays plain"
        assert not block.head.weight.is_mkldnn
        for mine, its in zip(block(x), expected, strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)
    assert sum(map(torch.numel, block.parameters())) == sum(map(torch.numel, before.values()))
    undo(block)
    assert all("forward" not in each.__dict__ for each in block.modules())
    for name, each in block.named_parameters():
        assert torch.equal(each, before[name])
    assert all(torch.equal(mine, its) for mine, its in zip(block(x), expected, strict=True))


def test_what_is_no_plain_layer_is_left_alone() -> None:
    class Adapted(nn.Linear):
        pass

    block = nn.ModuleDict(
        {"adapted": Adapted(512, 512), "replaced": nn.Linear(512, 512), "wide": nn.Linear(512, 512)}
    ).to(torch.float32)
    block["wide"].double()
    block["replaced"].__dict__["forward"] = lambda x: x
    lay_out(block)
    assert not any(each.is_mkldnn for each in block.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_bits_among_any_others(dtype: torch.dtype, threads: int) -> None:
    if dtype not in products._dtypes():
        pytest.skip("this processor has no products in bfloat16")
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(3)
    shapes = [(261, 517), (576, 300), (1536, 130)]
    for k, n in shapes[: 3 if threads == 1 else 1]:  # with two threads each takes seconds
        block = nn.Linear(k, n, dtype=dtype).requires_grad_(False)
        kept = block.weight.clone()
        lay_out(block)
        weight, bias = block.weight, block.bias
        assert weight.is_mkldnn
        assert torch.equal(plain(weight), kept)
        x = torch.randn(140, k, generator=generator).to(dtype)
        whole = linear(x, weight, bias)
        torch.testing.assert_close(whole, F.linear(x, kept, bias), rtol=2e-2, atol=2e-3)
        for count in (1, 2, 3, 5, 9, 31, 130):
            start = count % 7
            assert torch.equal(
                linear(x[start : start + count], weight, bias), whole[start : start + count]
            )
        make_invariant(block)
        assert torch.equal(block(x[:1]), whole[:1])
        undo_invariant(block)
        undo(block)
        assert torch.equal(block.weight, kept)


@pytest.mark.usefixtures("every_matrix")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_logits_have_the_same_bits_in_every_schedule(family: str) -> None:
    lm = CausalLM.wrap(tiny_model(family, 2))
    laid_out = [each for each in lm.hf.parameters() if each.is_mkldnn]
    assert laid_out or family == "gpt2", "nothing was tried"  # all its maps are of another kind
    draw = random.Random(7)
    texts = {name: [draw.randrange(96) for _ in range(30)] for name in "abc"}
    alone = {name: PagedRows(lm).feed((name, text))[0] for name, text in texts.items()}
    rows = PagedRows(lm, block_size=3, seed=1)
    while pending := [n for n in texts if len(rows.tokens.get(n, [])) < len(texts[n])]:
        begun = {name: len(rows.tokens.get(name, [])) for name in pending}
        chunks = [
            (name, texts[name][begun[name] : begun[name] + draw.choice([1, 1, 2, 4, 19])])
            for name in draw.sample(pending, draw.randint(1, len(pending)))
        ]
        for (name, new), logits in zip(chunks, rows.feed(*chunks), strict=True):
            assert torch.equal(logits, alone[name][begun[name] : begun[name] + len(new)])


@pytest.mark.usefixtures("every_matrix")
@pytest.mark.parametrize("tied", [False, True])
def test_a_drafter_reads_with_the_targets_output_layer_and_without_a_copy(tied: bool) -> None:
    lm = CausalLM.wrap(tiny_model("llama", 2, tie_word_embeddings=tied))
    head, hidden = output_head(lm), torch.randn(4, lm.hidden_size)
    hf: Any = lm.hf
    own = hf.get_output_embeddings()
    assert own.weight.is_mkldnn is not tied
    assert head.weight.is_mkldnn is not tied
    assert torch.equal(plain(head.weight), plain(own.weight))
    torch.testing.assert_close(head(hidden), F.linear(hidden, plain(own.weight)))
    exact = output_head(lm, torch.float64)
    assert exact(hidden.double()).dtype == torch.float64
    if not tied:  # the same memory: writing to one changes the other
        before = head(hidden)
        with torch.no_grad():
            own.weight.zero_()
        assert not torch.equal(head(hidden), before)


@pytest.mark.usefixtures("every_matrix")
def test_recorded_steps_give_the_same_tokens() -> None:
    prompts = ["Write a story about a fox.", "The the the the the the", "Ida"]
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    found = []
    for graphs in (False, True):
        with LLM(pipeline="async_ngram", overrides={"graphs": graphs, "torch_threads": "1"}) as llm:
            found.append([each.token_ids for each in llm.generate(prompts, params)])
            if graphs:
                captures = llm.engine.captures
                assert captures is not None
                assert any(each.replayed for each in captures.counts.values())
    assert found[0] == found[1]


def test_products_of_plain_and_laid_out_weights_agree() -> None:
    weight, bias = torch.randn(300, 576), torch.randn(300)
    laid_out = torch.ops.mkldnn._reorder_linear_weight(weight, products._ROWS)
    for rows in (1, 2, 4, 16):
        x = torch.randn(rows, 576)
        expected = F.linear(x, weight, bias)
        torch.testing.assert_close(product(x, weight, bias), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(product(x, laid_out, bias), expected, rtol=1e-4, atol=1e-4)
