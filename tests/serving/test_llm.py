"""The front door: what users get for good input, for bad input, and when they interrupt."""

import re
import signal
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepweave.configs.errors import ConfigError
from stepweave.graph.errors import GraphError
from stepweave.models.errors import ModelError
from stepweave.nodes.ops.masks import MaskBuffer, MatcherTable
from stepweave.requests.request import SamplingParams
from stepweave.serving.engine import EngineError
from stepweave.serving.llm import LLM, Interrupted
from stepweave.structured.backend import CompiledGrammar
from stepweave.structured.grammar import GrammarError
from stepweave.testing.models import save_tiny

SMALL = {
    "scheduler.num_blocks": "64",
    "scheduler.max_rows": "4",
    "model.dtype": "float64",
    "model.invariant": "false",
}
HERE = {"nodes.bitmask.compile_limit_s": "null"}
"""Grammars are tried in this process: one of each library for it takes seconds to start."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "target", seed=1)


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    overrides = {**SMALL, **HERE, "nodes.draft.model": str(model), "model.name": str(model)}
    return LLM(pipeline="quickstart", overrides=overrides)


@pytest.fixture(scope="module")
def eager(model: Path) -> LLM:
    """Calls the model in each step: nothing is recorded."""
    drafter = {"nodes.draft.model": str(model), "graphs": "false"}
    overrides = {**SMALL, **HERE, **drafter, "model.name": str(model)}
    return LLM(pipeline="quickstart", overrides=overrides)


def small(model: Path, pipeline: str = "async", **more: str) -> LLM:
    return LLM(pipeline=pipeline, overrides={**SMALL, "model.name": str(model), **more})


def test_a_directory_and_a_text_give_the_tokens_of_transformers(model: Path) -> None:
    prompt = "the quick brown"
    own: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer(prompt, return_tensors="pt")
    expected = own.generate(**ids, max_new_tokens=20, do_sample=False)[
        0, ids["input_ids"].shape[1] :
    ]
    [output] = small(model).generate(prompt, SamplingParams(max_tokens=20))
    assert output.token_ids == tuple(expected.tolist())
    assert output.prompt == prompt
    assert output.finish_reason in ("stop", "length")


def test_outputs_come_in_the_order_of_the_prompts_and_texts_stream_whole(llm: LLM) -> None:
    pieces: dict[str, str] = {}
    progress: list[tuple[int, int]] = []
    lines: list[Any] = [
        {"id": "b", "prompt": "hello", "max_tokens": 9},
        {"prompt": "world", "max_tokens": 3},
        {"id": "a", "prompt": "fox", "max_tokens": 14, "temperature": 0.8, "seed": 3},
    ]
    outputs = llm.generate(
        lines,
        on_text=lambda name, piece: pieces.update({name: pieces.get(name, "") + piece}),
        on_progress=lambda done, tokens: progress.append((done, tokens)),
    )
    assert [output.id for output in outputs] == ["b", "1", "a"]
    assert {output.id: output.text for output in outputs if output.text} == pieces
    assert progress[-1] == (3, sum(len(output.token_ids) for output in outputs))
    assert progress == sorted(progress)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"prompt": "x" * 4000}, "the context holds no more than"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "a", "max_tokns": 3}, "max_tokns"),
        ({"prompt": "a", "structured_outputs": {"regex": "(((a"}}, "regex"),
        ({"prompt": "a", "structured_outputs": {"json": {"type": "strng"}}}, "json"),
        ({"prompt": "a", "structured_outputs": {"json": False}}, "json"),
        ({"prompt": "a", "structured_outputs": {"grammar": "rot ::= 1"}}, "grammar"),
        ({"prompt": "a", "structured_outputs": {"choice": []}}, "choice"),
        ([3, 100000], "token id 100000 is outside"),
        ([3, -1], "token id -1 is outside"),
    ],
)
def test_a_request_that_cannot_be_served_fails_alone(llm: LLM, line: Any, reason: str) -> None:
    good = {"prompt": "hello world", "max_tokens": 6}
    alone = llm.generate([good])[0]
    lines: list[Any] = [good, line, good]
    first, bad, last = llm.generate(lines)
    assert bad.finish_reason == "error"
    assert bad.error is not None
    assert reason in bad.error
    assert "Traceback" not in bad.error
    assert first.token_ids == last.token_ids == alone.token_ids
    assert first.error is None


def test_stop_token_ids_are_checked_too(llm: LLM) -> None:
    [output] = llm.generate("hello", SamplingParams(stop_token_ids=(10**6,)))
    assert output.error is not None
    assert "stop_token_ids: token id 1000000 is outside" in output.error


def test_structured_outputs_follow_their_grammars(llm: LLM) -> None:
    lines: list[Any] = [
        {"prompt": "a b", "structured_outputs": {"choice": ["yes", "no"]}},
        {"prompt": "a b", "structured_outputs": {"regex": "[0-9]{3}-[a-z]{2}"}},
        {"prompt": "a b", "max_tokens": 5},
    ]
    choice, regex, plain = llm.generate(lines)
    assert choice.text in ("yes", "no")
    assert len(regex.text) == 6
    assert regex.text[3] == "-"
    assert regex.finish_reason == choice.finish_reason == "stop"
    assert plain.error is None


def test_a_matcher_that_breaks_under_way_ends_its_request_only(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        {"prompt": "a b", "max_tokens": 12, "structured_outputs": {"regex": "[a-z]{30}"}},
        {"prompt": "a b", "max_tokens": 12, "structured_outputs": {"regex": "[a-z]{40}"}},
        {"prompt": "hello", "max_tokens": 12},
    ]
    alone = llm.generate(lines)
    made, first = MatcherTable.of, alone[0].id
    fills = 0

    class Broken:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def fill_window(self, drafts: Any, rows: Any) -> int:
            nonlocal fills
            fills += 1
            if fills >= 3:
                raise RuntimeError("the library broke")
            return int(self.inner.fill_window(drafts, rows))

    def of(self: MatcherTable, row: Any) -> Any:
        matcher = made(self, row)
        if matcher is not None and row.request.id == first and not isinstance(matcher, Broken):
            matcher = self.matchers[row.request.uid] = Broken(matcher)
        return matcher

    monkeypatch.setattr(MatcherTable, "of", of)
    broken, *others = llm.generate(lines)
    assert broken.finish_reason == "error"
    assert "the library broke" in (broken.error or "")
    assert broken.token_ids == alone[0].token_ids[: len(broken.token_ids)]
    assert [o.token_ids for o in others] == [o.token_ids for o in alone[1:]]


def test_a_lost_mask_ends_its_step_instead_of_sampling_freely(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MaskBuffer, "fill", lambda *args: None)
    lines = [{"prompt": "a b", "structured_outputs": {"choice": ["yes", "no"]}}]
    [output] = llm.generate(lines)
    assert output.finish_reason == "error"
    assert "came without its mask" in (output.error or "")
    assert output.token_ids == ()


def test_a_listener_that_raises_ends_its_request_only(llm: LLM) -> None:
    def on_text(name: str, piece: str) -> None:
        if name == "0":
            raise ValueError("no room on the screen")

    lines = [{"prompt": "hello", "max_tokens": 8}, {"prompt": "hello", "max_tokens": 8}]
    broken, other = llm.generate(lines, on_text=on_text)
    assert broken.finish_reason == "error"
    assert re.fullmatch(
        r"`on_text` raised ValueError: no room on the screen \(test_llm\.py:[0-9]+, in on_text\)",
        broken.error or "",
    )
    assert len(other.token_ids) == 8


def test_cancel_keeps_what_was_settled(llm: LLM) -> None:
    def on_progress(done: int, tokens: int) -> None:
        if tokens >= 10:
            llm.cancel()

    lines = [{"prompt": "hello", "max_tokens": 150, "ignore_eos": True} for _ in range(2)]
    outputs = llm.generate(lines, on_progress=on_progress)
    assert {output.finish_reason for output in outputs} == {"cancelled"}
    assert 10 <= sum(len(output.token_ids) for output in outputs) < 100
    again = llm.generate([{"prompt": "hello", "max_tokens": 4}])
    assert again[0].error is None


def test_ctrl_c_gives_what_was_settled_and_leaves_no_thread(llm: LLM) -> None:
    before = set(threading.enumerate())
    pressed: list[bool] = []
    main = threading.main_thread().ident
    assert main is not None

    def on_progress(done: int, tokens: int) -> None:
        if tokens >= 10 and not pressed:
            pressed.append(True)
            signal.pthread_kill(main, signal.SIGINT)

    lines = [{"prompt": "hello", "max_tokens": 150, "ignore_eos": True} for _ in range(2)]
    with pytest.raises(Interrupted) as caught:
        llm.generate(lines, on_progress=on_progress)
    outputs = caught.value.outputs
    assert [output.finish_reason for output in outputs] == ["cancelled", "cancelled"]
    assert all(0 < len(output.token_ids) < 150 for output in outputs)
    assert set(threading.enumerate()) <= before, "one of an earlier test may have ended meanwhile"


def test_a_failing_node_is_named_with_its_step_and_cause(
    eager: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0
    forward = type(eager.engine.model).forward

    def failing(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise MemoryError("no memory on the device")
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(eager.engine.model), "forward", failing)
    before = set(threading.enumerate())
    lines: list[Any] = [{"prompt": "hello", "max_tokens": 20}, {"prompt": "fox"}]
    with caplog.at_level("ERROR", logger="stepweave.engine"):
        outputs = eager.generate(lines)
    [logged] = caplog.records
    assert logged.exc_info is not None
    assert "in failing" in caplog.text, "the traceback leads to the line that raised"
    assert {output.finish_reason for output in outputs} == {"error"}
    for output in outputs:
        said = (
            r"node '\w+': op '[\w.]+' failed in step \d+: MemoryError: no memory on the device "
            r"\(test_llm\.py:\d+, in failing\)"
        )
        assert re.fullmatch(said, output.error or "")
    assert set(threading.enumerate()) <= before, "one of an earlier test may have ended meanwhile"
    monkeypatch.undo()
    assert eager.generate([{"prompt": "hello", "max_tokens": 4}])[0].error is None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("inputs", "its logits, 'inputs' of node 'prepare_inputs', must be a tensor [1, 1, "),
        ("hidden", "its logits, 'hidden' of node 'forward', must be a tensor [1, 1, "),
        ("prompt_logits", "but its logits, 'prompt_logits' of node 'forward', are None"),
    ],
)
def test_logits_that_are_none_are_told_with_the_node_that_wrote_them(
    model: Path, value: str, told: str
) -> None:
    wired = {"nodes.sample.reads": {"logits": value}}
    with LLM(pipeline="async", overrides={**SMALL, "model.name": str(model), **wired}) as llm:
        [output] = llm.generate("A", {"max_tokens": 2})
    assert "node 'sample': op 'sample.device' failed in step 0: WrongResult: " in str(output.error)
    assert told in str(output.error)


def test_a_grammar_that_is_late_ends_its_request_and_a_failing_step_only_its_own(
    eager: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the compiler is awaited the run goes on, over a step that fails."""
    late: Future[CompiledGrammar] = Future()
    monkeypatch.setattr(eager.service.intake, "grammar", lambda *args: late)
    calls = 0
    forward = type(eager.engine.model).forward

    def failing(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 6:
            threading.Timer(0.2, late.set_exception, [GrammarError("over the limit")]).start()
            raise RuntimeError("a bad step")
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(eager.engine.model), "forward", failing)
    lines: list[Any] = [
        {"prompt": "a", "structured_outputs": {"regex": "a"}},
        {"prompt": "hello", "max_tokens": 30, "ignore_eos": True},
    ]
    slow, broken = eager.generate(lines)
    assert (slow.finish_reason, slow.error) == ("error", "over the limit")
    assert "RuntimeError: a bad step" in (broken.error or "")
    monkeypatch.undo()
    assert eager.generate([{"prompt": "hello", "max_tokens": 4}])[0].error is None


