"""E: grammars."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.requests.request import Request, SamplingParams
from stepweave.structured.backend import CompiledGrammar
from stepweave.structured.bitmask import words
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.library_backend import BackendOptions
from stepweave.structured.reasoning import with_reasoning
from stepweave.structured.xgrammar_backend import XGrammarBackend
from stepweave.testing.engines import EOS, VOCAB, tiny_grammars, tiny_request
from stepweave.testing.models import tiny_tokenizer
from tests.graph.build import device, host, op, value
from tests.incidents.engines import (
    CHOICE,
    LETTERS,
    allowed,
    decoding,
    greedy,
    masks,
    matchers_for,
    pending,
    serve,
    structured,
    token,
)
from tests.incidents.incident import Derived, Incident, Mistake, Refusal, Told, loosened_wait


class Broken:
    """A grammar whose library fails."""

    spec, vocab_size, warnings = CHOICE, VOCAB, ()

    def matcher(self) -> Any:
        raise RuntimeError("the grammar library fell over")


def with_a_broken_one() -> list[Request]:
    broken = structured(2, CHOICE)
    broken.grammar = cast(CompiledGrammar, Broken())
    return [*greedy(2), broken]


def neighbours_of_a_broken_grammar_are_served() -> None:
    plain = serve(greedy(2), depth=1)
    asked = with_a_broken_one()
    served = serve(asked, depth=2, executor="threads", draft_tokens=2, structured=True)
    assert served[:2] == plain
    assert [each.finish_reason for each in asked] == ["length", "length", "error"]
    # A placeholder from the drafter is cut like a draft that breaks the grammar.
    one = structured(3, LETTERS)
    table = matchers_for(one)
    [places] = masks([decoding(one)], pending([-1, -1]), table)
    assert table.failures == {}
    assert places[0], "the place before it is masked as ever"


def the_broken_one_ends_with_its_error() -> Told:
    asked = with_a_broken_one()
    serve(asked, depth=2, draft_tokens=2, structured=True)
    return Told("the request's own error", asked[2].error or "")


def ended_in_the_drafts() -> None:
    """An end token lies inside the accepted drafts; then one more mask is asked for."""
    matcher = tiny_grammars().compile(LETTERS).matcher()
    a = token("a")
    matcher.advance([a, EOS])
    assert matcher.terminated
    asked = structured(0, LETTERS)
    table = matchers_for(asked)
    table.matchers[asked.uid] = matcher
    [places] = masks([decoding(asked)], pending([a, a]), table)
    assert places == [{EOS}] * 3, "it may end, and nothing else"
    assert table.failures == {}


def more_after_the_end() -> None:
    matcher = tiny_grammars().compile(LETTERS).matcher()
    matcher.advance([token("a"), EOS])
    matcher.advance([token("a")])


def chunked() -> list[Request]:
    params = SamplingParams(max_tokens=8, structured_outputs=CHOICE)
    return [tiny_request(uid, range(3 + uid, 40 + uid), params) for uid in range(2)]


def chunks_with_grammar_and_drafts() -> None:
    plain = serve(chunked(), depth=1, structured=True)
    for depth in (2, 3):
        asked = chunked()
        config = {"draft_tokens": 2, "token_budget": 8, "structured": True}
        assert serve(asked, depth=depth, **config) == plain
        assert {each.text for each in asked} <= {"yes", "no"}
        assert all(each.error is None for each in asked)


def a_chunk_that_advances_the_matcher() -> None:
    """What a prompt's tokens do to a matcher that is moved by every step."""
    tiny_grammars().compile(CHOICE).matcher().advance([7, 8, 9])


MARKER = (9,)


def thinking() -> Any:
    return with_reasoning(tiny_grammars().compile(LETTERS), MARKER).matcher()


def each_place_has_its_own_mask() -> None:
    a = token("a")
    filled = np.zeros((4, words(VOCAB)), dtype=np.int32)
    assert thinking().fill_window([20, *MARKER, a], filled) == 3
    everything = set(range(VOCAB))
    assert [allowed(row) == everything for row in filled] == [True, True, False, False]
    assert a in allowed(filled[2])
    assert EOS not in allowed(filled[2])


def unmasked_behind_the_marker() -> None:
    """A token that a mask for the whole step would have let through."""
    thinking().advance([20, *MARKER, 20])


def matched(behind: int = 1) -> StepGraph:
    """Masks from the grammar's state, in a pipeline of two stages."""
    return StepGraph.build(
        [
            host("schedule", op("", "batch", 300)),
            device("stage0", op("batch", cost=100), op("kv0", "hidden kv0", 2000)),
            device("stage1", op(cost=100), op("hidden kv1", "logits kv1", 2000), stream="s1"),
            host("commit", op("copied", "advanced", 200), offset=behind, actor="grammar"),
            device(
                "bitmask",
                op("batch advanced@-1", "mask_staging", 300),
                op("mask_staging", "mask", 10),
                actor="grammar",
                stream="s1",
            ),
            device(
                "sample",
                op(cost=60),
                op("logits mask", "sampled", 100),
                actor="grammar",
                stream="s1",
            ),
            device(
                "d2h_copy",
                op(cost=30),
                op("sampled", "copied", 40),
                actor="grammar",
                stream="copy",
            ),
        ],
        [
            value("batch"),
            value("hidden", "device"),
            value("logits", "device"),
            value("advanced"),
            value("mask_staging", "pinned"),
            value("mask", "device"),
            value("sampled", "device"),
            value("copied", "pinned"),
        ],
        ["kv0", "kv1"],
        order="keep",
    )


