"""Captured graphs under the whole engine, as tapes on a CPU: the tokens of the serial loop."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from stepweave import LLM, SamplingParams
from stepweave.configs.load import load_config, shipped
from stepweave.configs.schema import PipelineConfig
from stepweave.executors.counts import Counts
from stepweave.requests.buckets import powers_of_two, rounded_up
from stepweave.requests.request import RequestOutput
from stepweave.serving.async_llm import AsyncLLM
from stepweave.serving.plans import stay
from stepweave.structured.grammar import GrammarSpec
from stepweave.testing.devices.recorded_calls import RecordedCalls, Taped
from tests.device.replays import compared, in_turn, why_too_little
from tests.device.taped import sizes_of_a_gpu, taped
from tests.graph.shipped_plans import GRAPHS

GOLDEN = Path(__file__).parent / "golden" / "launches"
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"

PROMPTS = [
    "Write a short story about a fox named Ida.",
    "Ada is 41 and lives in Oslo.",
    "Hello",
    "The cat",
    "Once upon a time there was",
]
GREEDY = SamplingParams(max_tokens=40)
PLAIN = {"executor": "serial", "graphs": "false"}
"""What makes a reference of a pipeline: nothing is recorded either."""
SCHEMA = GrammarSpec.from_request({"regex": "[a-z]{1,9}( [a-z]{1,9}){2,6}"})


@pytest.fixture(autouse=True)
def as_on_a_gpu() -> Iterator[None]:
    with sizes_of_a_gpu():
        yield


def told(outputs: list[RequestOutput]) -> list[tuple[object, ...]]:
    return [
        (out.token_ids, out.finish_reason, out.error, out.drafted, out.accepted) for out in outputs
    ]


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

COUNTED = ("async", "async_eagle3_grammar")
"""What a step asks of a device is counted by day of these: the plainest, and the one with all."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.nightly) for name in RUNNABLE],
)
def test_replayed_steps_give_the_tokens_and_counts_of_the_serial_loop(name: str) -> None:
    plain = LLM(pipeline=name, overrides=PLAIN | {"depth": "1"})
    plain.engine.steer = stay
    short = [replace(GREEDY, max_tokens=24)] * 5
    mixed = [replace(each, max_tokens=min(each.max_tokens, 24)) for each in params_for(name)]
    llm, device = taped(name)
    llm.engine.steer = in_turn

    def seen(outputs: list[RequestOutput]) -> list[tuple[object, ...]]:
        return compared(llm.config, outputs)

    expected = [seen(plain.generate(PROMPTS, params)) for params in (short, mixed)]
    # What prompts have in common is computed once; from then on their steps are of one size.
    for params, wanted, times in zip((short, mixed), expected, (4, 2), strict=True):
        for _ in range(times):
            assert seen(llm.generate(PROMPTS, params)) == wanted
    assert device.captures is not None
    assert why_too_little(llm.config, device.captures) is None
    assert len(llm.engine.turned) > 2 if llm.config.plans else not llm.engine.turned
    assert device.empty_captures == 0, "a step with nothing to do is no graph"
    assert device.pools_in_capture == set(), "no capture fails"


def test_after_warming_up_steady_steps_are_replayed() -> None:
    # With one draft: each further one is another pass in each step, and no other kind of step.
    few = {"scheduler.max_rows": "2", "nodes.draft.tokens": "1"}
    llm, device = taped("quickstart", **few)
    seen: list[tuple[int, int]] = []
    llm.warm_up(lambda done, of, what: seen.append((done, of)))
    assert seen == [(done, 6) for done in range(7)], "three kinds, of 2 and 1 rows"
    assert llm.summary()["tokens"] == 0, "nobody asked for these"
    before = [(each.captured, each.eager.get("first of its shape", 0)) for each in counts(device)]
    params = [GREEDY, replace(GREEDY, structured_outputs=SCHEMA)]
    replayed = [each.replayed for each in counts(device)]
    outputs = llm.generate(PROMPTS[:2], params)
    plain = LLM(pipeline="quickstart", overrides={**PLAIN, **few})
    assert told(outputs) == told(plain.generate(PROMPTS[:2], params))
    after = [(each.captured, each.eager.get("first of its shape", 0)) for each in counts(device)]
    assert after == before, "nothing new had to be captured"
    assert all(each.replayed > was for each, was in zip(counts(device), replayed, strict=True))


