"""A package of three parts in every shipped pipeline: a drafter with weights, a state, a rule."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from stepweave import LLM, RequestOutput, load_config
from stepweave.cli.main import app
from stepweave.configs.errors import ConfigError
from stepweave.configs.load import shipped
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.errors import StepweaveError
from stepweave.graph.step_graph import StepGraph
from stepweave.policies.registry import policy
from stepweave.sampling import Windows
from stepweave.serving.pipeline import step_graph
from tests.installed import ROOT, installed
from tests.policies import test_contracts as contracts

PACKAGE = ROOT / "examples" / "leap"


def takes_the_rule(name: str) -> bool:
    """Whether a pipeline may have a rule by which tokens depend on how many drafts there are: not
    if it can go on without a drafter.
    """
    config = load_config(name)
    return isinstance(config, PipelineConfig) and not any(
        plan.without for plan in config.plans.values()
    )


PIPELINES = [name for name in shipped() if takes_the_rule(name)]
RUNS = [
    each
    for each in product(PIPELINES, ("serial", "threads"), (1, 2, 3))
    if each[1:] != ("serial", 1)  # which is what the others are compared with
]
SAMPLE = [
    (name, *random.Random(name).choice([run[1:] for run in RUNS if run[0] == name]))
    for name in PIPELINES
]

EVERYTHING = """\
version: 2
extends: {name}
check: {check}
policies:
  acceptance: {{kind: among_best, best: 2}}
nodes:
  draft: {{kind: leap, after: sample, weights: {weights}, tokens: 3}}
  damp: {{kind: damp_repeats, after: forward, strength: 0.4}}
  sample: {{reads: {{logits: damped}}}}
"""
PROMPTS: list[str | dict[str, Any]] = [
    "Write a short story about a fox.",
    {"prompt": "Once upon a time", "temperature": 0.9, "seed": 3},
    {"prompt": "The rain in the old city", "max_tokens": 5},
]
STRUCTURED = {
    "prompt": "Is this review positive or negative? What a wonderful lamp!",
    "structured_outputs": {"choice": ["positive", "negative"]},
}
Said = list[tuple[tuple[int, ...], int, int]]


@pytest.fixture(scope="module", autouse=True)
def _leap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed(PACKAGE, tmp_path_factory.mktemp("site")):
        yield


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory, _leap: None) -> Path:
    """What the package's own script writes, from little text."""
    path = tmp_path_factory.mktemp("heads") / "heads.safetensors"
    importlib.import_module("leap_training").train(path, heads=3, count=6, length=48)
    return path


def pipeline(folder: Path, name: str, weights: Path, check: str = "off") -> Path:
    path = folder / f"with_{name}.yaml"
    path.write_text(EVERYTHING.format(name=name, weights=weights, check=check))
    return path


def said(path: str | Path, prompts: Any = None, most: int = 14, **changed: Any) -> Said:
    """Tokens, drafts and accepted drafts of each prompt."""
    llm = LLM(pipeline=path, overrides=changed)
    if prompts is None:
        prompts = PROMPTS + [STRUCTURED] * ("bitmask" in llm.config.nodes)
    outputs: list[RequestOutput] = llm.generate(prompts, {"max_tokens": most})
    assert not any(output.failed for output in outputs), [output.error for output in outputs]
    return [(output.token_ids, output.drafted, output.accepted) for output in outputs]


# --- in all pipelines, at every depth, on both executors ---


def runs_as_the_serial_loop(
    folder: Path, heads: Path, name: str, executor: str, depth: int
) -> None:
    path = pipeline(folder, name, heads)
    expected = said(path, executor="serial", depth=1)
    assert sum(drafted for _, drafted, _ in expected) > 0
    assert sum(accepted for *_, accepted in expected) > 0
    assert said(path, executor=executor, depth=depth) == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "executor", "depth"), SAMPLE)
def test_tokens_and_counts_are_those_of_the_serial_loop(
    tmp_path: Path, heads: Path, name: str, executor: str, depth: int
) -> None:
    runs_as_the_serial_loop(tmp_path, heads, name, executor, depth)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "executor", "depth"), sorted({*RUNS} - {*SAMPLE}))
