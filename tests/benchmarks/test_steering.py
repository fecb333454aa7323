"""Steered runs: the stored texts come out, and as many drafts are accepted as were dialled."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from jsonschema import validate
from safetensors.torch import save_file

from benchmarks.gpu import steering
from benchmarks.gpu.networks import EOS, TOY, TOY_DRAFTER, random_model
from benchmarks.gpu.traces import SCHEMAS, Dial, Traces, make
from benchmarks.gpu.vocabulary import decode, encode, pieces, tokenizer
from benchmarks.gpu.workbench import Pipeline, Served, engine, prompts, request, serve
from stepweave.executors.run import EXECUTORS, Executor
from stepweave.graph.errors import GraphError
from stepweave.models.causal_lm import CausalLM
from stepweave.testing.devices.recorded_calls import RecordedCalls
from tests.device.emulated import DEVICE, Placed
from tests.shares import one_in

K, COUNT, REQUESTS = 3, 3, 5
DIALS: dict[str, Dial] = {
    "none": (0.0, 0.0, 0.0),
    "all": (1.0, 1.0, 1.0),
    "first": lambda trace, position, place: place == 0,
    "odd positions wrong": lambda trace, position, place: position % 2 == 0,
}


@pytest.fixture(scope="module")
def _kinds() -> Iterator[None]:
    with steering.installed():
        yield


@pytest.fixture(scope="module")
def models() -> tuple[CausalLM, CausalLM]:
    cpu = torch.device("cpu")
    target, drafter = (
        CausalLM.wrap(random_model(size, cpu, torch.float32), invariant=False)
        for size in (TOY, TOY_DRAFTER)
    )
    return target, drafter


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Traces, Path]]:
    folder, made = tmp_path_factory.mktemp("traces"), dict[str, tuple[Traces, Path]]()

    def traces(dial: str) -> tuple[Traces, Path]:
        if dial not in made:
            path = folder / f"{len(made)}.safetensors"
            made[dial] = make(("choice",), COUNT, TOY.vocab, K, DIALS[dial]), path
            made[dial][0].save(path)
        return made[dial]

    return traces


def run(
    models: tuple[CausalLM, CausalLM],
    traces: Traces,
    path: Path,
    *,
    depth: int,
    k: int = K,
    structured: bool = True,
    executor: Executor = EXECUTORS["threads"],
) -> Served:
    made = engine(
        Pipeline(depth, k, structured, path),
        models[0],
        executor,
        rows=2,
        context=128,
        budget=64,
        drafter=models[1],
    )
    requests = [
        request(uid, prompt, 60, TOY.vocab, traces=traces, structured=structured, window=1 + k)
        for uid, prompt in enumerate(prompts(REQUESTS, 16, TOY.vocab))
    ]
    return serve(made, requests)


def windows(length: int, right: Callable[[int, int], bool]) -> tuple[int, int]:
    """Windows and accepted drafts of one text, counted token by token."""
    settled, count, accepted = 1, 0, 0
    while settled < length:
        count += 1
        for place in range(K):
            if settled == length or not right(settled, place):
                break
            settled, accepted = settled + 1, accepted + 1
        else:
            place = K
        settled += settled < length
    return count, accepted


@pytest.mark.usefixtures("_kinds")
@pytest.mark.parametrize(("dial", "depth"), one_in(2, DIALS, [1, 2]))
def test_texts_come_out_and_drafts_are_accepted_as_dialled(
    models: tuple[CausalLM, CausalLM],
    stored: Callable[[str], tuple[Traces, Path]],
    dial: str,
    depth: int,
) -> None:
    traces, path = stored(dial)
    served = run(models, traces, path, depth=depth)
    accepted = decoding = 0
    for uid, tokens in enumerate(served.tokens):
        index = uid % COUNT
        assert tokens == traces.tokens[index, : traces.lengths[index]].tolist()
        assert tokens[-1] == EOS
        validate(json.loads(decode(tokens, TOY.vocab)), SCHEMAS["choice"])
        only = traces.wrong[index] == traces.tokens[index]  # no other token is legal there
        found = windows(
            len(tokens),
            lambda at, place, i=index, o=only: bool(traces.right[i, at, place] or o[at]),  # type: ignore[misc]
        )
        decoding += found[0]
        accepted += found[1]
        assert found == traces.expected(index, K)[1:]
    assert served.accepted == accepted
    assert sum(len(times) - 1 for times in served.settled) == decoding


@pytest.mark.usefixtures("_kinds")
def test_dials_differ_in_what_is_accepted(
    stored: Callable[[str], tuple[Traces, Path]],
) -> None:
    counts = [sum(stored(dial)[0].expected(i, K).accepted for i in range(COUNT)) for dial in DIALS]
    none, every, first, some = counts
    assert none < first < every
    assert none < some < every
    traces = stored("all")[0]
    for index, length in enumerate(traces.lengths):
        assert traces.expected(index, K).steps == -(-(length - 1) // (K + 1))


@pytest.mark.usefixtures("_kinds")
def test_overlap_offers_and_accepts_the_same_drafts_with_and_without_a_grammar(
    models: tuple[CausalLM, CausalLM], stored: Callable[[str], tuple[Traces, Path]]
) -> None:
    traces, path = stored("odd positions wrong")
    for structured in (True, False):
        one, other = (
            run(models, traces, path, depth=depth, structured=structured) for depth in (1, 2)
        )
        assert (one.drafted, one.accepted) == (other.drafted, other.accepted)
        assert one.tokens == other.tokens
    plain = run(models, traces, path, depth=2, k=0)
    assert plain.tokens == one.tokens
    assert plain.drafted == 0
    assert plain.tokens_per_step == 1 < one.tokens_per_step


@pytest.mark.usefixtures("_kinds")
def test_a_captured_run_writes_the_same_texts(
    models: tuple[CausalLM, CausalLM], stored: Callable[[str], tuple[Traces, Path]]
) -> None:
    traces, path = stored("first")
    executor = RecordedCalls(graphs=True)
    made = engine(
        Pipeline(2, K, True, path), models[0], executor, rows=2, context=128, budget=64,
        drafter=models[1],
    )  # fmt: skip
    for _ in range(3):
        served = serve(
            made,
            [
                request(uid, p, 60, TOY.vocab, traces=traces, structured=True, window=1 + K)
                for uid, p in enumerate(prompts(2, 16, TOY.vocab))
            ],
        )
        assert served.tokens == [traces.expected(uid, K).tokens for uid in range(2)]
    assert executor.captures is not None
    assert sum(counts.replayed for counts in executor.captures.counts.values()) > 0


@pytest.mark.usefixtures("_kinds")
def test_the_nodes_ask_a_gpu_nothing_and_touch_no_host_memory(
    stored: Callable[[str], tuple[Traces, Path]],
) -> None:
    traces, path = stored("first")
    there = tuple(
        CausalLM.wrap(
            random_model(size, torch.device("cpu"), torch.float32).to(DEVICE),  # type: ignore[arg-type]
            invariant=False,
        )
        for size in (TOY, TOY_DRAFTER)
    )
    executor = Placed(EXECUTORS["serial"])
    served = run((there[0], there[1]), traces, path, depth=2, executor=executor)
    assert served.tokens == [traces.expected(uid % COUNT, K).tokens for uid in range(REQUESTS)]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_texts_follow_their_schema_and_wrong_drafts_are_legal_and_wrong(schema: str) -> None:
    traces = make((schema,), 1, TOY.vocab, 1, (0.5,))
    tokens = traces.tokens[0, : traces.lengths[0]].tolist()
    validate(json.loads(decode(tokens, TOY.vocab)), SCHEMAS[schema])
    matcher = traces.grammars[0].matcher()
    different = 0
    for token, wrong in zip(tokens, traces.wrong[0].tolist(), strict=False):
        assert matcher.accept(wrong)
        matcher.rollback(1)
        assert matcher.accept(token)
        different += token != wrong
    assert matcher.terminated
    assert different > 0.3 * len(tokens)


def test_a_number_dials_the_tokens_of_a_step() -> None:
    traces = make(("person", "bounded"), 4, TOY.vocab, K, 2.25)
    expected = [traces.expected(index, K) for index in range(4)]
    tokens = sum(len(each.tokens) - 1 for each in expected)
    assert tokens / sum(each.steps for each in expected) == pytest.approx(2.25, abs=0.05)


def test_the_vocabulary_has_its_size_and_spells_what_it_is_given() -> None:
    assert len(tokenizer(TOY.vocab)) == TOY.vocab
    assert pieces(3000)[:500] == pieces(500)
    text = '{"name": "Stator Velmi", "age": 63, "city": [1, 20, 999]}'
    ids = encode(text, TOY.vocab)
    assert decode(ids, TOY.vocab) == text
    assert len(ids) < 0.75 * len(text)


@pytest.mark.usefixtures("_kinds")
@pytest.mark.parametrize("held", ["nothing", "text", "one table"])
def test_a_file_that_holds_no_tables_is_refused_with_the_node(
    models: tuple[CausalLM, CausalLM], tmp_path: Path, held: str
) -> None:
    path = tmp_path / "traces.safetensors"
    if held == "text":
        path.write_text("{}")
    elif held == "one table":
        save_file({"tokens": torch.zeros(1, 1, dtype=torch.int64)}, path)
    with pytest.raises(GraphError, match=r"node '(steer|draft)': `traces` must be a safetensors"):
        engine(
            Pipeline(2, K, False, path), models[0], EXECUTORS["serial"], rows=1, context=64,
            budget=32, drafter=models[1],
        )  # fmt: skip
