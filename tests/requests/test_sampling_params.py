"""Parameters are checked when the object is made, by the rules of a prompts line."""

import json
from collections import UserDict
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from stepweave.configs.errors import ConfigError
from stepweave.configs.prompts import prompt_of
from stepweave.requests.params import SamplingKeys
from stepweave.requests.request import RequestError, SamplingParams
from stepweave.structured.grammar import GrammarSpec
from tests.requests.hostile import HOSTILE

NAMES = [each.name for each in fields(SamplingParams)]


def refusal(name: str, value: Any) -> str | None:
    try:
        SamplingParams(**{name: value})
    except RequestError as error:
        return error.message
    return None


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_value_is_refused_by_name_or_harmless(name: str) -> None:
    refused = 0
    for value in HOSTILE:
        said = refusal(name, value)
        if said is None:
            found = SamplingParams(**{name: value})
            hash(getattr(found, name))  # what is kept is frozen: tuples, texts, numbers
            assert replace(found) == found, "what is kept can be given again"
        else:
            refused += 1
            assert said.startswith(name), value
            assert len(said) < 400, value
            assert "\n" not in said
    assert refused > len(HOSTILE) // 2


def test_every_argument_has_one_rule_and_every_rule_an_argument() -> None:
    assert set(NAMES) == {*SamplingKeys.model_fields, "reasoning"}


LINES: list[dict[str, Any]] = [
    {"max_tokens": 2.5},
    {"max_tokens": True},
    {"max_tokens": 0},
    {"max_tokens": 1 << 21},
    {"temperature": "1"},
    {"temperature": 101},
    {"top_p": 1.5},
    {"min_p": 1},
    {"xtc_probability": 1.1},
    {"xtc_threshold": 0},
    {"dry_multiplier": -1},
    {"dry_base": 0.9},
    {"dry_allowed_length": 0},
    {"dry_allowed_length": 51},
    {"dry_penalty_last_n": -2},
    {"dry_sequence_breakers": "\n"},
    {"dry_sequence_breakers": [""]},
    {"dry_sequence_breakers": ["x"] * 33},
    {"no_repeat_ngram_size": 51},
    {"no_repeat_ngram_size": 2.0},
    {"logprobs": True},
    {"logprobs": 33},
    {"priority": "a"},
    {"priority": 1 << 40},
    {"stop": [1]},
    {"stop": 5},
    {"stop": ["x"] * 17},
    {"stop_token_ids": [-1]},
    {"stop_token_ids": list(range(33))},
    {"logit_bias": {"1": 101}},
    {"logit_bias": {str(token): 0 for token in range(513)}},
    {"bad_words": "a"},
    {"n": 129},
    {"draft_tokens": 17},
    {"seed": -1},
    {"ignore_eos": 1},
    {"structured_outputs": {}},
    {"structured_outputs": {"regx": "a"}},
    {"structured_outputs": {"json_object": False}},
    {"structured_outputs": {"choice": [1]}},
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: json.dumps(line)[:40])
def test_a_prompts_line_and_an_object_are_refused_in_the_same_words(line: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as of_line:
        prompt_of({"prompt": "x", **json.loads(json.dumps(line))}, "line")
    with pytest.raises(RequestError) as of_object:
        SamplingParams(**line)
    said = [problem.message for problem in of_line.value.problems]
    assert of_object.value.message == "; ".join(said)


def test_one_stop_string_is_one_and_lists_and_arrays_are_welcome() -> None:
    params = SamplingParams(
        stop="xyz",
        stop_token_ids=[1, 2],
        bad_words=["a"],
        logit_bias={3: 1, 4: -2.5},
        max_tokens=np.int64(5),  # type: ignore[arg-type]
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        seed=torch.tensor(7),  # type: ignore[arg-type]
    )
    assert (params.stop, params.stop_token_ids, params.bad_words) == (("xyz",), (1, 2), ("a",))
    assert params.biases == ((3, 1.0), (4, -2.5))
    assert [type(each) for each in (params.max_tokens, params.temperature, params.seed)] == [
        *(int, float, int)
    ]
    assert params == SamplingParams(**{name: getattr(params, name) for name in NAMES})
    assert SamplingParams(stop_token_ids=np.array([1, 2])) == SamplingParams(stop_token_ids=(1, 2))  # type: ignore[arg-type]


def test_none_stands_for_the_default() -> None:
    nothing: Any = dict.fromkeys(NAMES)
    assert SamplingParams(**nothing) == SamplingParams()
    line = prompt_of({"prompt": "x", **dict.fromkeys(SamplingKeys.model_fields)})
    assert line.parameters == {}


def test_a_grammar_is_a_mapping_as_in_a_line() -> None:
    schema = {"type": "integer"}
    params = SamplingParams(structured_outputs={"json": schema, "reasoning": False})
    assert params.grammar == GrammarSpec.from_request({"json": schema})
    assert params.reasoning is False
    assert SamplingParams(structured_outputs=UserDict({"regex": "a"})).grammar is not None
    with pytest.raises(RequestError, match="structured_outputs: json: a JSON Schema is an object"):
        SamplingParams(structured_outputs={"json": 5})
    with pytest.raises(RequestError, match=r"'regx' .did you mean 'regex'"):
        SamplingParams(structured_outputs={"regx": "a"})


def test_all_that_is_wrong_is_said_at_once_and_unknown_names_too() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(max_tokens=2.5, priority="a")  # type: ignore[arg-type]
    assert caught.value.message == (
        'max_tokens must be a whole number, not 2.5; priority must be a whole number, not "a"'
    )
    with pytest.raises(RequestError, match=r"unknown parameter 'max_token' .did you mean"):
        SamplingParams.of({"max_token": 3})
    assert SamplingParams.of({"max_tokens": 3}) == SamplingParams(max_tokens=3)
    with pytest.raises(RequestError, match="min_tokens must be at most max_tokens, 4, not 5"):
        SamplingParams(max_tokens=4, min_tokens=5)


@pytest.mark.parametrize(("given", "kept"), [(1e-46, 0.0), (1e-39, 0.0), (1e-37, 1e-37)])
def test_a_temperature_that_is_none_in_float32_is_greedy(given: float, kept: float) -> None:
    assert SamplingParams(temperature=given).temperature == kept


def test_a_penalty_that_makes_scores_infinite_is_refused() -> None:
    with pytest.raises(RequestError, match="repetition_penalty must be"):
        SamplingParams(repetition_penalty=1e-39)


def test_numbers_of_numpy_are_tokens_with_a_bias_too() -> None:
    biases: Any = {np.int64(3): np.float32(2.0), 4: 1}
    assert SamplingParams(logit_bias=biases).biases == ((3, 2.0), (4, 1.0))