def test_tokens_and_counts_are_those_of_the_serial_loop_everywhere(
    tmp_path: Path, heads: Path, name: str, executor: str, depth: int
) -> None:
    runs_as_the_serial_loop(tmp_path, heads, name, executor, depth)
    checked = pipeline(tmp_path, name, heads, check="strict")
    assert said(checked, executor=executor, depth=depth)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "executor", "depth"),
    [
        ("grammar_worker", "threads", 3),
        ("drafter_stream", "threads", 2),
        ("async_ngram", "serial", 1),
    ],
)
def test_checking_mode_finds_no_access_that_was_not_declared(
    tmp_path: Path, heads: Path, name: str, executor: str, depth: int
) -> None:
    changed: dict[str, Any] = {"executor": executor, "depth": depth}
    checked = pipeline(tmp_path, name, heads, check="strict")
    found = said(checked, **changed)
    assert found == said(pipeline(tmp_path, name, heads), **changed)


# --- what a row gets depends on its own tokens alone ---

MANY: list[dict[str, Any]] = [
    {"prompt": prompt, "temperature": temperature, "seed": 7, "ignore_eos": True}
    for prompt in ("Once upon a time", "The rain in the old city " * 4, "A fox and a dog")
    for temperature in (0.0, 1.0)
]


STRONG: dict[str, Any] = {
    "nodes.damp.strength": 3.0
}  # such that a token that is counted wrong shows


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, heads: Path) -> Said:
    """What each prompt comes to on an engine of its own."""
    path = pipeline(tmp_path_factory.mktemp("alone"), "async", heads)
    serial: dict[str, Any] = {"executor": "serial", "depth": 1, **STRONG}
    return [said(path, [each], 24, **serial)[0] for each in MANY]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "tight",
    [
        {"scheduler.max_rows": 2, "depth": 3},  # each row has three owners
        {"scheduler.num_blocks": 28, "scheduler.block_size": 4},  # some are preempted
        {"scheduler.token_budget": 9, "executor": "threads"},  # prompts come in pieces
    ],
    ids=str,
)
def test_rows_that_change_hands_and_preempted_requests_count_anew(
    tmp_path: Path, heads: Path, alone: Said, tight: dict[str, Any]
) -> None:
    assert said(pipeline(tmp_path, "async", heads), MANY, 24, **STRONG, **tight) == alone


def test_damping_acts_and_is_the_same_with_drafts_and_without(tmp_path: Path, heads: Path) -> None:
    path = pipeline(tmp_path, "async", heads)
    changed = {"policies.acceptance": "coupled", **STRONG}
    drafted = said(path, MANY, 24, **changed)
    assert sum(accepted for *_, accepted in drafted) > 0
    plain = said(path, MANY, 24, **changed, **{"nodes.draft": None})
    assert [tokens for tokens, *_ in plain] == [tokens for tokens, *_ in drafted]
    undamped = [
        tokens for tokens, *_ in said(path, MANY, 24, **changed | {"nodes.damp.strength": 0})
    ]
    assert undamped != [tokens for tokens, *_ in plain]
    assert undamped == [tokens for tokens, *_ in said("async", MANY, 24)]


def test_a_window_position_is_damped_as_if_the_drafts_before_it_were_accepted() -> None:
    damping = importlib.import_module("leap_damping")
    history = SimpleNamespace(tokens=torch.tensor([[9, 9, 9, 9], [1, 2, 2, 0]], dtype=torch.int32))
    counted = damping.Counts(
        counts=torch.full((2, 4), 7.0), end=torch.tensor([0, 9]), generation=torch.tensor([0, 3])
    )

    def damped(drafts: list[int], start: int, generation: int, decodes: int) -> list[list[float]]:
        sample = SimpleNamespace(
            request_slot=torch.tensor([1]),
            window_start=torch.tensor([start]),
            prompt=torch.tensor([1]),
            drafts=torch.tensor([drafts]),
            generation=torch.tensor([generation]),
            longest=3,
        )
        inputs = SimpleNamespace(sample=sample, decodes=decodes, query_lens=(1,))
        chosen = damping.Damping(strength=1.0, most=3)
        zeros = torch.zeros(1, 3, 4)
        found = -damping.damp_repeats(zeros, inputs, history, counted, chosen)[0]
        assert counted.generation.tolist() == [0, generation]
        assert counted.end.tolist() == [0, start + 1]
        return [[float(number) for number in each] for each in found]

    # A new owner: its output is the token 2 so far, of positions 1 to `start`.
    assert damped([3, 2], start=1, generation=4, decodes=0) == [
        [0, 0, 1, 0],
        [0, 0, 1, 1],
        [0, 0, 2, 1],
    ]
    # The same owner: one token more is settled. −1 is no draft.
    assert damped([2, -1], start=2, generation=4, decodes=1) == [
        [0, 0, 2, 0],
        [0, 0, 3, 0],
        [0, 0, 3, 0],
    ]


