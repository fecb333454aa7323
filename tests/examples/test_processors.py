"""A logits processor of another package, which each request sets for itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stepweave.configs.load import load_config
from stepweave.nodes.registry import kind
from stepweave.requests.request import RequestOutput, SamplingParams
from stepweave.serving.llm import LLM
from stepweave.serving.pipeline import step_graph
from stepweave.testing.models import save_tiny
from tests.installed import ROOT, installed

PROCESSORS = ROOT / "examples" / "processors"
PIPELINE = PROCESSORS / "processed.yaml"
PROMPTS = ["to be or", "the quick brown fox", "hello", "a"]
ASKED: list[dict[str, float]] = [{}, {"top_n_sigma": 0.5}, {"top_n_sigma": 2.0}, {"top_n_sigma": 0}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def _processors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed(PROCESSORS, tmp_path_factory.mktemp("site")):
        yield


def generated(
    model: Path,
    asked: list[dict[str, float]],
    pipeline: str | Path = PIPELINE,
    **changed: str,
) -> list[RequestOutput]:
    settings = {"scheduler.num_blocks": "64", "nodes.draft.model": str(model), **changed}
    llm = LLM(model, pipeline=pipeline, overrides=settings)
    return llm.generate(
        PROMPTS,
        [
            SamplingParams(
                max_tokens=8, temperature=1.5, seed=4, ignore_eos=True, node_settings=each
            )
            for each in asked
        ],
    )


def tokens(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [output.token_ids for output in outputs]


@pytest.mark.usefixtures("_processors")
def test_each_request_has_its_own_and_tokens_are_equal_at_every_depth(model: Path) -> None:
    said = [
        tokens(generated(model, ASKED, depth=depth, executor=executor))
        for depth, executor in (("1", "serial"), ("2", "threads"), ("3", "threads"))
    ]
    assert said[0] == said[1] == said[2]
    plain = tokens(generated(model, [{}] * 4, "quickstart"))
    changed = [one != other for one, other in zip(said[0], plain, strict=True)]
    assert changed == [False, True, True, False]
    assert tokens(generated(model, [{}] * 4)) == plain, "nobody asks"


def test_the_node_cuts_by_row_at_every_position_of_a_window() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PROCESSORS))
        module = import_module("stepweave_processors")

    logits = torch.randn(3, 2, 50, generator=torch.Generator().manual_seed(1))

    def setting(of: object) -> torch.Tensor:
        assert of is module.N
        return torch.tensor([0.0, 1.0, 2.5], dtype=torch.float64)

    inputs: Any = SimpleNamespace(sample=SimpleNamespace(setting=setting))
    found = module.top_n_sigma(logits, inputs)
    for row, n in enumerate((0.0, 1.0, 2.5)):
        for place in range(2):
            scores = logits[row, place].tolist()
            mean = sum(scores) / 50
            sigma = (sum((each - mean) ** 2 for each in scores) / 49) ** 0.5
            kept = [n == 0 or each >= max(scores) - n * sigma for each in scores]
            assert (found[row, place] > -torch.inf).tolist() == kept
    assert 1 < int((found[1, 0] > -torch.inf).sum()) < 50
    nobody: Any = SimpleNamespace(sample=SimpleNamespace(setting=lambda of: None))
    assert module.top_n_sigma(logits, nobody) is logits


@pytest.mark.usefixtures("_processors")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"top_n_sigmas": 1}, "takes 'top_n_sigmas' (did you mean 'top_n_sigma'?)"),
        ({"top_n_sigma": -1}, "top_n_sigma must be from 0 to 100, not -1"),
    ],
)
def test_what_no_node_takes_is_refused(model: Path, given: Mapping[str, float], said: str) -> None:
    outputs = generated(model, [{}, dict(given), {}, {}])
    assert said in (outputs[1].error or "")
    assert [output.error for output in outputs[:1] + outputs[2:]] == [None] * 3


@pytest.mark.usefixtures("_processors")
def test_the_kind_is_found_and_the_shipped_pipeline_builds() -> None:
    assert [each.name for each in kind("top_n_sigma").asks] == ["top_n_sigma"]
    graph = step_graph(load_config(PIPELINE))  # type: ignore[arg-type]
    names = [node.name for node in graph.nodes]
    assert names.index("processor") == names.index("forward") + 1
