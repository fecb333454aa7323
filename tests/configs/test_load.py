from pathlib import Path
from typing import Any

import pytest

from stepweave.configs.abstract import AbstractGraph
from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load, load_config, shipped, shipped_file
from stepweave.configs.schema import PipelineConfig


def pipeline(name: str | Path, **overrides: str) -> PipelineConfig:
    config = load_config(name, {key.replace("__", "."): text for key, text in overrides.items()})
    assert isinstance(config, PipelineConfig)
    return config


def refused(name: str | Path, overrides: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(name, overrides)
    return caught.value


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_config_loads_and_says_what_it_is(name: str) -> None:
    assert isinstance(load_config(name), PipelineConfig | AbstractGraph)
    assert (shipped_file(name)).read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in shipped() if name != "abstract_decode"])
def test_executor_and_depth_can_be_set_on_every_shipped_pipeline(
    name: str, depth: int, executor: str
) -> None:
    config = pipeline(name, depth=str(depth), executor=executor)
    assert (config.depth, config.executor) == (depth, executor)


@pytest.mark.parametrize(
    "name", ["quickstart", "quickstart.yaml", "configs/quickstart.yaml", "configs/quickstart"]
)
def test_a_shipped_config_is_found_by_name_from_anywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = pipeline(name)
    assert config.speculation is not None
    assert config.structured is not None
    assert len(config.prompts) >= 4


def test_a_file_here_comes_before_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quickstart.yaml").write_text("depth: 7\n")
    assert pipeline("quickstart.yaml").depth == 7
    assert pipeline("quickstart").depth == 2


def test_a_folder_does_not_hide_a_shipped_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("async").mkdir()
    assert pipeline("async").depth == 2


def test_a_missing_file_is_answered_with_the_nearest_name() -> None:
    assert "(did you mean 'quickstart'?)" in refused("quikstart").message
    assert "no such file" in refused("/nowhere/at/all.yaml").message
    assert "no such file" in refused("bad\0name").message


