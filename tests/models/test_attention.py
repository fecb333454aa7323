"""One layer of attention against a plain softmax, and against itself in other company."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stepweave.models.attention import AttentionBatch, LayerProbe, paged_attention
from stepweave.models.paged_cache import LayerShape, PagedCache

HEADS, KV_HEADS, DIM, VALUE_DIM = 4, 2, 8, 6
MODULE: Any = SimpleNamespace(layer_idx=0)


class Keys:
    """The keys, values and queries of some requests, and their places in a cache."""

    def __init__(self, lengths: tuple[int, ...], block_size: int = 4, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.q = [random(n, HEADS, DIM) * 2 for n in lengths]
        self.k = [random(n, KV_HEADS, DIM) for n in lengths]
        self.v = [random(n, KV_HEADS, VALUE_DIM) for n in lengths]
        self.size = block_size
        need = [-(-n // block_size) for n in lengths]
        order = (torch.randperm(sum(need), generator=generator) + 1).split(need)  # type: ignore[no-untyped-call]
        self.blocks: list[list[int]] = [blocks.tolist() for blocks in order]
        shape = LayerShape(KV_HEADS, DIM, VALUE_DIM)
        self.cache = PagedCache([shape], sum(need) + 1, block_size, torch.float32, "cpu")

    def attend(
        self, *chunks: tuple[int, int, int], spare: int = 0, masked: int = 0, **how: Any
    ) -> list[Tensor]:
        """Attention `[tokens, heads, value_dim]` of chunks (request, start, stop), in one batch."""
        positions: list[int] = []
        slots: list[int] = []
        lens: list[int] = []
        q: list[Tensor] = []
        k: list[Tensor] = []
        v: list[Tensor] = []
        for r, start, stop in chunks:
            places = list(range(start, stop))
            positions += places + [-1] * masked
            slots += [self.blocks[r][p // self.size] * self.size + p % self.size for p in places]
            slots += [0] * masked
            lens.append(stop - start + masked)
            for tensors, source in ((q, self.q), (k, self.k), (v, self.v)):
                rows = source[r][start:stop]
                tensors += [rows, torch.full((masked, *rows.shape[1:]), torch.nan)]
        width = max(len(self.blocks[r]) for r, _, _ in chunks) + spare
        tables = [self.blocks[r] + [0] * (width - len(self.blocks[r])) for r, _, _ in chunks]
        batch = AttentionBatch(
            query_lens=tuple(lens),
            block_tables=torch.tensor(tables),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            cache=self.cache,
        )
        query, key, value = (torch.cat(x).transpose(0, 1)[None] for x in (q, k, v))
        out, weights = paged_attention(MODULE, query, key, value, None, 0.3, paged=batch, **how)
        assert weights is None
        assert batch.calls == [0]
        parts = torch.split(out[0], lens)
        return [part[: stop - start] for part, (_, start, stop) in zip(parts, chunks, strict=True)]

    def plain(self, r: int, **how: Any) -> Tensor:
        """The same by the textbook, in float64, all positions of a request."""
        shared = HEADS // KV_HEADS
        k = self.k[r].double().repeat_interleave(shared, 1)
        v = self.v[r].double().repeat_interleave(shared, 1)
        scores = torch.einsum("qhd,khd->hqk", self.q[r].double(), k) * 0.3
        if cap := how.get("softcap"):
            scores = torch.tanh(scores / cap) * cap
        n = len(k)
        ahead = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        seen = ahead <= 0
        if window := how.get("sliding_window"):
            seen &= ahead > -window
        scores = scores.masked_fill(~seen, -torch.inf)
        if (sinks := how.get("s_aux")) is not None:
            column = sinks.double()[:, None, None].expand(-1, n, 1)
            scores = torch.cat([scores, column], dim=-1)
        weights = scores.softmax(-1)[..., :n]
        return torch.einsum("hqk,khd->qhd", weights, v)


HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 5},
    "wide window": {"sliding_window": 70},
    "softcap": {"softcap": 1.5},
    "sinks": {"s_aux": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "all": {"sliding_window": 9, "softcap": 2.0, "s_aux": torch.tensor([0.5, -1.0, 2.0, 0.0])},
}
EACH_HOW = pytest.mark.parametrize("how", HOW.values(), ids=HOW)
EACH_MODE = pytest.mark.parametrize("invariant", [True, False], ids=["invariant", "fast"])


@pytest.mark.sampled(20)
@EACH_HOW
@EACH_MODE
@pytest.mark.parametrize("block_size", [1, 4, 7, 64])
def test_attention_is_softmax_over_the_past(
    how: dict[str, Any], invariant: bool, block_size: int
) -> None:
    keys = Keys((150, 3, 70, 1), block_size)
    outs: list[list[Tensor]] = [[] for _ in range(4)]
    passes = [
        [(0, 0, 100), (2, 0, 70)],
        [(0, 100, 101), (1, 0, 1), (3, 0, 1)],
        [(1, 1, 3), (0, 101, 150)],
    ]
    for chunks in passes:
        result = keys.attend(*chunks, masked=1, spare=3, paged_invariant=invariant, **how)
        for (r, _, _), out in zip(chunks, result, strict=True):
            outs[r].append(out)
    for r in range(4):
        torch.testing.assert_close(
            torch.cat(outs[r]), keys.plain(r, **how).float(), rtol=1e-5, atol=2e-6
        )


@pytest.mark.sampled(3)
@EACH_HOW
def test_bits_do_not_depend_on_batch_chunk_or_block_table(how: dict[str, Any]) -> None:
    keys = Keys((140, 90, 33))
    whole = [keys.attend((r, 0, n), **how)[0] for r, n in enumerate((140, 90, 33))]
    for window in (1, 2, 3, 4, 9):
        for end in (window, 33):
            mixed = keys.attend(
                (2, end - window, end),
                (0, 5, 120),
                (1, end - window, end),
                (2, end - 1, end),
                spare=window * 7,
                masked=window % 2,
                **how,
            )
            assert torch.equal(mixed[0], whole[2][end - window : end])
            assert torch.equal(mixed[1], whole[0][5:120])
            assert torch.equal(mixed[2], whole[1][end - window : end])
            assert torch.equal(mixed[3], whole[2][end - 1 : end])


def test_bits_do_not_depend_on_the_batch_with_two_threads() -> None:
    torch.set_num_threads(2)
    keys = Keys((20, 9))
    whole = [keys.attend((r, 0, n))[0] for r, n in enumerate((20, 9))]
    mixed = keys.attend((1, 3, 4), (0, 8, 10), (0, 10, 20), spare=17)
    assert torch.equal(mixed[0], whole[1][3:4])
    assert torch.equal(torch.cat(mixed[1:]), whole[0][8:])


@EACH_MODE
def test_what_a_released_block_held_does_not_reach_its_next_owner(invariant: bool) -> None:
    keys = Keys((6,))
    clean = keys.attend((0, 0, 6), paged_invariant=invariant)[0]
    last = torch.tensor([keys.blocks[0][1] * 4 + 3])
    keys.cache.write(
        0, last, torch.full((1, KV_HEADS, DIM), torch.nan), torch.full((1, KV_HEADS, 6), torch.inf)
    )
    assert torch.equal(keys.attend((0, 0, 6), paged_invariant=invariant)[0], clean)


def test_the_window_may_be_an_attribute_of_the_layer() -> None:
    keys = Keys((20,))
    wanted = keys.attend((0, 0, 20), sliding_window=5)[0]
    MODULE.sliding_window = 5
    try:
        assert torch.equal(keys.attend((0, 0, 20))[0], wanted)
    finally:
        del MODULE.sliding_window


class NoQuestions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails on operators whose answer the host would have to wait for."""

    ASK = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "item", "is_nonzero")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not any(word in str(func) for word in self.ASK), f"{func} asks the device"
        if "index" in str(func):
            indices = [i for i in args[1:] if isinstance(i, Tensor)]
            assert not any(i.dtype == torch.bool for i in indices), f"{func} with a mask"
        return func(*args, **(kwargs or {}))