def masks_behind_a_late_commit() -> None:
    compile_plan(matched(behind=2))


LONG = GrammarSpec.from_request(
    {
        "json": {
            "type": "object",
            "properties": {f"p{index}": {"type": "integer"} for index in range(4000)},
        }
    }
)


def a_compiler_is_killed_when_its_time_is_up() -> None:
    backend = XGrammarBackend(
        tiny_tokenizer(VOCAB), VOCAB, (EOS,), BackendOptions(compile_threads=1, compile_limit_s=0.3)
    )
    try:
        with pytest.raises(GrammarError, match=r"compiling takes more than 0\.3 s"):
            backend.compile(LONG)
    finally:
        backend.close()


def nested_too_deep() -> None:
    GrammarSpec.from_request({"regex": "(" * 200 + "a" + ")" * 200})


INCIDENTS = [
    Incident(
        "E1",
        "CVE-2026-105757 (vLLM before 0.30)",
        "a grammar error, or a −1 from the drafter, escaped into the engine loop and killed the "
        "engine that all requests share",
        "each request has a boundary around its grammar's calls; drafts that are no tokens are cut",
        safe=neighbours_of_a_broken_grammar_are_served,
        refusals=(
            Refusal(
                "a grammar library that raises",
                the_broken_one_ends_with_its_error,
                "the request's own error",
                ("RuntimeError: the grammar library fell over",),
            ),
        ),
    ),
    Incident(
        "E2",
        "SGLang #15050, OpenVINO GenAI #4081",
        "an end token inside an accepted draft left a finished matcher, which was asked for one "
        "more mask",
        "having ended is a state of the matcher that every call handles: it allows to stop",
        safe=ended_in_the_drafts,
        refusals=(
            Refusal(
                "a token after the end",
                more_after_the_end,
                "GrammarError",
                ("committed token",),
            ),
        ),
    ),
    Incident(
        "E3",
        "vLLM #29821, discussion",
        "chunked prefill with grammar and drafts crashed the matcher",
        "a chunk that samples nothing yields none: no mask is filled and no matcher moves",
        safe=chunks_with_grammar_and_drafts,
        refusals=(
            Refusal(
                "prompt tokens given to the matcher",
                a_chunk_that_advances_the_matcher,
                "GrammarError",
                ("committed token 7 at index 0 of 3",),
            ),
        ),
    ),
    Incident(
        "E4",
        "vLLM #44297, #43388",
        "the reasoning section ended inside the draft window, and the mask was not switched",
        "masks are filled per position: free up to the end marker, the grammar's behind it",
        safe=each_place_has_its_own_mask,
        refusals=(
            Refusal(
                "a token behind the marker that only a mask for the whole step would allow",
                unmasked_behind_the_marker,
                "GrammarError",
                ("committed token 20",),
            ),
        ),
    ),
    Incident(
        "E5",
        "vLLM #45014",
        "the matcher was several steps behind under pipeline parallelism",
        "masks read the matcher of the step before, at any depth: that carried edge limits how "
        "late the commit may come",
        Derived(
            matched,
            (
                "stage0.device → stage1.device +0",
                "sample.device → d2h_copy.device +0",
                "d2h_copy.device → commit.host +0",
                "stage1.host → bitmask.host +0",
                "sample.host → stage1.host +1",
            ),
            orders=("RAW advanced: commit.host → bitmask.host +1",),
        ),
        (
            Mistake(
                "the matcher moved by the tokens of a step earlier",
                loosened_wait("d2h_copy.device", "commit.host"),
                "SW-RAW-DEVICE-HOST",
                (
                    "commit.host of step i may read it before d2h_copy.device of step i has",
                    "present  only d2h_copy.device(i) before commit.host(i+1)",
                ),
            ),
        ),
        refusals=(
            Refusal(
                "a commit two steps late on the same thread",
                masks_behind_a_late_commit,
                "SW-DEADLOCK",
                ("commit.host", "bitmask.host"),
            ),
        ),
        encoded_as_graph=True,
    ),
    Incident(
        "E6",
        "vLLM #54003",
        "a deeply nested schema blocked the compiler for minutes",
        "limits on nesting and size before, a trial in a process with a limit on processor time",
        safe=a_compiler_is_killed_when_its_time_is_up,
        refusals=(
            Refusal(
                "brackets nested 200 deep",
                nested_too_deep,
                "GrammarError",
                ("brackets are nested 200 deep, more than 64",),
            ),
        ),
    ),
]