def test_the_summary_counts_settled_work_and_names_the_plan(model: Path) -> None:
    engine = small(model, "async_speculation", **{"nodes.draft.model": str(model)})
    lines: list[Any] = [{"prompt": "hello", "max_tokens": 10}, {"prompt": "fox"}]
    outputs = engine.generate(lines)
    summary = engine.summary()
    assert summary["tokens"] == sum(len(output.token_ids) for output in outputs)
    assert summary["drafted"] == sum(output.drafted for output in outputs) > 0
    # The drafter is the target: only drafts behind a request's last token are not accepted.
    assert summary["drafted"] - 2 * 3 <= summary["accepted"] <= summary["drafted"]
    assert summary["accepted"] > 0
    windows = engine.engine.totals.windows
    assert summary["acceptance_length"] == 1 + summary["accepted"] / windows
    assert summary["depth"] == 2
    assert summary["executor"] == "threads"
    assert summary["waits"] == len(engine.plan.waits)
    assert summary["slots"]["batch"] is None
    assert summary["steps"] < summary["tokens"]


def test_a_drafter_with_another_vocabulary_is_refused(model: Path, tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "other", seed=2, vocab_size=64)
    with pytest.raises(ModelError, match=r"node 'draft': .* must share one vocabulary"):
        small(model, "async_speculation", **{"nodes.draft.model": str(other)})


