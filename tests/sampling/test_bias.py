"""Biases and bans at named tokens, against the processors of transformers."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from stepweave.sampling.bias import apply_bias, ban_until, give_way
from tests.sampling.windows import Window, tried, windows

INF = float("inf")
VOCAB = 5


def ids(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


@tried
@given(
    windows(VOCAB),
    st.dictionaries(
        st.tuples(st.integers(-1, 2), st.integers(0, VOCAB - 1)), st.floats(-100, 100), max_size=9
    ),
)
def test_a_bias_is_added_at_every_place_of_its_row(
    window: Window, entries: dict[tuple[int, int], float]
) -> None:
    entries = {key: value for key, value in entries.items() if key[0] in (-1, *window.rows)}
    ours = apply_bias(
        window.logits,
        ids(*(sample_index for sample_index, _ in entries)),
        ids(*(token for _, token in entries)),
        torch.tensor(list(entries.values()), dtype=torch.float32),
    )
    for row in window.rows:
        own: list[list[list[int] | float]] = [
            [[token], value]
            for (sample_index, token), value in entries.items()
            if sample_index == row
        ]
        if not own:
            assert torch.equal(ours[row], window.logits[row])
            continue
        processor = SequenceBiasLogitsProcessor(own)
        for window_position in range(ours.shape[1]):
            expected = processor(ids(0)[None], window.logits[row, window_position][None])[0]
            torch.testing.assert_close(ours[row, window_position], expected)


def test_entries_for_one_token_add_up_and_what_is_no_entry_does_nothing() -> None:
    logits = torch.tensor([[[0.0, 1.0, -INF]], [[5.0, 6.0, 7.0]]])
    ours = apply_bias(
        logits,
        ids(0, 0, 0, -1, -1, 1, 1),
        ids(1, 1, 2, 0, -1, -1, 3),
        torch.tensor([2.0, 0.5, 9.0, 100.0, 100.0, 100.0, 100.0]),
    )
    assert ours.tolist() == [[[0.0, 3.5, -INF]], [[5.0, 6.0, 7.0]]]
    only_padding = apply_bias(logits, ids(-1, -1), ids(-1, -1), torch.full((2,), INF))
    assert torch.equal(only_padding, logits)
    assert torch.equal(apply_bias(logits, ids(), ids(), torch.empty(0)), logits)


@tried
@given(windows(VOCAB), st.lists(st.integers(0, 6), min_size=3, max_size=3))
def test_stop_tokens_come_no_sooner_than_transformers_lets_them(
    window: Window, minimum: list[int]
) -> None:
    stops = [1, 4]
    sample_index = ids(*(row for row in window.rows for _ in stops), -1)
    ours = ban_until(
        window.logits,
        window.window_start + 1 - window.prompt,
        sample_index,
        ids(*(stop for _ in window.rows for stop in stops), 2),
        ids(*(minimum[row] for row in window.rows for _ in stops), 99),
    )
    for row in window.rows:
        processor = MinNewTokensLengthLogitsProcessor(
            int(window.prompt[row]), minimum[row], stops, "cpu"
        )
        for window_position, context in enumerate(window.contexts(row)):
            assert len(context) - int(window.prompt[row]) == window.output(row, window_position)
            expected = processor(ids(*context)[None], window.logits[row, window_position][None])[0]
            assert torch.equal(ours[row, window_position], expected)


def test_a_row_is_banned_by_its_own_position() -> None:
    logits = torch.zeros(2, 3, 2)
    ours = ban_until(logits, ids(0, 7), ids(0, 1), ids(1, 1), ids(2, 9))
    assert ours[0].tolist() == [[0, -INF], [0, -INF], [0, 0]]
    assert ours[1].tolist() == [[0, -INF], [0, -INF], [0, 0]]


def test_bans_are_void_exactly_where_they_leave_no_token() -> None:
    allowed = torch.tensor([[[1.0, -INF, 2.0], [-INF, 3.0, -INF]]])
    banned = torch.tensor([[[1.0, -INF, -INF], [-INF, -INF, -INF]]])
    assert give_way(banned, allowed).tolist() == [[[1.0, -INF, -INF], [-INF, 3.0, -INF]]]
    behind = torch.full((1, 2, 3), float("nan"))
    assert give_way(behind, allowed).tolist() == allowed.tolist()
