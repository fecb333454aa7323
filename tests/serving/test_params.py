"""What a request may ask for, through the front door: prompts lines in, results out."""

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from stepweave import LLM
from stepweave.configs.errors import ConfigError
from stepweave.configs.prompts import prompt_of
from stepweave.models.source import resolve
from stepweave.requests.increment import Increment
from stepweave.requests.request import RequestError, RequestOutput, SamplingParams
from stepweave.serving.engine import EngineError
from stepweave.structured.auto_backend import AutoBackend
from stepweave.structured.backend import CompiledGrammar
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.testing.models import save_tiny

STORY = "Write a short story about a fox named Ida."
REVIEW = "Is this review positive or negative? What a wonderful lamp!"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(pipeline="async_eagle3_grammar", overrides={"scheduler.prefix_cache": "false"})


@pytest.fixture(scope="module")
def serial() -> LLM:
    return LLM(pipeline="synchronous")


def one(llm: LLM, **line: Any) -> RequestOutput:
    [output] = llm.generate({"prompt": STORY, "max_tokens": 16, **line})
    return output


@pytest.mark.parametrize("space", ["\n", "\t", "  "])
def test_bad_words_that_are_whitespace_ban_no_other(llm: LLM, space: str) -> None:
    plain = one(llm)
    assert " " in plain.text
    assert one(llm, bad_words=[space]).text == plain.text
    assert one(llm, bad_words=[f"{space}{plain.text.split()[1]}"]).text == plain.text


def test_bad_words_are_given_as_texts(llm: LLM) -> None:
    plain = one(llm)
    word = plain.text.split()[1]
    without = one(llm, bad_words=[word])
    assert word in plain.text.split()
    assert word not in without.text.split()
    assert without.error is None
    refused = one(llm, bad_words=["a very long text that nobody would forbid as one word " * 3])
    assert "bad_words" in (refused.error or "")


def test_a_bias_is_given_by_token_id_as_json_has_it(llm: LLM) -> None:
    [token] = llm.tokenizer("fox", add_special_tokens=False)["input_ids"][:1]
    line = json.loads(json.dumps({"logit_bias": {str(token): 100}}))
    assert set(one(llm, **line).token_ids) == {token}
    banned = one(llm, logit_bias={str(token): -100})
    assert token not in banned.token_ids
    assert "token id 99999" in (one(llm, logit_bias={"99999": 1}).error or "")


def test_log_probabilities_are_those_of_the_model_alone(llm: LLM) -> None:
    import torch

    asked = {"logprobs": 2, "prompt_logprobs": 1, "repetition_penalty": 1.3, "temperature": 0.8}
    output = one(llm, **asked, seed=4)
    model: Any = AutoModelForCausalLM.from_pretrained(resolve("embedded"), dtype=torch.float32)
    chat = [{"role": "user", "content": STORY}]
    text = llm.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    prompt = llm.tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*prompt, *output.token_ids]])).logits[0]
    expected = logits.log_softmax(dim=-1)
    assert output.logprobs is not None
    assert output.prompt_logprobs is not None
    found = [*output.prompt_logprobs, *output.logprobs]
    assert [each.token for each in found] == [*prompt[1:], *output.token_ids]
    for each, row in zip(found, expected, strict=False):
        assert each.logprob == pytest.approx(float(row[each.token]), abs=1e-4)
    assert all(len(each.top) == 2 for each in output.logprobs)
    assert any(each.rank > 1 for each in output.logprobs)
    told = output.to_json()
    assert told["logprobs"][0]["top"][0][1] >= told["logprobs"][0]["logprob"]


