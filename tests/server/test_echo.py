"""`echo`: answers of /v1/completions that begin with their prompts, as evaluations ask for them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from stepweave import LLM
from stepweave.models.source import folder_of
from stepweave.requests.request import TokenLogprob
from stepweave.server.echo import Echo
from stepweave.server.protocol.answers import CompletionAnswer
from stepweave.server.token_texts import Offsets, TokenTexts
from tests.server.in_thread import Running
from tests.server.test_generating import events, post

GREEDY = {"temperature": 0, "max_tokens": 6}
STORY = "Write a short story about a fox. 🦊 étude"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM() as found:
        yield found


def ids_of(llm: LLM, text: str) -> list[int]:
    return list(llm.tokenizer(text)["input_ids"])


def log_probs(ids: list[int]) -> list[float]:
    """Of each token from the second on: by one pass of the model as transformers has it."""
    load: Any = AutoModelForCausalLM.from_pretrained
    model = load(folder_of("embedded"), dtype=torch.float32)
    with torch.no_grad():
        found = model(torch.tensor([ids]), use_cache=False).logits[0].float().log_softmax(-1)
    return [float(found[at, token]) for at, token in enumerate(ids[1:])]


def test_the_prompts_tokens_have_the_log_probabilities_of_the_model(
    service: Running, llm: LLM
) -> None:
    """As `lm-eval` scores continuations: one token more than the text, which nobody looks at."""
    ids = ids_of(llm, STORY)
    asked = {"prompt": [ids], "echo": True, "logprobs": 2, "max_tokens": 1, "temperature": 0}
    answer = post(service, "/v1/completions", **asked)
    CompletionAnswer.model_validate(answer)
    [choice] = answer["choices"]
    told = choice["logprobs"]
    assert {len(each) for each in told.values()} == {len(ids) + 1}
    assert told["token_logprobs"][0] is None
    assert told["top_logprobs"][0] is None
    assert told["token_logprobs"][1:-1] == pytest.approx(log_probs(ids), abs=1e-5)
    best = told["top_logprobs"][1:]
    assert all(len(each) == 2 for each in best)
    assert all(value <= 0 for each in best for value in each.values())
    assert choice["text"].startswith(STORY)
    ends = [*told["text_offset"][1:], None]
    pieces = [choice["text"][at:end] for at, end in zip(told["text_offset"], ends, strict=True)]
    assert "".join(pieces) == choice["text"]
    assert told["text_offset"][-1] == len(STORY)
    assert answer["usage"]["prompt_tokens"] == len(ids)
    assert answer["usage"]["completion_tokens"] == 1


def test_each_choice_begins_with_its_own_prompt_streamed_or_not(service: Running) -> None:
    prompts = ["The fox", "A dog named Max"]
    asked = {"prompt": prompts, "n": 2, "seed": 5, "temperature": 1.0, "max_tokens": 6}
    plain = post(service, "/v1/completions", **asked)["choices"]
    whole = post(service, "/v1/completions", echo=True, **asked)["choices"]
    expected = [prompts[index // 2] + each["text"] for index, each in enumerate(plain)]
    assert [each["text"] for each in whole] == expected
    assert [each["logprobs"] for each in whole] == [None] * 4
    streamed = [""] * 4
    for event in events(service, "/v1/completions", echo=True, **asked):
        for choice in event["choices"]:
            if not streamed[choice["index"]]:
                assert choice["text"] == prompts[choice["index"] // 2], "before any token"
            streamed[choice["index"]] += choice["text"]
    assert streamed == expected


def test_log_probabilities_of_a_text_begin_with_those_of_the_prompt(
    service: Running, llm: LLM
) -> None:
    """The embedded model puts its own format around a text: its tokens are told as they are."""
    plain = post(service, "/v1/completions", prompt=STORY, logprobs=1, **GREEDY)["choices"][0]
    whole = post(service, "/v1/completions", prompt=STORY, logprobs=1, echo=True, **GREEDY)
    [choice] = whole["choices"]
    count = len(plain["logprobs"]["tokens"])
    assert choice["text"] == STORY + plain["text"]
    for key in ("tokens", "token_logprobs", "top_logprobs"):
        assert choice["logprobs"][key][-count:] == plain["logprobs"][key]
    offsets = choice["logprobs"]["text_offset"]
    assert offsets == sorted(offsets)
    assert offsets[-count:] == [len(STORY) + each for each in plain["logprobs"]["text_offset"]]
    assert len(offsets) == count + whole["usage"]["prompt_tokens"]


@pytest.mark.parametrize("ends", [False, True])
def test_of_no_tokens_the_answer_is_the_prompt_with_its_log_probabilities(
    service: Running, ends: bool
) -> None:
    """Also where the token that is drawn, and not told, would end the text."""
    asked: dict[str, Any] = {"prompt": [STORY, "The fox"], "echo": True, "temperature": 0}
    asked |= {"logprobs": 1, "return_token_ids": True}
    more = post(service, "/v1/completions", max_tokens=1, **asked)
    drawn = [token for each in more["choices"] for token in each["token_ids"]]
    asked["stop_token_ids"] = drawn if ends else []
    answer = post(service, "/v1/completions", max_tokens=0, **asked)
    CompletionAnswer.model_validate(answer)
    for choice, longer, prompt in zip(
        answer["choices"], more["choices"], asked["prompt"], strict=True
    ):
        assert choice["text"] == prompt
        assert choice["finish_reason"] == "length"
        assert choice["token_ids"] == []
        for key, each in choice["logprobs"].items():
            assert len(each) > 1
            assert each == longer["logprobs"][key][:-1]
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["prompt_tokens"] == more["usage"]["prompt_tokens"]


def test_a_least_number_of_tokens_is_no_matter_where_there_are_none(service: Running) -> None:
    asked = {"prompt": "The fox", "echo": True, "max_tokens": 0, "min_tokens": 4}
    [choice] = post(service, "/v1/completions", **asked)["choices"]
    assert choice["text"] == "The fox"


def test_of_no_tokens_a_stream_is_the_prompt(service: Running) -> None:
    asked = {"prompt": "The fox", "echo": True, "max_tokens": 0}
    found = [event["choices"][0] for event in events(service, "/v1/completions", **asked)]
    assert "".join(each["text"] for each in found) == "The fox"
    assert found[-1]["finish_reason"] == "length"


def test_the_client_that_people_use_reads_it(service: Running) -> None:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none") as client:
        asked: dict[str, Any] = {"model": "embedded", "max_tokens": 1, "temperature": 0}
        answer = client.completions.create(prompt="The fox", echo=True, logprobs=1, **asked)
    assert answer.choices[0].text.startswith("The fox")
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert all(math.isfinite(each) for each in logprobs.token_logprobs[1:])


def test_a_prompt_without_log_probabilities_is_text_alone(llm: LLM) -> None:
    texts = TokenTexts(llm.tokenizer)
    ids = ids_of(llm, "a fox")
    assert Echo.of(tuple(ids), ids, texts).text == "a fox"
    assert Echo.of("as given", ids, texts).text == "as given"
    told = Echo("a", ids).logprobs([], 1, texts)
    assert told["token_logprobs"] == [None]


def test_a_first_space_that_the_tokenizer_drops_is_in_no_text_and_no_offset() -> None:
    """As tokenizers of Llama 2 do."""
    words = ["▁The", "▁fox", "▁ran"]
    singles = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {each: index for index, each in enumerate([*singles, *words])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    wrap: Any = PreTrainedTokenizerFast
    texts = TokenTexts(wrap(tokenizer_object=backend, bos_token="<s>", unk_token="<unk>"))
    ids = [1, *(vocabulary[each] for each in words)]
    echo = Echo.of(tuple(ids), ids, texts)
    assert echo.text == "The fox ran"
    told = echo.logprobs([TokenLogprob(each, -1.0, 1) for each in ids[1:]], 0, texts)
    assert told["text_offset"] == [0, 0, 3, 7]


def test_of_two_tokens_of_one_name_the_more_probable_is_told() -> None:
    texts: Any = TokenTexts.__new__(TokenTexts)
    texts.spelled, texts._control = [b"T", b"T", b"a"], frozenset()
    found = TokenLogprob(0, -0.5, 1, ((0, -0.5), (2, -1.0), (1, -9.0)))
    assert texts.listed([found], 3, Offsets())["top_logprobs"] == [{"T": -0.5, "a": -1.0}]


def test_a_token_behind_a_character_that_is_never_finished_begins_behind_it() -> None:
    offsets = Offsets()
    first, second = "é".encode()[:1], "é".encode()[1:]
    written = [first, b"a", first, second, first, b"", b"b"]
    text = b"".join(written).decode(errors="replace")
    found = [offsets.next(each) for each in written]
    assert found == [0, 1, 2, 2, 3, 3, 4]
    assert [text[at] for at in found[1::5]] == ["a", "b"]
