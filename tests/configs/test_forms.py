"""A key of the other form is told where it is said, and no key of the files below it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepweave.configs.abstract import AbstractGraph
from stepweave.configs.errors import ConfigError, Mark
from stepweave.configs.forms import OF_BOTH, TELL_A_GRAPH, TELL_A_PIPELINE
from stepweave.configs.load import load, load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.configs.yaml_source import Located

GRAPH = "and this is an abstract graph: it has no model"
PIPELINE = "is of an abstract graph, which has no code"


def refused(folder: Path, text: str) -> list[str]:
    (folder / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(folder / "mine.yaml")
    places = [each.mark for each in caught.value.problems]
    assert {Path(place.file).name for place in places} == {"mine.yaml"}, caught.value.message
    return [
        f"{place.line}:{place.column}: {each.message}"
        for place, each in zip(places, caught.value.problems, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "version: 2\nextends: async\nvalues: {mine: {place: device}}\n",
            f"3:1: `values` {PIPELINE}; in a pipeline the kinds declare their values",
        ),
        (
            "extends: async\nstates: [mine]\n",
            f"2:1: `states` {PIPELINE}; in a pipeline the kinds declare their states",
        ),
        ("extends: async\nmodes: {a: {}}\n", f"2:1: `modes` {PIPELINE}"),
        (
            "version: 1\nextends: async\nvalues: {a: {}}\nnodes: [{name: a, host: {}}]\n",
            f"3:1: `values` {PIPELINE}; in a pipeline the kinds declare their values",
        ),
        (
            "version: 2\nnodes: {schedule: {}}\nvalues: {a: {}}\n",
            f"3:1: `values` {PIPELINE}; in a pipeline the kinds declare their values",
        ),
        (
            "extends: abstract_decode\nscheduler: {max_rows: 3}\n",
            f"2:1: `scheduler` is of a pipeline, {GRAPH}",
        ),
        (
            "version: 1\nmodel: {name: x}\nvalues: {a: {}}\nnodes: [{name: a}]\n",
            f"2:1: `model` is of a pipeline, {GRAPH}",
        ),
        (
            "extends: abstract_decode\nnodes: {draft: {kind: ngram, after: sample}}\n",
            "2:1: nodes must be a list in an abstract graph: write `- {name: draft, …}`",
        ),
        (
            "version: 1\nvalues: {a: {}}\nnodes: {one: {host: {writes: [a]}}}\n",
            "3:1: nodes must be a list in an abstract graph: write `- {name: one, …}`",
        ),
    ],
)
def test_one_error_stands_at_the_key_of_the_user(text: str, said: str, tmp_path: Path) -> None:
    assert refused(tmp_path, text) == [said]


def test_each_key_of_the_other_form_is_told(tmp_path: Path) -> None:
    found = refused(tmp_path, "extends: abstract_decode\nslots: {a: 1}\ndepth: 2\n")
    assert [each.partition(" is of")[0] for each in found] == ["2:1: `slots`", "3:1: `depth`"]


def test_a_setting_of_the_other_form_is_told_once() -> None:
    with pytest.raises(ConfigError, match=f"^--set depth=2: `depth` is of .*, {GRAPH}$"):
        load("abstract_decode", {"depth": "2"})
    with pytest.raises(ConfigError, match=f"^--set values.x.place=device: `values` {PIPELINE}"):
        load("async", {"values.x.place": "device"})
    both = {key: Located(2, Mark("--pp 2")) for key in ("model.parallel.pipeline", "depth")}
    with pytest.raises(ConfigError) as caught:
        load("abstract_decode", both)
    assert caught.value.message == f"--pp 2: `model` is of a pipeline, {GRAPH}"


def test_nodes_without_ops_are_a_graph_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("version: 1\nnodes:\n  - {name: a}\n  - {name: b}\n")
    config = load_config(tmp_path / "mine.yaml")
    assert isinstance(config, AbstractGraph)
    assert list(config.step_graph().vertices) == ["a.host", "b.host"]


def test_a_file_that_says_too_little_may_be_extended_by_either(tmp_path: Path) -> None:
    (tmp_path / "open.yaml").write_text("order: keep\n")
    for name, text, form in (
        ("graph", "values: {a: {}}\nnodes: [{name: n, host: {writes: [a]}}]", AbstractGraph),
        ("pipeline", "nodes: {schedule: {}}", PipelineConfig),
    ):
        (tmp_path / name).write_text(f"extends: open.yaml\n{text}\n")
        config = load_config(tmp_path / name)
        assert isinstance(config, form)
        assert config.order == "keep"


def test_keys_are_known_by_the_form_that_has_them() -> None:
    graph, pipeline = AbstractGraph.model_fields.keys(), PipelineConfig.model_fields.keys()
    assert graph & pipeline == OF_BOTH
    assert graph - pipeline >= TELL_A_GRAPH
    assert pipeline - graph >= TELL_A_PIPELINE