def test_a_child_wins_and_nodes_are_merged_by_name(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text(
        "scheduler: {max_rows: 4, num_blocks: 9}\nspeculation: {tokens: 2}\n"
        "nodes:\n  - {name: bitmask, actor: grammar, host_cost_us: 7}\n"
        "  - {name: draft, stream: draft}\n"
    )
    (tmp_path / "child.yaml").write_text(
        "extends: parent.yaml\nscheduler: {max_rows: 8}\nspeculation: null\n"
        "nodes:\n  - {name: draft, stream: compute}\n"
        "  - {name: mine, kind: forward, after: draft}\n"
    )
    config = pipeline(tmp_path / "child.yaml")
    assert (config.scheduler.max_rows, config.scheduler.num_blocks) == (8, 9)
    assert config.speculation is None
    assert [node.model_dump(exclude_defaults=True) for node in config.nodes] == [
        {"name": "bitmask", "actor": "grammar", "host_cost_us": 7},
        {"name": "draft", "stream": "compute"},
        {"name": "mine", "kind": "forward", "after": "draft"},
    ]


def test_an_error_names_the_file_it_came_from(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text("depth: 2\nscheduler: {max_row: 4}\n")
    (tmp_path / "child.yaml").write_text("extends: parent.yaml\n")
    problem = refused(tmp_path / "child.yaml").problems[0]
    assert (problem.mark.file, problem.mark.line, problem.mark.column) == ("parent.yaml", 2, 13)
    assert "(did you mean 'max_rows'?)" in problem.message


def test_files_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("depth: 1\nextends: a.yaml\n")
    error = refused(tmp_path / "a.yaml")
    assert "extends this file" in error.message
    assert (error.line, error.column) == (2, 10)


def test_a_long_chain_of_files_is_refused(tmp_path: Path) -> None:
    for i in range(20):
        (tmp_path / f"{i}.yaml").write_text(f"extends: {i + 1}.yaml\n")
    assert "more than 8 files" in refused(tmp_path / "0.yaml").message


def test_a_missing_parent_is_told_at_the_line_that_wants_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("depth: 1\nextends: asinc\n")
    error = refused(tmp_path / "a.yaml")
    assert (error.line, error.column) == (2, 10)
    assert "did you mean 'async'" in error.message


def test_settings_are_yaml_scalars_at_dotted_keys() -> None:
    config = pipeline(
        "quickstart",
        speculation="null",
        scheduler__max_rows="3",
        model__name="some/model",
        costs__forward__device="12.5",
        slots="{mask: 2}",
        structured__any_whitespace="true",
    )
    assert config.speculation is None
    assert config.scheduler.max_rows == 3
    assert config.model.name == "some/model"
    assert config.costs == {"forward.device": 12.5}
    assert config.slots == {"mask": 2}
    assert config.structured is not None
    assert config.structured.any_whitespace


def test_a_setting_can_make_what_was_null() -> None:
    config = pipeline("async", speculation__tokens="2")
    assert config.speculation is not None
    assert config.speculation.tokens == 2


def test_a_setting_reaches_a_node_by_its_name() -> None:
    config = load_config("abstract_decode", {"nodes.forward.device.cost_us": "1", "order": "keep"})
    assert isinstance(config, AbstractGraph)
    forward = next(node for node in config.nodes if node.name == "forward")
    assert forward.device is not None
    assert (forward.device.cost_us, config.order) == (1, "keep")


def test_a_setting_can_mention_a_node_for_the_first_time() -> None:
    nodes = pipeline("quickstart", nodes__bitmask__actor="grammar").nodes
    assert [(node.name, node.actor) for node in nodes] == [("bitmask", "grammar")]
    with pytest.raises(ConfigError, match=r"no entry 'forwrd' \(did you mean 'forward'"):
        load("abstract_decode", {"nodes.forwrd.offset": "1"})


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("shceduler.max_rows", "3", "unknown key 'shceduler' (did you mean 'scheduler'?)"),
        ("scheduler.max_rowz", "3", "(did you mean 'max_rows'?)"),
        ("executor", "thread", "(did you mean 'threads'?)"),
        ("depth", "two", "must be a whole number"),
        ("depth", "0", "must be at least 1"),
        ("depth.more", "1", "nothing below a plain value"),
        ("depth", "[1", "not valid YAML"),
        ("depth", "!x 1", "tags are not allowed"),
        ("", "1", "--set dotted.key=value"),
        ("a..b", "1", "--set dotted.key=value"),
        ("nodes.forwrd.stream", "copy", "unknown node kind 'forwrd' (did you mean 'forward'?)"),
        ("scheduler.token_budget", "2", "a row gets its whole window or none"),
    ],
)
def test_a_wrong_setting_is_named_as_it_was_given(key: str, text: str, said: str) -> None:
    error = refused("quickstart", {key: text})
    assert said in error.message
    if key != "scheduler.token_budget":
        assert f"--set {key}={text}" in error.message


@pytest.mark.parametrize(
    ("node", "column", "said"),
    [
        ("{name: forwrd}", 12, "unknown node kind 'forwrd' (did you mean 'forward'?)"),
        ("{name: mine, kind: samlpe}", 24, "unknown node kind 'samlpe' (did you mean 'sample'?)"),
        ("{name: mine, kind: os.system}", 24, "unknown node kind"),
        ("{name: draft, actor: drivr}", 26, "unknown actor 'drivr' (did you mean 'driver'?)"),
        ("{name: draft, stream: compte}", 27, "unknown stream 'compte' (did you mean 'compute'?)"),
    ],
)
def test_unknown_kinds_and_actors_get_the_nearest_right_name(
    tmp_path: Path, node: str, column: int, said: str
) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(f"extends: quickstart\nnodes:\n  - {node}\n".replace("  - ", "  -  "))
    error = refused(path)
    assert said in error.message
    assert (error.line, error.column) == (3, column + 1)


def test_a_node_listed_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text("nodes:\n  - {name: draft}\n  - {name: draft}\n")
    assert "'draft' is listed twice" in refused(path).message


def test_a_pipeline_knows_the_lines_of_its_nodes(tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text("depth: 1\nnodes:\n  - {name: draft}\n  - {name: bitmask}\n")
    assert [node.line for node in pipeline(path).nodes] == [3, 4]


def test_a_pipeline_config_survives_a_round_trip() -> None:
    config = pipeline("quickstart")
    assert PipelineConfig.model_validate(config.model_dump(by_alias=True)) == config


@pytest.mark.parametrize("overrides", [3, "depth=3", ["depth"], object()])
def test_overrides_that_are_no_mapping_are_refused_in_one_sentence(overrides: Any) -> None:
    with pytest.raises(ConfigError, match=r"^overrides: must be a mapping of keys to values, not "):
        load_config("async", overrides)
