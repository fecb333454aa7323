"""What counts as a token of a streamed answer, and what as its failure."""

from __future__ import annotations

import json

import pytest

from stepweave.loadgen.outcome import Outcome
from stepweave.loadgen.reading import Reading
from tests.loadgen.virtual import chunk, total, usage


def read(*events: tuple[float, str]) -> Outcome:
    """A request that was due at 1 s and sent at 2 s."""
    reading = Reading("it", 1.0, 2.0)
    for at_s, data in events:
        reading.event(data, at_s)
    return reading.outcome()


def test_the_first_token_is_the_first_text_not_the_role() -> None:
    found = read((3.0, chunk("")), (4.0, chunk("a")), (6.0, chunk("b", finish="stop")))
    assert found.arrivals == (4.0, 6.0)
    assert (found.ttft_s, found.itl_s, found.e2e_s, found.tpot_s) == (2.0, [2.0], 4.0, 2.0)
    assert (found.tokens, found.prompt_tokens, found.error) == (2, None, None)


def test_a_usage_at_the_end_counts_better_than_chunks_and_is_no_token() -> None:
    found = read(
        (3.0, chunk("one two")), (4.0, chunk(" three", finish="stop")), (9.0, total(5, 7, 4))
    )
    assert found.arrivals == (3.0, 4.0)
    assert (found.tokens, found.prompt_tokens, found.cached_tokens) == (7, 5, 4)
    assert found.ended_s == 4.0
    assert found.tpot_s == pytest.approx(1 / 6)


def test_a_token_whose_text_is_held_back_counts_where_the_server_counts_on() -> None:
    found = read(
        (3.0, chunk("", usage=usage(5, 0))),
        (4.0, chunk("", usage=usage(5, 1))),
        (5.0, chunk("é", usage=usage(5, 2))),
        (6.0, chunk("", usage=usage(5, 2))),
        (7.0, chunk("", finish="stop", usage=usage(5, 3))),  # the end of sequence
        (8.0, total(5, 3)),
    )
    assert found.arrivals == (4.0, 5.0, 7.0)
    assert found.tokens == 3


def test_a_usage_beside_the_finish_reason_alone_is_no_token() -> None:
    found = read((3.0, chunk("a")), (4.0, chunk("", finish="stop", usage=usage(5, 2))))
    assert found.arrivals == (3.0,)
    assert found.tokens == 2
    assert found.tpot_s == 1.0


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"reasoning_content": "hm"}},
        {"delta": {"reasoning": "hm"}},
        {"delta": {"refusal": "no"}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}},
        {"text": "a"},
    ],
)
def test_whatever_a_token_writes_counts(choice: dict[str, object]) -> None:
    found = read((3.0, json.dumps({"choices": [choice]})), (4.0, "[DONE]"))
    assert found.arrivals == (3.0,)
    assert found.error is None


def test_an_answer_of_no_token_succeeds_and_has_no_time_to_the_first() -> None:
    found = read((3.0, chunk("", finish="stop")), (3.5, total(5, 0)))
    assert (found.error, found.ttft_s, found.tpot_s, found.tokens) == (None, None, None, 0)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ('{"error": {"message": "it is\\nbroken", "code": 500}}', "it is broken"),
        ('{"error": "broken"}', "broken"),
        ('{"error": {"code": 7}}', '{"code": 7}'),
        ("{", "an event is not JSON: '{'"),
        ("[]", "an event is no JSON object: '[]'"),
        ('{"choices": 7}', "an event is no chunk of an answer: '{\"choices\": 7}'"),
    ],
)
def test_what_is_no_chunk_is_a_failure_and_the_first_one_is_told(data: str, said: str) -> None:
    found = read((3.0, chunk("a")), (4.0, data), (5.0, '{"error": "later"}'))
    assert found.error == said
    assert found.arrivals == (3.0,)


def test_a_stream_that_just_stops_is_a_failure() -> None:
    assert "ended early" in (read((3.0, chunk("a"))).error or "")
    assert read((3.0, chunk("a")), (4.0, "[DONE]")).error is None
    assert read((3.0, chunk("a", finish="length"))).error is None


@pytest.mark.parametrize(
    "data",
    [
        *("null", "1", '"x"', '{"choices": [1, null]}', '{"choices": null}', '{"usage": 3}'),
        *('{"choices": [{"delta": 4}]}', '{"choices": [{"delta": null, "text": null}]}'),
        '{"usage": {"prompt_tokens": "x", "completion_tokens": -1, "prompt_tokens_details": 5}}',
        *('{"usage": {"completion_tokens": true}}', '{"error": [[]]}', "[" * 100_000),
    ],
)
def test_no_event_breaks_the_client(data: str) -> None:
    found = read((3.0, data), (4.0, chunk("a", finish="stop")))
    assert found.tokens == 1