no_questions: Any = NoQuestions


@EACH_HOW
@EACH_MODE
def test_nothing_asks_the_device(how: dict[str, Any], invariant: bool) -> None:
    keys = Keys((9, 5, 6))
    chunks = ((0, 0, 4), (1, 0, 1), (2, 0, 4), (1, 1, 2))
    keys.attend(*chunks, paged_invariant=invariant, **how)  # tiles are tried at the first use
    with no_questions():
        keys.attend(*chunks, paged_invariant=invariant, **how)


def test_the_guard_against_questions_bites() -> None:
    with no_questions(), pytest.raises(AssertionError, match="asks the device"):
        torch.tensor([1.0, 2.0])[torch.tensor([True, False])].sum().item()


def test_shared_work_is_done_once_per_pass() -> None:
    keys = Keys((9,))
    keys.attend((0, 0, 9))
    zero = torch.tensor([0])
    batch = AttentionBatch((1,), zero[None], zero, zero, keys.cache)
    made: list[int] = []
    for _ in range(3):
        batch.once("x", lambda: made.append(1))
    assert made == [1]
    batch.begin()
    batch.once("x", lambda: made.append(2))
    assert made == [1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_lens": (2, 0)}, "row without tokens"),
        ({"positions": torch.arange(3)}, r"positions is torch.int64 \(3,\); .* \(2,\)"),
        ({"slots": torch.zeros(2)}, "slots is torch.float32"),
        ({"block_tables": torch.zeros(3, 1).long()}, r"block_tables is .* \(2, 1\)"),
    ],
)
def test_a_batch_that_does_not_fit_together_is_refused(
    change: dict[str, Any], message: str
) -> None:
    cache = PagedCache([LayerShape(1, 2, 2)], 2, 4, torch.float32, "cpu")
    good: dict[str, Any] = {
        "query_lens": (1, 1),
        "block_tables": torch.zeros(2, 1).long(),
        "positions": torch.zeros(2).long(),
        "slots": torch.zeros(2).long(),
        "cache": cache,
    }
    AttentionBatch(**good)
    with pytest.raises(ValueError, match=message):
        AttentionBatch(**{**good, **change})


def test_a_probe_learns_shapes_without_a_cache() -> None:
    probe = LayerProbe()
    q, k, v = torch.zeros(1, 4, 1, 8), torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 6)
    out, _ = paged_attention(MODULE, q, k, v, None, paged=probe, softcap=2.0)
    assert out.shape == (1, 1, 4, 6)
    assert probe.layers == {0: LayerShape(2, 8, 6)}
    assert probe.softcaps == {0: 2.0}


def test_attention_without_a_layer_number_is_an_error() -> None:
    x = torch.zeros(1, 1, 1, 4)
    nameless: Any = SimpleNamespace()
    with pytest.raises(TypeError, match="no layer_idx"):
        paged_attention(nameless, x, x, x, None, paged=LayerProbe())
