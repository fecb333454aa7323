"""What is asked: lengths, shared texts, equal blocks, and the bodies of requests."""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.configs.prompts import prompts_of
from stepweave.loadgen.ask import Ask, body
from stepweave.loadgen.choices import Endpoint
from stepweave.loadgen.schemas import read_schemas
from stepweave.loadgen.traces import Traced
from stepweave.loadgen.words import WORDS, WordCost, words
from stepweave.loadgen.workload import GivenPrompts, RandomPrompts, ReplayedTrace, UnderSchemas

COST = WordCost(2.0, 10.0)  # two tokens a word, and ten that a chat template adds


def length(ask: Ask) -> int:
    """Words of the prompt."""
    assert isinstance(ask.prompt, str)
    return len(ask.prompt.split())


def shared(first: Ask, second: Ask) -> int:
    """How many words both prompts begin with."""
    pairs = zip(str(first.prompt).split(), str(second.prompt).split(), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


# --- words ----------------------------------------------------------------------------------------


def test_two_prompts_say_what_a_word_costs_and_what_is_added() -> None:
    cost = WordCost.between((32, 7 + 48), (96, 7 + 144))
    assert cost == WordCost(1.5, 7.0)
    assert cost.words(300) == 200
    assert WordCost.between((32, 50), (96, 50)) == WordCost()  # a server that counts nonsense


def test_every_word_comes_equally_often_so_lengths_in_tokens_are_as_on_average() -> None:
    text = words(len(WORDS) * 3, 1, 2).split()
    assert {text.count(word) for word in WORDS} == {3}
    assert len(set(WORDS)) == len(WORDS)


def test_a_longer_text_of_a_seed_begins_with_the_shorter_one() -> None:
    assert words(300, 5).startswith(words(170, 5))
    assert words(300, 5) != words(300, 6)


# --- random prompts -------------------------------------------------------------------------------


def test_prompts_are_as_long_as_asked_with_what_the_template_adds() -> None:
    asks = RandomPrompts(110, 30).asks(5, 0, COST)
    assert [length(ask) for ask in asks] == [50] * 5
    assert [ask.max_tokens for ask in asks] == [30] * 5
    assert len({ask.prompt for ask in asks}) == 5


def test_lengths_are_spread_evenly_over_their_range() -> None:
    asks = RandomPrompts(1000, 100, spread=0.5).asks(400, 1, WordCost())
    lengths = [length(ask) for ask in asks]
    outputs = [ask.max_tokens or 0 for ask in asks]
    assert min(lengths) == pytest.approx(500, abs=20)
    assert max(lengths) == pytest.approx(1500, abs=20)
    assert (min(outputs), max(outputs)) == (50, 150)
    assert sum(lengths) / 400 == pytest.approx(1000, rel=0.05)


def test_the_same_seed_gives_the_same_prompts_and_another_one_others() -> None:
    made = RandomPrompts(50, 10, spread=0.3, prefix=20, prefixes=3)
    assert made.asks(9, 4, COST) == made.asks(9, 4, COST)
    assert not {a.prompt for a in made.asks(9, 4, COST)} & {a.prompt for a in made.asks(9, 5, COST)}


def test_prompts_share_as_many_prefixes_as_asked() -> None:
    asks = RandomPrompts(110, 10, prefix=200, prefixes=3).asks(40, 0, COST)
    prompts = [ask.prompt for ask in asks if isinstance(ask.prompt, str)]
    beginnings = {" ".join(prompt.split()[:100]) for prompt in prompts}
    assert len(beginnings) == 3
    assert {length(ask) for ask in asks} == {100 + 50}


# --- prompts of a file ----------------------------------------------------------------------------

LINES = b"""\
{"id": "a", "prompt": "Hello", "temperature": 0.7, "max_tokens": 9, "stop": ["."]}
{"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]}
{"prompt_token_ids": [3, 0, 5]}
"""


def test_lines_are_asked_in_turn_with_what_they_say() -> None:
    asks = GivenPrompts(prompts_of(LINES, "p")).asks(4, 0, COST)
    assert [ask.name for ask in asks] == ["a", "1", "2", "a"]
    assert asks[0].prompt == "Hello"
    assert asks[0].max_tokens == 9
    assert asks[0].parameters == {"temperature": 0.7, "stop": ["."]}
    assert asks[1].messages == (
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi"},
    )
    assert asks[1].max_tokens == 128, "as everywhere where a line says none"
    assert body(asks[2], Endpoint.COMPLETIONS, "m")["prompt"] == [3, 0, 5]
    assert [ask.max_tokens for ask in GivenPrompts(prompts_of(LINES, "p"), 5).asks(2, 0, COST)] == [
        5,
        5,
    ]


# --- traces ---------------------------------------------------------------------------------------


def test_equal_hash_ids_are_equal_blocks_and_lengths_are_those_of_the_trace() -> None:
    trace = [
        Traced(0.0, 1300, 20, (1, 2, 3)),
        Traced(2.0, 1100, 10, (1, 2, 4)),
        Traced(3.0, 512, 0, (9,)),
        Traced(4.0, 110, 5),
    ]
    first, second, third, fourth = ReplayedTrace(trace).asks(4, 0, COST)
    assert [length(ask) for ask in (first, second, third, fourth)] == [650, 550, 256, 50]
    assert 512 <= shared(first, second) < 520  # two blocks, and perhaps equal words
    assert str(third.prompt).split()[:20] != str(first.prompt).split()[:20]
    assert [ask.max_tokens for ask in (first, second, third)] == [20, 10, 1]
    assert [ask.at_s for ask in (first, second, third)] == [0.0, 2.0, 3.0]


def test_a_trace_can_be_replayed_faster_and_with_shorter_prompts() -> None:
    trace = [Traced(0.0, 1024, 40, (1, 2)), Traced(6.0, 1024, 40, (1, 3))]
    first, second = ReplayedTrace(trace, speed_up=3.0, length_scale=0.25).asks(2, 0, COST)
    assert (first.at_s, second.at_s) == (0.0, 2.0)
    assert (length(first), first.max_tokens) == (128, 10)
    assert 64 <= shared(first, second) < 70


# --- schemas --------------------------------------------------------------------------------------


def test_schemas_of_a_folder_are_asked_for_in_turn(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"title": name}))
    (tmp_path / "notes.txt").write_text("not one")
    schemas = read_schemas(tmp_path)
    asks = UnderSchemas(RandomPrompts(20, 5), schemas).asks(3, 0, COST)
    assert [ask.schema for ask in asks] == [
        ("a", {"title": "a"}),
        ("b", {"title": "b"}),
        ("a", {"title": "a"}),
    ]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "holds no .json file"),
        ({"a.json": "{,}"}, "a.json:1:2: is not JSON"),
        ({"a.json": "[]"}, "a.json:1: must be a JSON Schema"),
        ({"a.json": "[" * 100_000}, "a.json:1: is not usable JSON"),
        ({"a.json": "{", "b.json": "3"}, "b.json:1: must be"),
    ],
)
def test_a_folder_without_good_schemas_is_refused(
    files: dict[str, str], said: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_schemas(tmp_path)
    assert said in raised.value.message
    assert len(raised.value.problems) == max(1, len(files))


# --- bodies ---------------------------------------------------------------------------------------


def test_the_body_of_a_chat_and_of_a_completion() -> None:
    ask = Ask("a", "Hi", 7, schema=("s", {"type": "object"}), parameters={"temperature": 0.5})
    found = body(ask, Endpoint.CHAT, "m", {"temperature": 0.0, "ignore_eos": True})
    assert found == {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 7,
        "temperature": 0.5,
        "ignore_eos": True,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True},
        },
    }
    assert body(Ask("a", "Hi"), Endpoint.COMPLETIONS, "m") == {
        "model": "m",
        "stream": True,
        "prompt": "Hi",
    }


