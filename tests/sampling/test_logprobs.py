"""Log-probabilities that are shown: values, ranks, and the order of equals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stepweave.backends.operations import is_view
from stepweave.sampling.blocks import HOST_SCORES
from stepweave.sampling.logprobs import token_logprobs
from tests.sampling.windows import tried


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_they_are_the_model_s_by_definition(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(40, 300, generator=generator) * 5).to(dtype)
    tokens = torch.randint(0, 300, (40,), generator=generator)
    result = token_logprobs(logits, tokens, 7)
    assert result.logprob.dtype == result.top_logprobs.dtype == torch.float32
    for row in range(40):
        values = [float(x) for x in logits[row]]
        total = math.log(math.fsum(math.exp(x) for x in values))
        token = int(tokens[row])
        assert float(result.logprob[row]) == pytest.approx(values[token] - total, abs=1e-4)
        assert int(result.rank[row]) == 1 + sum(x > values[token] for x in values)
        best = sorted(range(300), key=lambda id, values=values: (-values[id], id))[:7]  # type: ignore[misc]
        assert result.top_tokens[row].tolist() == best
        expected = [values[id] - total for id in best]
        assert result.top_logprobs[row].tolist() == pytest.approx(expected, abs=1e-4)


@tried
@given(
    st.lists(
        st.sampled_from([-math.inf, -3e38, -2.5, -1.0, -1e-40, -0.0, 0.0, 1e-40, 1.0, 3e38]),
        min_size=1,
        max_size=30,
    ),
    st.data(),
)
def test_equals_are_ordered_by_id_and_share_a_rank(
    values: list[float], data: st.DataObject
) -> None:
    logits = torch.tensor([values])
    top = data.draw(st.integers(0, len(values)))
    token = data.draw(st.integers(0, len(values) - 1))
    result = token_logprobs(logits, torch.tensor([token]), top)
    stable = logits.sort(dim=-1, descending=True, stable=True).indices[0, :top]
    assert result.top_tokens[0].tolist() == stable.tolist()
    own = float(logits[0, token])
    assert int(result.rank[0]) == 1 + int((logits > own).sum())


def test_no_token_has_no_log_probability_and_harms_nobody() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]] * 2)
    result = token_logprobs(logits, torch.tensor([-1, 2]), 2)
    assert math.isnan(float(result.logprob[0]))
    assert result.rank.tolist() == [0, 2]
    assert result.top_tokens.tolist() == [[1, 2]] * 2
    assert float(result.logprob[1]) == float(result.top_logprobs[1, 1])


def test_none_may_be_asked_for() -> None:
    result = token_logprobs(torch.zeros(3, 4), torch.tensor([0, 1, 2]), 0)
    assert result.top_tokens.shape == result.top_logprobs.shape == (3, 0)
    assert result.logprob.tolist() == pytest.approx([-math.log(4)] * 3)
    empty = token_logprobs(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), 2)
    assert empty.top_tokens.shape == (0, 2)


def test_a_row_comes_out_the_same_in_any_batch() -> None:
    logits = torch.randn(9, 1003, generator=torch.Generator().manual_seed(1))
    tokens = torch.arange(9) * 100
    whole = token_logprobs(logits, tokens, 5)
    for row in range(9):
        alone = token_logprobs(logits[row : row + 1], tokens[row : row + 1], 5)
        assert torch.equal(alone.logprob, whole.logprob[row : row + 1])
        assert torch.equal(alone.top_logprobs, whole.top_logprobs[row : row + 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_lines_give_the_bits_of_all_at_once(dtype: torch.dtype) -> None:
    vocab = HOST_SCORES // 3
    generator = torch.Generator().manual_seed(2)
    logits = (torch.randn(8, vocab, generator=generator) * 4).round(decimals=1).to(dtype)
    logits[:, ::5] *= -0.0
    tokens = torch.randint(-1, vocab, (8,), generator=generator)
    found = token_logprobs(logits, tokens, 3)
    whole = logits.float() + 0.0
    log_probs, index = whole.log_softmax(dim=-1), tokens.clamp_min(0)[:, None]
    own = log_probs.gather(1, index)[:, 0]
    best = whole.sort(dim=-1, descending=True, stable=True).indices[:, :3]
    assert torch.equal(found.logprob.nan_to_num(9), own.masked_fill(tokens < 0, 9))
    ranks = 1 + (whole > whole.gather(1, index)).sum(dim=-1)
    assert torch.equal(found.rank, ranks * (tokens >= 0))
    assert torch.equal(found.top_tokens, best)
    assert torch.equal(found.top_logprobs, log_probs.gather(1, best))


weakly: Any = StorageWeakRef


class _Peak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes that lived at once of what was made within."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self._made: dict[int, tuple[Any, int]] = {}

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        if not operation._schema.is_mutable and not is_view(operation):
            for tensor in tree_leaves(result):
                storage = tensor.untyped_storage()
                if tensor is not args[0]:
                    self._made[storage.data_ptr()] = weakly(storage), storage.nbytes()
        living = [size for weak, size in self._made.values() if not weak.expired()]
        self.most = max(self.most, sum(living))
        return result


def test_memory_is_that_of_a_block_however_many_lines() -> None:
    """Per score of a block: float32, and keys of 12 bytes while the best are looked for."""
    vocab = HOST_SCORES // 16

    def peak(lines: int, top: int, dtype: torch.dtype) -> int:
        logits, tokens = torch.zeros(lines, vocab, dtype=dtype), torch.zeros(lines).long()
        with _Peak() as counted:
            token_logprobs(logits, tokens, top)
        return int(counted.most)

    small = HOST_SCORES // 8
    for dtype, copy in ((torch.float32, 0), (torch.bfloat16, 4)):
        assert peak(16, 3, dtype) < (copy + 4 + 12) * HOST_SCORES + small
        assert peak(16, 0, dtype) < (copy + 4) * HOST_SCORES + small
        assert peak(160, 3, dtype) < peak(16, 3, dtype) + small
