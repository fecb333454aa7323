"""Captured graphs under the whole engine, as tapes on a CPU: the tokens of the serial loop."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import transformers

from stepweave import LLM, SamplingParams
from stepweave.configs.load import load_config, shipped
from stepweave.configs.schema import PipelineConfig
from stepweave.executors.captured_segment import IDLE
from stepweave.executors.counts import Counts
from stepweave.executors.course import Course, Goal
from stepweave.nodes.ops.staging import Staging
from stepweave.requests.buckets import powers_of_two, rounded_up
from stepweave.requests.request import RequestOutput
from stepweave.serving.async_llm import AsyncLLM
from stepweave.serving.plans import Load, stay
from stepweave.structured.grammar import GrammarSpec
from stepweave.testing.devices.recorded_calls import RecordedCalls, Taped
from tests.graph.shipped_plans import GRAPHS

GOLDEN = Path(__file__).parent / "golden" / "launches"
NUMBER = re.compile(r"\b\d+\b")

PROMPTS = [
    "Write a short story about a fox named Ida.",
    "Ada is 41 and lives in Oslo.",
    "Hello",
    "The cat",
    "Once upon a time there was",
]
GREEDY = SamplingParams(max_tokens=40)
LEG = 9  # steps from a switch to the next
SCHEMA = GrammarSpec.from_request({"regex": "[a-z]{1,9}( [a-z]{1,9}){2,6}"})


@pytest.fixture(autouse=True)
def sizes_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few sizes of batches, and block tables of one width, as they are for `executor: cuda`."""
    monkeypatch.setattr("stepweave.serving.engine.every_size", powers_of_two)
    whole = property(lambda staging: False, lambda staging, gathered: None)
    monkeypatch.setattr(Staging, "_gathered", whole, raising=False)


def told(outputs: list[RequestOutput]) -> list[tuple[object, ...]]:
    return [
        (out.token_ids, out.finish_reason, out.error, out.drafted, out.accepted) for out in outputs
    ]


def taped(name: str, **overrides: str) -> tuple[LLM, RecordedCalls]:
    """The plan and the sizes that executor cuda would have, captured as tapes."""
    with patch.object(PipelineConfig, "captured", property(lambda config: True)):
        llm = LLM(pipeline=name, overrides=overrides)
    llm.engine.steer = in_turn
    assert llm.engine.buckets == powers_of_two(llm.engine.limits.max_rows)
    device = RecordedCalls(graphs=True, pieces=512)
    llm.engine.executor = device
    return llm, device


def in_turn(course: Course, step: int, load: Load) -> Goal:
    """To the next plan after so many steps of a run, where there are several."""
    names = [*course.plans]
    due = step >= LEG * (len(course.turned) + 1)
    return Goal(names[(names.index(course.at) + due) % len(names)])


def counts(device: RecordedCalls) -> list[Counts]:
    assert device.captures is not None
    every = device.captures.counts.values()
    return [each for each in every if each.eager or each.replayed]  # of plans that have run


def params_for(name: str) -> list[SamplingParams]:
    params = [
        GREEDY,
        replace(GREEDY, temperature=0.9, top_p=0.9, seed=3),
        replace(GREEDY, repetition_penalty=1.3),
        replace(GREEDY, max_tokens=9, logprobs=2),
        GREEDY,
    ]
    config = load_config(name)
    if isinstance(config, PipelineConfig) and "bitmask" in config.nodes:
        params[1] = replace(params[1], structured_outputs=SCHEMA)
        params[4] = replace(GREEDY, structured_outputs=SCHEMA)
    return params


