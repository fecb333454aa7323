"""Attention in which every sum has one order: equal bits for few queries and many."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stepweave.backends.tape.arrange import Pool
from stepweave.backends.tape.recording import Tape
from stepweave.models import attention_fused, attention_sums, fixed_order
from stepweave.models.attention_fused import PART, Fused, fused
from stepweave.models.attention_sums import Sums
from stepweave.models.attention_tiles import UNIT, Like
from stepweave.models.fixed_order import attend
from stepweave.models.kernels.reference import How, attend_gathered
from stepweave.testing.launches import Launches

SEEN = 150  # keys
CPU = torch.device("cpu")
LIKE = Like(torch.float32, CPU)
HOW = {
    "plain": How(0.3, None, None, None),
    "softcap": How(0.3, None, 1.5, None),
    "sinks": How(0.3, None, None, torch.tensor([0.5, -1.0, 2.0, 0.0])),
}
WAYS = ["sums", "fused", "fused, tiles"]


def hidden(keys: int, rows: int = 2, seen: int = SEEN) -> Callable[[int], Tensor]:
    bias = torch.zeros(keys).masked_fill_(torch.arange(keys) >= seen, -torch.inf)
    return lambda queries: bias.expand(rows, 1, queries, keys)


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By which way `attend` attends."""
    name: str = request.param

    def library(key_dim: int, value_dim: int, like: Like, threads: int) -> Fused | None:
        found = fused(key_dim, value_dim, like, threads)
        if name == "sums" or found is None:
            return None
        return replace(found, most=PART) if name == "fused, tiles" else found

    monkeypatch.setattr(fixed_order, "fused", library)
    return name


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("dims", [(32, 32), (8, 6)], ids=["32", "8 and 6"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("seen", [SEEN, 700])
def test_bits_depend_on_no_number_of_queries_rows_or_keys(
    how: str, dims: tuple[int, int], way: str, seen: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 2, 12, dims[0], generator=generator)
    k, v = (torch.randn(2, 2, 1536, dim, generator=generator) for dim in dims)

    def keys(least: int) -> int:
        return fixed_order.keys_for(least, UNIT, dims, torch.float32, CPU, HOW[how])

    first = keys(seen)
    wanted = attend(query, k[:, :, :first], v[:, :, :first], hidden(first, seen=seen), HOW[how])
    sinks = HOW[how].sinks
    plain = replace(HOW[how], sinks=None if sinks is None else sinks.double())
    widened = hidden(first, seen=seen)(12).double()
    close = attend_gathered(
        query.double(), k[:, :, :first].double(), v[:, :, :first].double(), widened, plain
    )
    torch.testing.assert_close(wanted.double(), close, rtol=1e-4, atol=1e-5)
    for least in range(seen, 1537, 190):
        some, mixed = k[:, :, : keys(least)], v[:, :, : keys(least)]
        bias = hidden(keys(least), seen=seen)
        for queries in (slice(0, 12), slice(2, 4), slice(0, 8)):
            found = attend(query[:, :, queries], some, mixed, bias, HOW[how])
            assert torch.equal(found, wanted[:, :, queries])
        one = hidden(keys(least), rows=1, seen=seen)
        alone = attend(query[:1], some[:1], mixed[:1], one, HOW[how])
        assert torch.equal(alone, wanted[:1])


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_a_prompt_at_once_has_the_bits_of_its_pieces_and_of_single_tokens(way: str) -> None:
    generator = torch.Generator().manual_seed(1)
    shared, tokens = 3, 600
    query = torch.randn(1, 2, shared * tokens, 64, generator=generator)
    k, v = (torch.randn(1, 2, 1024, 64, generator=generator) for _ in range(2))

    def of(first: int, last: int) -> Tensor:
        keys = fixed_order.keys_for(last, UNIT, (64, 64), torch.float32, CPU, HOW["plain"])

        def bias(queries: int) -> Tensor:
            own = first + torch.arange(queries) // shared
            later = torch.arange(keys) > own[:, None]
            return torch.zeros(later.shape).masked_fill_(later, -torch.inf)[None, None]

        packed = query[:, :, shared * first : shared * last]
        return attend(packed, k[:, :, :keys], v[:, :, :keys], bias, HOW["plain"])

    whole = of(0, tokens)
    pieces = torch.cat([of(a, b) for a, b in ((0, 130), (130, 260), (260, 450), (450, 600))], 2)
    assert torch.equal(pieces, whole)
    for token in (0, 63, 64, 200, 255, 256, 300, 383, 384, 511, 512, 599):
        place = slice(shared * token, shared * (token + 1))
        assert torch.equal(of(token, token + 1), whole[:, :, place])


@pytest.mark.parametrize("how", ["plain", "sinks"])
def test_keys_of_which_a_row_sees_none_change_nothing(how: str) -> None:
    """As of a sliding window: of a tile of keys there may be none that a row sees."""
    library = fused(32, 32, LIKE, torch.get_num_threads())
    if library is None:
        pytest.skip("the library's attention has no one order here")
    query, k, v = torch.randn(1, 4, 4, 32), torch.randn(1, 4, 1536, 32), torch.randn(1, 4, 1536, 32)
    window = torch.full((1, 1, 4, 1536), -torch.inf)
    window[..., 600:700] = 0
    sinks = HOW[how].packed_sinks(4, 4, torch.float32)
    whole = library.attend(query, k, v, window, HOW[how], sinks)
    tiled = replace(library, most=PART).attend(query, k, v, window, HOW[how], sinks)
    torch.testing.assert_close(tiled, whole)
    assert not whole.isnan().any()
    assert whole.abs().amax() > 0.1


def test_the_last_part_is_rounded_up_to_a_length_that_may_be() -> None:
    ends = frozenset({64, 192, 512})
    library = Fused((4,), ends, 8, 8)
    found = [library.keys_for(least, UNIT) for least in (1, 64, 65, 193, 512, 513, 600, 1000)]
    assert found == [64, 64, 192, 512, 512, 576, 704, 1024]
    assert library.keys_for(65, 3 * UNIT) == 192
    assert library.keys_for(193, 3 * UNIT) == 576, "multiples of 192 up to it end with 384"


def test_lengths_of_the_last_part_that_add_in_another_order_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a library that cuts parts of more than 300 keys, which are no multiple of 256."""

    def cuts(query: Tensor, k: Tensor, v: Tensor, bias: Tensor, scaling: float) -> object:
        mixed, summed = own(query, k, v, bias, scaling)
        last = k.shape[2] % PART
        return (mixed.nextafter(mixed + 1) if last > 300 and last % 256 else mixed), summed

    def by_tiles(query: Tensor, k: Tensor, v: Tensor, bias: Tensor, scaling: float) -> object:
        mixed, summed = own(query, k, v, bias, scaling)
        return (mixed.nextafter(mixed + 1) if 16 < query.shape[2] < 64 else mixed), summed

    def by_many(query: Tensor, k: Tensor, v: Tensor, bias: Tensor, scaling: float) -> object:
        mixed, summed = own(query, k, v, bias, scaling)
        return (mixed.nextafter(mixed + 1) if query.shape[2] > 64 else mixed), summed

    def by_keys(query: Tensor, k: Tensor, v: Tensor, bias: Tensor, scaling: float) -> object:
        mixed, summed = own(query, k, v, bias, scaling)
        return (mixed.nextafter(mixed + 1) if k.shape[2] > 1024 else mixed), summed

    own, found = attention_fused._fused, fused(16, 16, LIKE, 1)
    if found is None:
        pytest.skip("the library's attention has no one order here")
    for wrong, ends, queries in (
        (cuts, {end for end in found.ends if end <= 300 or end == PART}, found.queries),
        (by_tiles, set(found.ends), tuple(size for size in found.queries if size != 32)),
        (by_many, set(found.ends), tuple(size for size in found.queries if size <= 64)),
    ):
        monkeypatch.setattr(attention_fused, "_fused", wrong)
        tried = fused.__wrapped__(16, 16, LIKE, 1)
        assert tried is not None
        assert (set(tried.ends), tried.queries) == (ends, queries)
    monkeypatch.setattr(attention_fused, "_fused", by_keys)
    assert fused.__wrapped__(16, 16, LIKE, 1) is None
    assert fused(16, 16, Like(torch.float64, CPU), 1) is None


def test_a_product_that_adds_in_another_order_is_taken_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a library that cuts more than 100 keys into halves, and more than 300 into thirds."""

    def bmm(weights: Tensor, v: Tensor) -> Tensor:
        made.append(v.shape[1])
        parts = 1 + (v.shape[1] > 100) + (v.shape[1] > 300)
        cut = zip(weights.tensor_split(parts, 2), v.tensor_split(parts, 1), strict=True)
        return sum(map(own, *zip(*cut, strict=True)), torch.zeros(()))

    own, made = torch.bmm, list[int]()
    monkeypatch.setattr(torch, "bmm", bmm)
    tile = attention_sums._key_tile(4, 32, LIKE)
    sums = Sums((4, 8), tile, (32, 32), LIKE)
    assert tile == 128, "of 192 keys the halves are no multiples of what fewer are"
    assert [sums.at_once("mixtures", 8, keys) for keys in (64, 128, 192, 320)] == [
        True, True, False, False,
    ]  # fmt: skip
    weights, v = torch.rand(2, 8, 320), torch.randn(2, 320, 32)
    short = torch.cat([weights[..., :70], torch.zeros(2, 8, 250)], -1)
    assert torch.equal(sums.mixtures(short, v), sums.mixtures(short[..., :128], v[:, :128]))
    assert torch.equal(sums.mixtures(weights, v), sums._mixtures_in_order(weights, v))
    made.clear()
    sums.mixtures(weights, v)
    assert made == [128, 128, 64], "each tile of keys for all queries at once"


@pytest.mark.parametrize(
    ("way", "operations"),
    [("sums", ["product", "bias", "softmax", "product"]), ("fused", ["attention"])],
    indirect=["way"],
)
def test_trials_are_no_part_of_what_is_recorded_and_a_step_takes_few_operations(
    way: str, operations: list[str]
) -> None:
    attention_sums.by_sums.cache_clear()
    fused.cache_clear()
    query, k, v = torch.randn(2, 2, 4, 32), torch.randn(2, 2, 192, 32), torch.randn(2, 2, 192, 32)
    mask, out, tape = hidden(192)(4).clone(), torch.empty(2, 2, 4, 32), Tape(Pool())

    def work() -> None:
        out.copy_(attend(query, k, v, lambda _: mask, HOW["plain"]))

    with torch.inference_mode(), tape.capture():
        work()
    assert tape.refused is None
    wanted = out.clone()
    out.zero_()
    tape.replay()
    assert torch.equal(out, wanted)
    with Launches() as counted:
        work()
    assert counted.total == len(operations) + 1, "and a copy"