def test_a_pipeline_without_grammars_refuses_the_request_that_wants_one(model: Path) -> None:
    engine = small(model)
    lines: list[Any] = [
        {"prompt": "a", "structured_outputs": {"choice": ["x"]}},
        {"prompt": "a", "max_tokens": 3},
    ]
    asked, plain = engine.generate(lines)
    assert "no grammars" in (asked.error or "")
    assert plain.error is None


def test_messages_go_through_the_chat_template(llm: LLM) -> None:
    [chat] = llm.generate([{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}])
    [text] = llm.generate([{"prompt": "hi", "max_tokens": 5}])
    assert chat.error is None
    assert chat.prompt == "hi"
    assert chat.token_ids != text.token_ids


def test_unknown_names_in_a_pipeline_are_found_before_anything_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("version: 2\nextends: async.yaml\nmodel: {name: /nowhere}\nexecuter: serial\n")
    with pytest.raises(
        ConfigError, match=r"mine.yaml:4:1.*'executer' \(did you mean 'executor'\?\)"
    ):
        LLM(pipeline=path)
    path.write_text("version: 2\nextends: async.yaml\nnodes:\n  sample: {reads: {logit: logits}}\n")
    with pytest.raises(GraphError, match="reads no 'logit'"):
        LLM(pipeline=path)