def test_of_a_small_vocabulary_all_is_told_and_no_neighbour_fails(tmp_path: Path) -> None:
    words = {word: number for number, word in enumerate(["<eos>", "<unk>", *"ACGT"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    folder = save_tiny(tmp_path, vocab_size=len(words))
    tokenizer: Any = PreTrainedTokenizerFast
    tokenizer(tokenizer_object=backend, eos_token="<eos>", unk_token="<unk>").save_pretrained(
        folder
    )
    asked = {"max_tokens": 4, "ignore_eos": True}
    with LLM(folder, pipeline="synchronous") as llm:
        neighbour, told, of_prompt = llm.generate(
            ["ACGT", "CCGA", "GAT"],
            [asked, {**asked, "logprobs": 7}, {**asked, "prompt_logprobs": 32}],
        )
    assert [each.error for each in (neighbour, told, of_prompt)] == [None] * 3
    assert len(neighbour.token_ids) == 4
    for found in (told.logprobs, of_prompt.prompt_logprobs):
        assert found
        assert {len(each.top) for each in found} == {len(words)}


def test_min_tokens_holds_off_the_end_and_gives_way_to_a_grammar(llm: LLM) -> None:
    short = one(llm, prompt=REVIEW, max_tokens=30)
    assert short.finish_reason == "stop"
    longer = one(llm, prompt=REVIEW, max_tokens=30, min_tokens=20)
    assert len(longer.token_ids) > 20 > len(short.token_ids)
    choice = {"choice": ["positive", "negative"]}
    bound = one(llm, prompt=REVIEW, max_tokens=30, min_tokens=20, structured_outputs=choice)
    assert bound.text in ("positive", "negative")
    assert bound.finish_reason == "stop"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_reasoning_comes_first_and_the_grammar_holds_after_it(backend: str) -> None:
    overrides = {"nodes.bitmask.reasoning_end": "lamp", "nodes.bitmask.backend": backend}
    overrides |= {"nodes.bitmask.compile_limit_s": "null"}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"good": {"type": "boolean"}},
        "required": ["good"],
    }
    schema["additionalProperties"] = False
    texts = set()
    for depth, executor in (("1", "serial"), ("2", "threads")):
        reasoned = LLM(
            pipeline="async_eagle3_grammar",
            overrides={**overrides, "depth": depth, "executor": executor},
        )
        line = {"prompt": "Repeat: a lamp and a lamp", "max_tokens": 40}
        output = one(reasoned, **line, structured_outputs={"json": schema})
        assert output.error is None
        before, _, after = output.text.partition("lamp")
        assert before
        jsonschema.validate(json.loads(after), schema)
        at_once = one(reasoned, **line, structured_outputs={"json": schema, "reasoning": False})
        jsonschema.validate(json.loads(at_once.text), schema)
        texts.add((output.text, at_once.text, output.drafted, output.accepted))
        reasoned.close()
    assert len(texts) == 1


def test_reasoning_needs_a_pipeline_that_says_what_ends_it(llm: LLM) -> None:
    asked = {"choice": ["a", "b"], "reasoning": True}
    assert "reasoning_end" in (one(llm, structured_outputs=asked).error or "")


def test_a_keyword_that_would_be_ignored_is_refused_or_reported() -> None:
    items = {"type": "integer", "minimum": 0, "maximum": 999}
    schema = {"type": "array", "items": items, "uniqueItems": True, "maxItems": 3}
    # No process of each library that tries it: those take seconds to start.
    here = {"nodes.bitmask.compile_limit_s": "null"}
    strict = LLM(pipeline="async_grammar", overrides=here)
    assert one(strict, structured_outputs={"json": schema}).error == (
        "json: at #: 'uniqueItems' cannot be enforced; `nodes.bitmask.strict: false` in the "
        "pipeline goes on without, with a warning"
    )
    strict.close()
    loose = LLM(pipeline="async_grammar", overrides={**here, "nodes.bitmask.strict": "false"})
    output = one(loose, structured_outputs={"json": schema})
    loose.close()
    assert output.error is None
    assert any("uniqueItems" in warning for warning in output.warnings)
    assert output.to_json()["warnings"] == list(output.warnings)


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_a_grammar_that_is_kept_serves_the_next_call_from_its_first_step(backend: str) -> None:
    overrides = {"nodes.bitmask.backend": backend, "nodes.bitmask.compile_limit_s": "null"}
    asked = {"choice": ["positive", "negative"]}
    with LLM(pipeline="async_grammar", overrides=overrides) as llm:
        texts = {one(llm, prompt=REVIEW, structured_outputs=asked).text for _ in range(3)}
    assert len(texts) == 1
    assert texts <= {"positive", "negative"}


def test_an_output_names_the_library_that_served_its_grammar(llm: LLM) -> None:
    output = one(llm, prompt=REVIEW, structured_outputs={"choice": ["positive", "negative"]})
    assert output.notes == ("choice: served by llguidance",)
    assert output.to_json()["notes"] == list(output.notes)
    assert one(llm, prompt=REVIEW).notes == ()


def test_a_pipeline_with_one_library_says_that_the_other_can_be_tried() -> None:
    overrides = {"nodes.bitmask.backend": "llguidance", "nodes.bitmask.compile_limit_s": "null"}
    sequence = {"type": "sequence", "elements": [{"type": "const_string", "value": "ab"}]}
    asked = {"structural_tag": {"type": "structural_tag", "format": sequence}}
    with LLM(pipeline="async_grammar", overrides=overrides) as one_library:
        error = one(one_library, structured_outputs=asked).error or ""
    assert error.endswith("; `nodes.bitmask.backend: auto` tries xgrammar as well")
    with LLM(
        pipeline="async_grammar", overrides={**overrides, "nodes.bitmask.backend": "auto"}
    ) as both:
        assert one(both, structured_outputs=asked).text == "ab"


def test_a_grammar_that_takes_long_keeps_nobody_waiting(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    others_done = threading.Event()
    compile_now = AutoBackend.compile

    def slowly(self: AutoBackend, spec: GrammarSpec) -> CompiledGrammar:
        assert others_done.wait(60), "the others are not served while this one is compiled"
        return compile_now(self, spec)

    monkeypatch.setattr(AutoBackend, "compile", slowly)
    slow = {"prompt": REVIEW, "structured_outputs": {"choice": ["positive", "negative", "slow"]}}

    def progress(ended: int, tokens: int) -> None:
        if ended == 2:
            others_done.set()

    lines: list[Any] = [
        {"prompt": STORY, "max_tokens": 8},
        slow,
        {"prompt": REVIEW, "max_tokens": 8},
    ]
    outputs = llm.generate(lines, on_progress=progress)
    assert [output.error for output in outputs] == [None] * 3
    assert outputs[1].text in ("positive", "negative", "slow")


def test_a_grammar_that_fails_late_ends_its_request_only(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: AutoBackend, spec: GrammarSpec) -> CompiledGrammar:
        raise GrammarError("choice: took longer than 0.1 s")

    monkeypatch.setattr(AutoBackend, "compile", fails)
    lines: list[Any] = [
        {"prompt": STORY, "max_tokens": 8},
        {"prompt": REVIEW, "structured_outputs": {"choice": ["never", "compiled"]}},
    ]
    plain, failed = llm.generate(lines)
    assert plain.error is None
    assert failed.finish_reason == "error"
    assert "took longer" in (failed.error or "")


def test_cancelling_does_not_wait_for_a_grammar(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    compile_now = AutoBackend.compile

    def stuck(self: AutoBackend, spec: GrammarSpec) -> CompiledGrammar:
        go_on.wait(60)
        return compile_now(self, spec)

    monkeypatch.setattr(AutoBackend, "compile", stuck)

    def progress(ended: int, tokens: int) -> None:
        llm.cancel()

    lines: list[Any] = [
        {"prompt": STORY, "max_tokens": 100, "ignore_eos": True},
        {"prompt": REVIEW, "structured_outputs": {"choice": ["not", "now"]}},
    ]
    outputs = llm.generate(lines, on_progress=progress)
    go_on.set()
    assert [output.finish_reason for output in outputs] == ["cancelled", "cancelled"]
    assert 0 < len(outputs[0].token_ids) < 100
    assert outputs[1].token_ids == ()


def test_a_better_priority_is_served_first() -> None:
    llm = LLM(pipeline="async", overrides={"scheduler.max_rows": "1"})
    ended: list[str] = []
    lines: list[Any] = [
        {"id": "late", "prompt": STORY, "max_tokens": 4, "priority": 5},
        {"id": "soon", "prompt": STORY, "max_tokens": 4, "priority": -1},
        {"id": "plain", "prompt": STORY, "max_tokens": 4},
    ]
    llm.generate(lines, on_text=lambda name, piece: ended.append(name))
    assert list(dict.fromkeys(ended)) == ["soon", "plain", "late"]


def test_a_backend_that_is_not_installed_is_said_when_the_pipeline_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(EngineError, match=r"pip install"):
        LLM(pipeline="async_grammar", overrides={"nodes.bitmask.backend": "llguidance"})


def test_requests_that_arrive_in_time_are_served_just_in_time() -> None:
    texts = []
    for admission in ("eager", "just_in_time"):
        llm = LLM(pipeline="async", overrides={"policies.admission": admission})
        table = llm.engine.new_table()
        table.open()
        line = prompt_of({"prompt": STORY, "max_tokens": 12})
        made = [
            request
            for index in range(4)
            for request in llm.service.intake.requests(
                iter([index]),
                str(index),
                STORY,
                line,
                llm.service.intake.prompts.params(line, None),
            )
        ]

        def next_one(told: Increment, table: Any = table, made: Any = made) -> None:
            if told.output is not None:
                if int(told.id) + 1 < len(made):
                    table.submit(made[int(told.id) + 1])
                else:
                    table.close()

        for request in made:
            request.deliver = next_one
        table.submit(made[0])
        llm.engine.run(table)
        assert {request.finish_reason for request in made} == {"length"}
        texts.append([request.text for request in made])
    assert texts[0] == texts[1]


def test_a_pipeline_without_grammars_says_which_key_gives_it_some() -> None:
    asked = {"choice": ["positive", "negative"]}
    with LLM(pipeline="async") as without:
        error = one(without, prompt=REVIEW, structured_outputs=asked).error or ""
    assert error.endswith("set `nodes.bitmask.after: forward`")
    with LLM(pipeline="async", overrides={"nodes.bitmask.after": "forward"}) as served:
        assert one(served, prompt=REVIEW, structured_outputs=asked).text in asked["choice"]


OPTIONS: dict[str, dict[str, Any]] = {
    "min_p": {"temperature": 1.2, "seed": 5, "min_p": 0.4},
    "xtc_probability": {"temperature": 1.0, "seed": 5, "xtc_probability": 1.0},
    "xtc_threshold": {
        "temperature": 1.0,
        "seed": 5,
        "xtc_probability": 1.0,
        "xtc_threshold": 0.02,
    },
    "dry_multiplier": {"dry_multiplier": 5.0, "dry_allowed_length": 1},
    "dry_base": {"dry_multiplier": 0.5, "dry_allowed_length": 1, "dry_base": 4.0},
    "dry_allowed_length": {"dry_multiplier": 5.0, "dry_allowed_length": 3},
    "dry_penalty_last_n": {
        "dry_multiplier": 5.0,
        "dry_allowed_length": 1,
        "dry_penalty_last_n": 6,
    },
    "dry_sequence_breakers": {
        "dry_multiplier": 5.0,
        "dry_allowed_length": 1,
        "dry_sequence_breakers": [" the", "a", ".", "e"],
    },
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_changes_the_text_and_that_is_equal_at_every_depth(
    llm: LLM, serial: LLM, name: str
) -> None:
    asked = {"max_tokens": 48, **OPTIONS[name]}
    without = {key: value for key, value in asked.items() if key != name}
    output = one(llm, **asked)
    assert output.error is None
    assert output.token_ids != one(llm, **without).token_ids
    assert output.token_ids == one(serial, **asked).token_ids


def test_no_ngram_comes_twice(llm: LLM) -> None:
    output = one(llm, max_tokens=64, no_repeat_ngram_size=2, ignore_eos=True)
    plain = one(llm, max_tokens=64, ignore_eos=True)

    def again(ids: tuple[int, ...]) -> int:
        pairs = list(itertools.pairwise(ids))
        return len(pairs) - len(set(pairs))

    assert again(output.token_ids) == 0
    assert again(plain.token_ids) > 0


@pytest.mark.parametrize("name", ["use_beam_search", "num_beams", "length_penalty"])
def test_beam_search_is_refused_with_the_reason(name: str) -> None:
    said = f"{name} is not supported: beam search chooses among whole texts"
    with pytest.raises(RequestError, match=said):
        SamplingParams.of({name: 2})
    with pytest.raises(ConfigError, match=said):
        prompt_of({"prompt": "x", name: 2})