def test_leaving_a_part_out_is_a_change_of_the_file_alone(tmp_path: Path, heads: Path) -> None:
    path = pipeline(tmp_path, "quickstart", heads)
    names = [node.name for node in graph(path).nodes]
    assert names[2:7] == ["forward", "damp", "bitmask", "sample", "draft"]
    without = {"nodes.draft": None, "nodes.damp": None, "nodes.sample.reads.logits": "logits"}
    assert [node.name for node in graph(path, **without).nodes] == [
        name for name in names if name not in ("draft", "damp")
    ]
    assert graph(path).states["repeat_counts"].keys == "request_slots"


def graph(path: Path, **changed: Any) -> StepGraph:
    config = load_config(path, changed)
    assert isinstance(config, PipelineConfig)
    return step_graph(config)


# --- what is wrong is said, with the node and its line ---


def refused(folder: Path, weights: Path, **changed: Any) -> str:
    """The error of a pipeline that cannot be loaded, which names the line of the drafter."""
    path = pipeline(folder, "async", weights)
    with pytest.raises(StepweaveError) as caught:
        LLM(pipeline=path, overrides=changed)
    assert caught.value.line == 7
    return str(caught.value)


def test_weights_that_are_missing_or_do_not_fit_are_refused(tmp_path: Path, heads: Path) -> None:
    absent = refused(tmp_path, tmp_path / "none.safetensors")
    assert "node 'draft'" in absent
    assert "weights: there is no file" in absent
    text = tmp_path / "text.safetensors"
    text.write_text("no tensors")
    assert "is no safetensors file" in refused(tmp_path, text)
    assert "has no heads.4.weight; `tokens: 4`" in refused(
        tmp_path, heads, **{"nodes.draft.tokens": 4}
    )
    narrow = {name: tensor[..., :64].contiguous() for name, tensor in load_file(heads).items()}
    save_file(narrow, tmp_path / "narrow.safetensors")
    said = refused(tmp_path, tmp_path / "narrow.safetensors")
    assert "heads.1.weight of" in said
    assert "shape (128, 64), but (128, 128) fits the target" in said


def test_the_command_line_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = pipeline(tmp_path, "async", tmp_path / "none.safetensors")
    done = CliRunner().invoke(app, ["run", str(path), "--prompt", "x"])
    assert done.exit_code != 0
    assert "with_async.yaml:7:3: node 'draft'" in done.output.replace("\n", "")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"nodes.draft.weight": "x"}, r"unknown key 'weight' \(did you mean 'weights'\?\)"),
        ({"nodes.draft.weights": None}, r"nodes\.draft\.weights must be text, not null"),
        ({"nodes.draft.tokens": 0}, r"nodes\.draft\.tokens must be at least 1, not 0"),
        ({"nodes.damp.strength": -1}, r"nodes\.damp\.strength must be at least 0, not -1"),
        ({"nodes.damp.most": "many"}, r"nodes\.damp\.most must be a whole number"),
        ({"policies.acceptance.best": 0}, r"policies\.acceptance\.best must be at least 1"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_by_name(
    tmp_path: Path, heads: Path, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(pipeline(tmp_path, "async", heads), changed)


# --- the rule ---


def test_the_rule_keeps_drafts_among_the_best_tokens() -> None:
    scores = torch.tensor([0.5, 0.3, 0.2, 0.0]).log()
    drafts = torch.arange(4)[:, None]
    each = torch.ones(4, dtype=torch.int64)

    def kept(best: int, greedy: bool) -> list[int]:
        windows = Windows(
            scores.expand(4, 2, -1), drafts, each, each, each, torch.full((4,), greedy)
        )
        counts = policy("acceptance", "among_best", best=best).verify(windows).counts
        return [token for token in range(4) if counts[token] == 2]

    assert [kept(best, greedy=False) for best in (1, 2, 4)] == [[0], [0, 1], [0, 1, 2]]
    assert kept(4, greedy=True) == [0]


def test_the_rule_keeps_to_the_contracts_of_its_decision() -> None:
    rule = policy("acceptance", "among_best", best=2)
    contracts.test_a_row_comes_to_the_same_in_any_company(rule)
    contracts.test_a_window_comes_to_some_drafts_and_one_possible_token(rule)
    contracts.test_of_a_greedy_row_only_the_best_token_counts(rule)