def test_an_abstract_graph_cannot_generate() -> None:
    with pytest.raises(EngineError, match="abstract graph"):
        LLM(pipeline="abstract_decode")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "placement",
    [
        "nodes: {bitmask: {actor: grammar}}",
        "nodes: {draft: {stream: draft}}",
        "nodes: {bitmask: {actor: grammar, stream: copy}, draft: {stream: draft}}",
        "slots: {staging: 1, mask_host: 1, host_sampled: 1}",
        "order: keep\ndepth: 3",
    ],
)
def test_placement_changes_the_waits_and_never_the_tokens(
    llm: LLM, model: Path, tmp_path: Path, placement: str
) -> None:
    lines: list[Any] = [
        {"prompt": "hello world", "max_tokens": 12},
        {"prompt": "a b", "max_tokens": 20, "structured_outputs": {"regex": "[a-z]{4,30}"}},
        {"prompt": "fox", "max_tokens": 9, "temperature": 0.7, "seed": 4},
    ]
    path = tmp_path / "placed.yaml"
    path.write_text(f"version: 2\nextends: quickstart.yaml\n{placement}\n")
    overrides = {**SMALL, **HERE, "nodes.draft.model": str(model), "model.name": str(model)}
    placed = LLM(pipeline=path, overrides=overrides)
    if "nodes" in placement or "staging" in placement:
        assert len(placed.plan.waits) > 2
    assert all(wait.protects for wait in placed.plan.waits)
    expected = llm.generate(lines)
    found = placed.generate(lines)
    assert found == expected


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    each = [
        SamplingParams(max_tokens=2, ignore_eos=True),
        SamplingParams(max_tokens=5, ignore_eos=True),
    ]
    outputs = llm.generate(["hello", "hello"], each)
    assert [len(output.token_ids) for output in outputs] == [2, 5]
    assert outputs[1].token_ids[:2] == outputs[0].token_ids
    with pytest.raises(ValueError, match="1 prompts, but 2 sets"):
        llm.generate(["hello"], each)