RUNNABLE = [name for name in shipped() if name not in GRAPHS and name != "base"]
SAMPLE = (
    *("adaptive", "async_ngram", "async_speculation"),
    *("drafter_stream", "grammar_worker", "synchronous"),
)
"""Each kind of node, thread and stream, and plans; the others have some of these together."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.nightly) for name in RUNNABLE],
)
def test_replayed_steps_give_the_tokens_and_counts_of_the_serial_loop(name: str) -> None:
    plain = LLM(pipeline=name, overrides={"executor": "serial", "depth": "1"})
    plain.engine.steer = stay
    mixed = params_for(name)
    llm, device = taped(name)
    # A plan without the drafter drafts nothing; suffixes are looked up in what was settled before.
    unlike = any(form.drafter is None for form in llm.config.forms.values())
    what = 3 if unlike or name == "async_suffix" else None

    def seen(outputs: list[RequestOutput]) -> list[tuple[object, ...]]:
        return [each[:what] for each in told(outputs)]

    expected = [seen(plain.generate(PROMPTS, params)) for params in ([GREEDY] * 5, mixed)]
    # What prompts have in common is computed once; from then on their steps are of one size.
    for params, wanted, times in zip(([GREEDY] * 5, mixed), expected, (4, 2), strict=True):
        for _ in range(times):
            assert seen(llm.generate(PROMPTS, params)) == wanted
    assert device.captures is not None
    busy = [each for each in counts(device) if each.eager.get(IDLE, 0) + 1 < each.steps]
    replayed = [each.replayed > 0 for each in busy]  # none swaps, forks or reads images here
    assert replayed
    in_pieces = device.captures.pieces["forward.device"].replayed > 0
    # A plan of several is not on for long enough to have all of it captured.
    replays = any(replayed) if llm.config.plans else all(replayed) and in_pieces
    assert replays, device.captures.notes()
    assert len(llm.engine.turned) > 2 if llm.config.plans else not llm.engine.turned
    assert device.empty_captures == 0, "a step with nothing to do is no graph"
    assert device.pools_in_capture == set(), "no capture fails"


def test_after_warming_up_steady_steps_are_replayed() -> None:
    llm, device = taped("quickstart", **{"scheduler.max_rows": "4"})
    seen: list[tuple[int, int]] = []
    llm.warm_up(lambda done, of, what: seen.append((done, of)))
    assert seen == [(done, 9) for done in range(10)], "three kinds, of 4, 2 and 1 rows"
    assert llm.summary()["tokens"] == 0, "nobody asked for these"
    is_no_more_than_golden("quickstart_of_4_rows", counted(device))
    before = [(each.captured, each.eager.get("first of its shape", 0)) for each in counts(device)]
    params = [GREEDY, replace(GREEDY, structured_outputs=SCHEMA), GREEDY]
    replayed = [each.replayed for each in counts(device)]
    outputs = llm.generate(PROMPTS[:3], params)
    plain = LLM(pipeline="quickstart", overrides={"executor": "serial"})
    assert told(outputs) == told(plain.generate(PROMPTS[:3], params))
    after = [(each.captured, each.eager.get("first of its shape", 0)) for each in counts(device)]
    assert after == before, "nothing new had to be captured"
    assert all(each.replayed > was for each, was in zip(counts(device), replayed, strict=True))


def counted(device: RecordedCalls) -> str:
    """Of each segment, what its largest graph asks of a device; the versions that this holds for.

    Kernels of ours are not counted: on a CPU the operations stand there that they replace.
    """
    lines = [f"torch {torch.__version__}, transformers {transformers.__version__}"]
    assert device.captures is not None
    for segment, recordings in device.captures.recordings().items():
        of_each = [each.launches for each in recordings if isinstance(each, Taped)]
        if not of_each:
            continue  # of a plan that has not run
        launches = max(each.total for each in of_each)
        copies = max(each.copies for each in of_each)
        copied = max(each.copied for each in of_each)
        lines.append(f"{segment}: {launches} launches, {copies} copies of {copied} bytes")
    return "\n".join(lines) + "\n"


def is_no_more_than_golden(name: str, found: str) -> None:
    """UPDATE_GOLDEN=1 rewrites them: do so after a change that made them less, too.

    What models start depends on the libraries' versions, and is compared with that of the same.
    """
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(found, encoding="utf-8")
    versions, *wanted = path.read_text(encoding="utf-8").splitlines()
    found_versions, *segments = found.splitlines()
    if versions == found_versions:
        assert [NUMBER.sub("n", each) for each in segments] == [NUMBER.sub("n", w) for w in wanted]
        grown = [
            (one, other)
            for one, other in zip(segments, wanted, strict=True)
            if any(map(int.__gt__, numbers(one), numbers(other)))
        ]
        assert grown == []


def numbers(segment: str) -> list[int]:
    return [int(each) for each in NUMBER.findall(segment.rpartition(": ")[2])]


def test_every_pipeline_has_counts_of_its_graphs() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {*RUNNABLE, "quickstart_of_4_rows"}


@pytest.mark.nightly
@pytest.mark.parametrize("name", RUNNABLE)
def test_a_step_asks_no_more_of_a_device_than_it_did(name: str) -> None:
    """Of two rows, which is as many operations as of a hundred."""
    llm, device = taped(name, **{"scheduler.max_rows": "2"})
    llm.warm_up()
    is_no_more_than_golden(name, counted(device))


def test_an_engine_of_an_event_loop_warms_up_before_it_starts() -> None:
    llm = AsyncLLM(pipeline="async", overrides={"scheduler.max_rows": "2", "graphs": "false"})
    assert llm.engine.buckets == ()
    llm.warm_up()  # nothing is captured
    llm.engine.buckets = (1, 2)
    seen: list[tuple[int, int]] = []
    llm.warm_up(lambda done, of, what: seen.append((done, of)))
    assert seen == [(done, 4) for done in range(5)], "two kinds, of 2 and 1 rows"
    assert llm.engine.totals.tokens == 0, "nobody asked for these"
    asyncio.run(llm.close())


def test_notes_say_what_was_not_replayed() -> None:
    llm, _ = taped("async")
    llm.generate(PROMPTS[:1], GREEDY)
    notes = llm.summary()["notes"]
    *of_segments, of_pieces = notes
    assert len(of_segments) == 2, "one for each segment"
    assert all("steps not replayed" in note for note in of_segments)
    assert of_pieces.startswith("forward: 0 of 1 steps with prompts replayed in pieces")
    assert LLM(pipeline="async").summary()["notes"] == []


def test_a_batch_is_rounded_up_to_the_next_size() -> None:
    assert powers_of_two(1) == (1,)
    assert powers_of_two(8) == (1, 2, 4, 8)
    assert powers_of_two(12) == (1, 2, 4, 8, 12)
    assert [rounded_up(rows, (1, 2, 4, 12)) for rows in (1, 3, 4, 5, 12, 13)] == [
        1,
        4,
        4,
        12,
        12,
        None,
    ]