@pytest.mark.parametrize(
    "pipeline", ["async_grammar", pytest.param("quickstart", marks=pytest.mark.nightly)]
)
def test_a_grammar_of_one_row_among_many_is_replayed_after_warming_up(pipeline: str) -> None:
    """Its masks alone are uploaded, for which there is a graph of its own."""
    llm, device = taped(pipeline, **{"scheduler.max_rows": "8"})
    seen: list[str] = []
    llm.warm_up(lambda done, of, what: seen.append(what))
    assert [what for what in seen if what.startswith("one grammar")] == ["one grammar, 8 rows"]
    before = [each.captured for each in counts(device)]
    short = replace(GREEDY, max_tokens=20)
    params = [short, replace(short, structured_outputs=SCHEMA), *[short] * 6]
    outputs = llm.generate([*PROMPTS[:4]] * 2, params)
    plain = LLM(pipeline=pipeline, overrides=PLAIN)
    assert told(outputs) == told(plain.generate([*PROMPTS[:4]] * 2, params))
    assert [each.captured for each in counts(device)] == before, "nothing new had to be captured"


def test_penalties_of_one_row_among_many_are_replayed_whosever_they_are() -> None:
    """In a graph of their own: lines of other rows are not edited, and their text is not read."""
    llm, device = taped("async", **{"scheduler.max_rows": "8"})
    plain = LLM(pipeline="async", overrides=PLAIN)
    prompts = [f"{PROMPTS[1]} {number}" for number in range(8)]
    short = replace(GREEDY, max_tokens=12, ignore_eos=True)

    def asked(by: int) -> list[SamplingParams]:
        params = [short] * len(prompts)
        params[by] = replace(short, repetition_penalty=1.5, frequency_penalty=0.5)
        return params

    for _ in range(4):  # prompts are computed, sizes come up, and are captured
        llm.generate(prompts, asked(2))
    before = [each.captured for each in counts(device)]
    replayed = [each.replayed for each in counts(device)]
    for by in (4, 7):
        outputs, wanted = (each.generate(prompts, asked(by)) for each in (llm, plain))
        assert told(outputs) == told(wanted)
    assert [each.captured for each in counts(device)] == before, "nothing new had to be captured"
    assert all(each.replayed > was for each, was in zip(counts(device), replayed, strict=True))
    plainly, penalized = (plain.generate([prompts[4]], each)[0] for each in (short, asked(4)[4]))
    assert plainly.token_ids != penalized.token_ids


def counted(device: RecordedCalls) -> str:
    """Of each segment, what its largest graph asks of a device; the versions that this holds for.

    Kernels of ours are not counted: on a CPU the operations stand there that they replace.
    """
    lines = [header(f"{torch.__version__.partition('+')[0]}", transformers.__version__)]
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


def header(torch_version: str, transformers_version: str) -> str:
    return f"torch {torch_version}, transformers {transformers_version}"


def test_every_pipeline_has_counts_of_the_versions_that_are_installed_by_default() -> None:
    pinned = dict(re.findall(r"^(\w+)==(\S+)$", CONSTRAINTS.read_text(encoding="utf-8"), re.M))
    wanted = header(pinned["torch"], pinned["transformers"])
    files = {path.stem: path.read_text(encoding="utf-8") for path in GOLDEN.glob("*.txt")}
    assert files.keys() == {*RUNNABLE}
    assert {name: file.splitlines()[0] for name, file in files.items()} == dict.fromkeys(
        RUNNABLE, wanted
    ), "UPDATE_GOLDEN=1 python -m pytest -m '' -k asks_of_a_device tests/serving/test_graphs.py"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in COUNTED else pytest.mark.nightly) for name in RUNNABLE],
)
def test_what_a_step_asks_of_a_device_is_known(name: str) -> None:
    """Of two rows, which is as many operations as of a hundred; in the arithmetic of a GPU.

    What models start depends on the versions of their libraries: other counts are known of none.
    UPDATE_GOLDEN=1 writes what there is now.
    """
    llm, device = taped(name, **{"scheduler.max_rows": "2", "model.invariant": "false"})
    llm.engine.steer = in_turn
    llm.engine.buckets = (2,)  # the largest size is all that is counted
    llm.warm_up()
    found, path = counted(device), GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(found, encoding="utf-8")
    golden = path.read_text(encoding="utf-8")
    if golden.splitlines()[0] != found.splitlines()[0]:
        pytest.skip(f"counted with {golden.splitlines()[0]}, and here is {found.splitlines()[0]}")
    assert found == golden


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
    assert of_pieces.startswith("forward: 0 of 1 passes beside prompts replayed in pieces")
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
