"""A pipeline that is written whole loads again to the same pipeline, and says what keys mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stepweave.cli.main import app
from stepweave.cli.planned import planned
from stepweave.configs.abstract import AbstractGraph
from stepweave.configs.load import load_config, shipped
from stepweave.configs.schema import PipelineConfig
from stepweave.configs.written import plain_yaml

CHANGED = (
    "nodes.sample.host_cost_us=7.5",
    "nodes.forward.reads={inputs: inputs}",
    "costs.forward.device=4000",
    "slots={staging: 2}",
    "policies.acceptance={kind: synthetic, rates: [0.5, 1e-3]}",
    "policies.scheduling={kind: shared, prompts: 0.25}",
    "streams=[compute, copy, draft, 'yes', '1e3', 'null', '#']",
)


def whole(name: str | Path, *settings: str) -> str:
    asked = [part for setting in settings for part in ("--set", setting)]
    result = CliRunner().invoke(app, ["graph", "show", str(name), "--yaml", *asked])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", shipped())
def test_every_shipped_config_written_whole_gives_the_same_plan(name: str, tmp_path: Path) -> None:
    text = whole(name)
    path = tmp_path / "whole.yaml"
    path.write_text(text, encoding="utf-8")
    assert "\nextends:" not in text
    assert planned(str(path)).digest == planned(name).digest
    assert without_heading(whole(path)) == without_heading(text)
    found, plain = load_config(path), load_config(name)
    if isinstance(plain, AbstractGraph):
        assert found.model_dump() == plain.model_dump()
        return
    assert isinstance(found, PipelineConfig)
    assert list(found.nodes) == list(plain.nodes)
    assert [dumped(line) for line in found.prompts] == [dumped(line) for line in plain.prompts]
    # Streams that the file leaves to the kind are written out; nothing else differs.
    for name, node in plain.nodes.items():
        said = node.model_dump() | {"stream": found.nodes[name].stream}
        assert found.nodes[name].model_dump() == said
    less: Any = {"exclude": {"nodes", "prompts"}}
    assert found.model_dump(**less) == plain.model_dump(**less)


def without_heading(text: str) -> str:
    return text[text.index("version: ") :]


def dumped(line: Any) -> Any:
    return line.model_dump(exclude_unset=True)


def test_settings_and_awkward_values_are_written_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "whole.yaml"
    path.write_text(whole("grammar_worker", *CHANGED, "depth=3"), encoding="utf-8")
    config = load_config(path)
    assert isinstance(config, PipelineConfig)
    assert config.streams[3:] == ("yes", "1e3", "null", "#")
    assert config.policies.acceptance.model_dump()["rates"] == (0.5, 0.001)
    assert config.policies.scheduling.model_dump()["prompts"] == 0.25
    asked = dict(setting.split("=", 1) for setting in (*CHANGED, "depth=3"))
    assert planned(str(path)).digest == planned("grammar_worker", asked).digest
    assert (config.nodes["sample"].host_cost_us, config.nodes["bitmask"].actor) == (7.5, "grammar")


@pytest.mark.parametrize("text", ["null", "~", "yes", "1", "1e3", ".5", "a: b", "#", "", " a", "ü"])
def test_texts_stay_texts(text: str, tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    data = {"extends": "base", "streams": ["compute", "copy"], "prompts": [{"prompt": text + "!"}]}
    path.write_text(plain_yaml(data | {"model": {"name": text + "x", "compile": "off"}}))
    config = load_config(path)
    assert isinstance(config, PipelineConfig)
    assert (config.prompts[0].prompt, config.model.name) == (text + "!", text + "x")


def test_keys_and_nodes_are_commented_and_stand_in_the_order_of_the_step() -> None:
    text = whole("quickstart")
    assert "  max_rows: 16                        # Requests in one step, at most\n" in text
    assert "order: search                         # search: the compiler chooses" in text
    assert "  draft:                              # propose k tokens per row with a smaller" in text
    places = [text.index(f"\n  {node}:") for node in ("schedule", "forward", "bitmask", "commit")]
    assert places == sorted(places)
    assert max(map(len, text.partition("prompts:")[0].splitlines())) <= 100


@pytest.mark.parametrize("letter", ["\x7f", "\x85", "\u2028", "\ufeff", "\ufffe", "🦊"])
def test_letters_that_yaml_does_not_have_are_escaped(letter: str, tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(plain_yaml({"extends": "base", "prompts": [{"prompt": f"a{letter}b"}]}))
    config = load_config(path)
    assert isinstance(config, PipelineConfig)
    assert config.prompts[0].prompt == f"a{letter}b"
