"""A node kind from another package, found through its entry point, in a real pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config
from stepweave.graph.verifier.verify import verify
from stepweave.nodes.registry import known_kinds
from stepweave.requests.request import RequestOutput, SamplingParams
from stepweave.serving.llm import LLM
from stepweave.serving.pipeline import step_graph
from stepweave.testing.models import save_tiny
from tests.installed import ROOT, installed

STEER = ROOT / "examples" / "steer"
PROMPTS = ["to be or", "the quick brown", "hello"]
FORCED = 65

PIPELINE = """\
version: 2
extends: async
nodes:
  steer: {{kind: bias_logits, after: forward, {options}}}
  sample: {{reads: {{logits: biased}}}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def _steer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed(STEER, tmp_path_factory.mktemp("site")):
        yield


def pipeline(folder: Path, options: str) -> Path:
    path = folder / "steered.yaml"
    path.write_text(PIPELINE.format(options=options))
    return path


def generated(
    model: Path, pipeline: str | Path, overrides: dict[str, str] | None = None
) -> list[RequestOutput]:
    settings = {"scheduler.num_blocks": "64", **(overrides or {})}
    if "nodes.draft.tokens" in settings:
        settings |= {"nodes.draft.kind": "draft_model", "nodes.draft.after": "sample"}
        settings["nodes.draft.model"] = str(model)
    llm = LLM(model, pipeline=pipeline, overrides=settings)
    verify(llm.plan)
    return llm.generate(PROMPTS, SamplingParams(max_tokens=8, ignore_eos=True))


def tokens(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs]


def test_without_the_package_the_kind_is_unknown_and_the_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"steered\.yaml:4.*unknown node kind 'bias_logits'"):
        load_config(pipeline(tmp_path, "tokens: [40]"))


@pytest.mark.usefixtures("_steer")
def test_an_installed_package_adds_its_kind() -> None:
    assert "bias_logits" in known_kinds()


@pytest.mark.usefixtures("_steer")
def test_a_bias_of_zero_changes_no_token(model: Path, tmp_path: Path) -> None:
    steered = pipeline(tmp_path, f"tokens: [{FORCED}], bias: 0.0")
    assert tokens(generated(model, steered)) == tokens(generated(model, "async"))


@pytest.mark.usefixtures("_steer")
@pytest.mark.parametrize(
    "overrides",
    [
        {"executor": "serial", "depth": "1"},
        {"executor": "threads", "depth": "2"},
        {"executor": "threads", "depth": "3", "nodes.draft.tokens": "2"},
    ],
    ids=str,
)
def test_a_large_bias_decides_every_token_in_every_pipeline(
    model: Path, tmp_path: Path, overrides: dict[str, str]
) -> None:
    steered = pipeline(tmp_path, f"tokens: [{FORCED}], bias: 1000.0")
    assert set(sum(tokens(generated(model, steered, overrides)), ())) == {FORCED}


@pytest.mark.usefixtures("_steer")
def test_the_node_needs_no_wait_on_the_stream_that_it_shares(tmp_path: Path) -> None:
    config = load_config(pipeline(tmp_path, "tokens: [40]"))
    graph = step_graph(config)  # type: ignore[arg-type]
    names = [node.name for node in graph.nodes]
    assert names.index("steer") == names.index("forward") + 1
    sample = next(node for node in graph.nodes if node.name == "sample")
    assert "biased" in {read.name for read in sample.device[0].reads}


@pytest.mark.usefixtures("_steer")
def test_the_shipped_example_pipeline_loads() -> None:
    step_graph(load_config(STEER / "steered.yaml"))  # type: ignore[arg-type]


@pytest.mark.usefixtures("_steer")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("token: [40]", r"nodes.steer: unknown key 'token' \(did you mean 'tokens'\?\)"),
        ("tokens: many", r"nodes.steer.tokens must be a list"),
    ],
)
def test_wrong_options_are_refused_with_the_node(tmp_path: Path, options: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(pipeline(tmp_path, options))