def test_a_completion_asks_for_a_schema_by_the_key_that_its_endpoint_knows() -> None:
    found = body(Ask("a", "Hi", schema=("s", {"type": "object"})), Endpoint.COMPLETIONS, "m")
    assert found["structured_outputs"] == {"json": {"type": "object"}}
    assert "response_format" not in found


def test_what_an_ask_says_itself_goes_before_what_all_requests_say() -> None:
    more = {"model": "other", "stream": False, "max_tokens": 3, "temperature": 1.0, "top_k": 4}
    found = body(Ask("a", "Hi", 7, parameters={"temperature": 0.5}), Endpoint.CHAT, "m", more)
    said = {"model": "m", "stream": True, "max_tokens": 7, "temperature": 0.5, "top_k": 4}
    assert {**found, **said} == found


def test_log_probabilities_go_by_the_name_that_the_endpoint_knows() -> None:
    ask = Ask("a", "Hi", parameters={"logprobs": 3})
    chat = body(ask, Endpoint.CHAT, "m")
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 3)
    assert body(ask, Endpoint.COMPLETIONS, "m")["logprobs"] == 3


def test_a_warm_up_may_be_longer_than_a_trace() -> None:
    trace = ReplayedTrace([Traced(0.0, 5, 2, ()), Traced(1.0, 7, 3, ())])
    asks = trace.asks(5, 0, WordCost(1.0, 0.0))
    assert [ask.max_tokens for ask in asks] == [2, 3, 2, 3, 2]
    assert len({ask.name for ask in asks}) == 5
