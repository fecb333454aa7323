import json
from pathlib import Path
from typing import Any

import pytest

from stepweave.configs.abstract import AbstractGraph
from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load, load_config, shipped, shipped_file
from stepweave.configs.schema import PipelineConfig
from stepweave.nodes.draft_model import DraftModelOptions
from stepweave.policies.acceptance import Coupled, Rejection, Synthetic
from stepweave.policies.scheduling import DecodesFirst, Shared
from stepweave.serving.pipeline import policies_of
from tests.graph.shipped_plans import GRAPHS


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


@pytest.mark.sampled(42)
@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in shipped() if name not in GRAPHS])
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
    assert {"draft", "bitmask"} <= set(config.nodes)
    assert len(config.prompts) >= 4


def test_a_file_here_comes_before_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quickstart.yaml").write_text("extends: base\ndepth: 7\n")
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
        "scheduler: {max_rows: 4, num_blocks: 9}\nnodes:\n  forward: {}\n"
        "  bitmask: {actor: grammar, host_cost_us: 7}\n"
        "  draft: {kind: eagle, stream: draft, tokens: 2}\n  commit: {}\n"
    )
    (tmp_path / "child.yaml").write_text(
        "extends: parent.yaml\nscheduler: {max_rows: 8}\n"
        "nodes:\n  draft: {stream: compute}\n  commit: null\n"
        "  mine: {kind: sample, after: draft}\n"
    )
    config = pipeline(tmp_path / "child.yaml")
    assert (config.scheduler.max_rows, config.scheduler.num_blocks) == (8, 9)
    said = {name: node.model_dump(exclude_defaults=True) for name, node in config.nodes.items()}
    assert list(said) == ["forward", "bitmask", "draft", "mine"]
    assert said == {
        "forward": {"kind": "forward"},
        "bitmask": {"kind": "bitmask", "actor": "grammar", "host_cost_us": 7},
        "draft": {"kind": "eagle", "stream": "compute", "tokens": 2},
        "mine": {"kind": "sample"},
    }


def test_an_error_names_the_file_it_came_from(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text("extends: base\nscheduler: {max_row: 4}\n")
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
        nodes__draft="null",
        scheduler__max_rows="3",
        model__name="some/model",
        costs__forward__device="12.5",
        slots="{mask: 2}",
        nodes__bitmask__any_whitespace="true",
    )
    assert config.drafter is None
    assert config.scheduler.max_rows == 3
    assert config.model.name == "some/model"
    assert config.costs == {"forward.device": 12.5}
    assert config.slots == {"mask": 2}
    assert config.grammars is not None
    assert config.grammars.any_whitespace


def test_settings_can_add_a_node_whatever_their_order() -> None:
    settings = {
        "nodes.draft.tokens": "2",
        "nodes.draft.after": "sample",
        "nodes.draft.kind": "ngram",
    }
    for order in (list(settings), sorted(settings)):
        config = load_config("async", {key: settings[key] for key in order})
        assert isinstance(config, PipelineConfig)
        assert list(config.nodes)[3:5] == ["sample", "draft"]
        assert config.drafter is not None
        assert config.drafter.tokens == 2


def test_a_setting_reaches_a_node_by_its_name() -> None:
    config = load_config("abstract_decode", {"nodes.forward.device.cost_us": "1", "order": "keep"})
    assert isinstance(config, AbstractGraph)
    forward = next(node for node in config.nodes if node.name == "forward")
    assert forward.device is not None
    assert (forward.device.cost_us, config.order) == (1, "keep")


def test_a_setting_changes_one_key_of_a_node() -> None:
    plain, changed = pipeline("quickstart"), pipeline("quickstart", nodes__bitmask__actor="grammar")
    assert changed.nodes["bitmask"].actor == "grammar"
    assert list(changed.nodes) == list(plain.nodes)
    assert changed.grammars is not None
    with pytest.raises(ConfigError, match=r"no entry 'forwrd' \(did you mean 'forward'"):
        load("abstract_decode", {"nodes.forwrd.offset": "1"})


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("shceduler.max_rows", "3", "unknown key 'shceduler' (did you mean 'scheduler'?)"),
        ("scheduler.num_blocks", "0", "num_blocks must be at least 1, not 0; or 'auto'"),
        ("scheduler.max_rowz", "3", "(did you mean 'max_rows'?)"),
        ("executor", "thread", "(did you mean 'threads'?)"),
        ("depth", "two", "must be a whole number"),
        ("depth", "0", "must be at least 1"),
        ("depth.more", "1", "nothing below a plain value"),
        ("depth", "[1", "not valid YAML"),
        ("depth", "!x 1", "tags are not allowed"),
        ("", "1", "--set dotted.key=value"),
        ("a..b", "1", "--set dotted.key=value"),
        ("nodes.forwrd.stream", "copy", "(did you mean 'forward'?)"),
        ("nodes.draft.tokens", "17", "nodes.draft.tokens must be at most 16, not 17"),
        ("nodes.draft.tokns", "1", "unknown key 'tokns' (did you mean 'tokens'?)"),
        ("nodes.drft", "null", "no node 'drft' to take out (did you mean 'draft'?)"),
        ("nodes.draft.after", "sampel", "not in the pipeline (did you mean 'sample'?)"),
        ("nodes.bitmask.backend", "gramar", "backend cannot be"),
        ("nodes.draft.longest", "4", "nodes.draft: unknown key 'longest'"),
        ("speculation.tokens", "4", "`speculation` is now a node: write `nodes: {draft: "),
        ("structured", "null", "`structured` is now a node: write `nodes: {bitmask: null}`"),
        ("scheduler.admission", "eager", "is now `policies: {admission: eager}`"),
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
        ("forwrd: {after: sample}", 3, "unknown node kind 'forwrd' (did you mean 'forward'?)"),
        ("forwrd: {stream: copy}", 3, "(did you mean 'forward'?)"),
        ("forward: 3", 3, "nodes.forward must be a mapping"),
        ("a: {kind: samlpe, after: draft}", 13, "unknown node kind 'samlpe' (did you mean"),
        ("a: {kind: os.system, after: draft}", 13, "unknown node kind"),
        ("draft: {kind: 3}", 17, "nodes.draft.kind must be text"),
        ("draft: {actor: drivr}", 18, "unknown actor 'drivr' (did you mean 'driver'?)"),
        ("draft: {stream: compte}", 19, "unknown stream 'compte' (did you mean 'compute'?)"),
        ("draft: {stream: draft, tokens: 0}", 34, "nodes.draft.tokens must be at least 1, not 0"),
        ("draft: {tokns: 2}", 11, "nodes.draft: unknown key 'tokns' (did you mean 'tokens'?)"),
        ("draft: {kind: ngram, longest: 2, shortest: 3}", 10, "shortest 3 is more than longest 2"),
        ("draft: {kind: ngram, model: x}", 24, "nodes.draft: unknown key 'model'"),
        ("draft: {reads: {sampled: s@1}}", 28, "reads a step to come"),
        ("draft: {options: {tokens: 2}}", 11, "stand beside its other keys"),
        ("draft: {offset: 1}", 11, "follows from `depth`"),
        ("a: {kind: sample}", 3, "a new node says where it stands: `after: forward`"),
        ("a: {kind: sample, after: b}", 28, "to stand after 'b', which is not in the pipeline"),
        ("a: {kind: sample, after: [b]}", 28, "nodes.a.after must be the name of one node"),
        ("a: {kind: sample, after: draft, before: commit}", 35, "`after` and `before` are both"),
        ("a: {kind: sample, after: a}", 28, "to stand after 'a'"),
        ("a: null", 3, "there is no node 'a' to take out"),
    ],
)
def test_unknown_kinds_and_actors_get_the_nearest_right_name(
    tmp_path: Path, node: str, column: int, said: str
) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(f"extends: quickstart\nnodes:\n  {node}\n")
    error = refused(path)
    assert said in error.message
    assert len(error.problems) == 1
    assert (error.line, error.column) == (3, column)


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("max_rows: 3", 1, "unknown key 'max_rows'; there is `scheduler.max_rows`"),
        ("tokens: 3", 1, "unknown key 'tokens'; there is `nodes.draft.tokens`"),
        ("tensor: 2", 1, "unknown key 'tensor'; there is `model.parallel.tensor`"),
        ("stream: x", 1, "unknown key 'stream' (did you mean 'streams'?)"),
        ("model: embedded", 1, "model must be a mapping: write `model: {name: embedded}`"),
        ("depth: 99", 8, "depth must be at most 8, not 99; or 'auto'"),
        (
            "policies: {acceptance: {rates: [1]}}",
            25,
            "policies.acceptance: unknown key 'rates' of 'coupled'; give the policy that has it, "
            "as `kind: synthetic`",
        ),
        (
            "policies: {scheduling: {prompt_token: 8}}",
            25,
            "policies.scheduling: unknown key 'prompt_token' (did you mean 'prompt_tokens'?)",
        ),
    ],
)
def test_what_stands_in_the_wrong_place_is_told_with_what_to_write(
    tmp_path: Path, text: str, column: int, said: str
) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(f"extends: async\n{text}\n")
    error = refused(path)
    assert [each.message for each in error.problems] == [said]
    assert (error.line, error.column) == (2, column)


def test_a_list_that_lacks_what_nodes_of_another_file_name_is_what_is_wrong(
    tmp_path: Path,
) -> None:
    path = tmp_path / "it.yaml"
    path.write_text("extends: async\nstreams: [copy]\nactors: [grammar]\n")
    said = [f"{each.mark.line}: {each.message}" for each in refused(path).problems]
    assert said == [
        "2: streams lacks 'compute', which is the stream of prepare_inputs, forward, sample",
        f"3: actors lacks 'driver', which is the actor of {', '.join(PLAIN)}",
    ]
    assert refused("async", {"streams": "[compute]"}).message == (
        "--set streams=[compute]: streams lacks 'copy', which is the stream of d2h_copy"
    )
    path.write_text("extends: async\nstreams: [compute, copy]\nnodes: {forward: {stream: cop}}\n")
    nodes = [refused(path), refused(path, {"nodes.sample.stream": "cmpute"})]
    assert nodes[0].line == 3
    assert "--set nodes.sample.stream=cmpute: unknown stream 'cmpute' (did" in nodes[1].message


def test_a_plan_called_as_the_files_own_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text("extends: async\nplans:\n  usual: {depth: 1}\n")
    error = refused(path)
    assert "'usual' is the name of the plan that the file itself has" in error.message
    assert (error.line, error.column) == (3, 3)


def test_a_node_listed_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text("nodes:\n  draft: {}\n  draft: {}\n")
    assert "duplicate key 'draft'" in refused(path).message


def test_a_pipeline_without_nodes_is_told_what_to_extend(tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text("depth: 2\n")
    assert "lists no nodes: list them, or extend a pipeline" in refused(path).message


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("{forward: null}", "nodes.forward is null, which takes a node out of a file that is"),
        ("{forward: {after: sample}, sample: {}}", "here the order is that of the list"),
    ],
)
def test_a_file_that_extends_nothing_lists_its_nodes_in_order(
    tmp_path: Path, nodes: str, said: str
) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(f"version: 2\nnodes: {nodes}\n")
    error = refused(path)
    assert said in error.message
    assert error.line == 2


def test_a_pipeline_knows_the_lines_of_its_nodes_and_their_files(tmp_path: Path) -> None:
    (tmp_path / "it.yaml").write_text("depth: 1\nnodes:\n  forward: {}\n  sample: {}\n")
    (tmp_path / "on.yaml").write_text("extends: it.yaml\nnodes:\n\n  forward: {actor: driver}\n")
    loaded = load(tmp_path / "on.yaml")
    assert isinstance(loaded.config, PipelineConfig)
    lines = {name: node.line for name, node in loaded.config.nodes.items()}
    assert lines == {"forward": 4, "sample": 4}
    assert str(loaded.mark(lines["forward"])) == f"{tmp_path / 'on.yaml'}:4:3"
    assert str(loaded.mark(lines["sample"])) == "it.yaml:4:3"


def test_a_node_that_a_setting_changes_keeps_its_line() -> None:
    plain = load("quickstart")
    changed = load("quickstart", {"nodes.draft.stream": "draft", "nodes.draft.before": "commit"})
    assert isinstance(plain.config, PipelineConfig)
    assert isinstance(changed.config, PipelineConfig)
    line = plain.config.nodes["draft"].line
    assert line is not None
    assert changed.config.nodes["draft"].line == line
    assert str(changed.mark(changed.config.nodes["draft"].line)).startswith(f"quickstart:{line}:")
    new = load("base", {"nodes.draft": "{kind: ngram, after: sample}"}).config
    assert isinstance(new, PipelineConfig)
    assert new.nodes["draft"].line is None


# --- where nodes stand ---

PLAIN = ["schedule", "prepare_inputs", "forward", "sample", "d2h_copy", "commit"]


def order(tmp_path: Path, nodes: str, extends: str = "base") -> list[str]:
    path = tmp_path / "it.yaml"
    path.write_text(f"extends: {extends}\nnodes: {{{nodes}}}\n")
    return list(pipeline(path).nodes)


@pytest.mark.parametrize(
    ("nodes", "listed"),
    [
        ("a: {kind: sample, after: forward}", "schedule prepare_inputs forward a sample"),
        ("a: {kind: sample, before: forward}", "schedule prepare_inputs a forward sample"),
        # Of one anchor: in the order of the file.
        (
            "a: {kind: sample, after: forward}, b: {kind: sample, after: forward}",
            "schedule prepare_inputs forward a b sample",
        ),
        (
            "a: {kind: sample, before: forward}, b: {kind: sample, before: forward}",
            "schedule prepare_inputs a b forward sample",
        ),
        # An anchor may be new, and may be named before it is listed.
        (
            "a: {kind: sample, after: b}, b: {kind: sample, after: schedule}",
            "schedule b a prepare_inputs forward sample",
        ),
        # A node that is there can be moved.
        ("sample: {after: schedule}", "schedule sample prepare_inputs forward"),
        ("schedule: {before: sample}", "prepare_inputs forward schedule sample"),
    ],
)
def test_new_nodes_say_where_they_stand_and_others_can_be_moved(
    tmp_path: Path, nodes: str, listed: str
) -> None:
    assert order(tmp_path, nodes) == [*listed.split(), "d2h_copy", "commit"]


def test_null_takes_a_node_out_and_a_later_file_can_put_it_back(tmp_path: Path) -> None:
    assert order(tmp_path, "draft: null, bitmask: null", "quickstart") == PLAIN
    (tmp_path / "it.yaml").rename(tmp_path / "less.yaml")
    listed = order(tmp_path, "draft: {kind: ngram, before: d2h_copy}", "less.yaml")
    assert listed == [*PLAIN[:4], "draft", *PLAIN[4:]]


def test_two_nodes_that_wait_for_each_others_place_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    nodes = "a: {kind: sample, after: b}, b: {kind: sample, before: a}"
    path.write_text(f"extends: base\nnodes: {{{nodes}}}\n")
    assert "'a' is to stand after 'b', which itself" in refused(path).message


def test_another_kind_keeps_the_place_and_none_of_the_options(tmp_path: Path) -> None:
    config = pipeline("drafter_stream", nodes__draft__kind="ngram", nodes__draft__longest="5")
    dumped = config.nodes["draft"].model_dump(exclude_defaults=True)
    assert dumped == {"kind": "ngram", "stream": "draft", "longest": 5}
    assert list(config.nodes)[3:5] == ["sample", "draft"]


# --- the format before ---

OLD = """\
version: 1
extends: async
speculation: {method: eagle3, tokens: 2, acceptance: rejection, padded: false}
structured: {}
scheduler: {max_rows: 2, admission: just_in_time}
nodes:
  - {name: draft, stream: draft}
"""


def test_each_key_of_the_format_before_gets_one_error_with_what_to_write(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(OLD)
    said = [(problem.mark.line, problem.message) for problem in refused(path).problems]
    assert [line for line, _ in said] == [1, 3, 4, 5, 6]
    for (_, message), advice in zip(
        said,
        (
            "write `version: 2`",
            "`nodes: {draft: {kind: eagle3, after: sample, tokens: 2}}`; `acceptance` is now "
            "`policies: {acceptance: rejection}`; `padded: false` is now the node `d2h_counts: "
            "{after: sample, stream: copy}`",
            "`nodes: {bitmask: {after: forward}}`",
            "`policies: {admission: just_in_time}`",
            "write `draft: {…}`, not `- {name: draft, …}`",
        ),
        strict=True,
    ):
        assert advice in message


def test_what_the_errors_say_to_write_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    path.write_text(
        "version: 2\nextends: async\n"
        "scheduler: {max_rows: 2}\npolicies: {acceptance: rejection, admission: just_in_time}\n"
        "nodes:\n  draft: {kind: eagle3, after: sample, tokens: 2, stream: draft}\n"
        "  d2h_counts: {after: sample, stream: copy}\n  bitmask: {after: forward}\n"
    )
    config = pipeline(path)
    middle = ["forward", "bitmask", "sample", "draft", "d2h_counts", "d2h_copy"]
    assert list(config.nodes)[2:-1] == middle


def test_a_list_of_nodes_over_a_list_is_still_an_abstract_graph(tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text("extends: abstract_decode\nnodes:\n  - {name: draft, stream: other}\n")
    config = load_config(path)
    assert isinstance(config, AbstractGraph)
    assert next(node for node in config.nodes if node.name == "draft").stream == "other"


# --- policies ---


def test_an_acceptance_rule_is_a_name_or_a_mapping_with_its_own_keys() -> None:
    assert (
        pipeline("async", policies__acceptance="rejection").policies.acceptance.kind == "rejection"
    )
    rated = pipeline("async", policies__acceptance="{kind: synthetic, rates: [0.5, 0.25]}")
    assert policies_of(rated).acceptance == Synthetic(rates=(0.5, 0.25))
    for wrong, said in (
        ("synthetic", "policies.acceptance lacks the key 'rates'"),
        ("{kind: coupled, rates: [1]}", "policies.acceptance: unknown key 'rates'"),
        ("cupled", "there is no acceptance policy 'cupled' (did you mean 'coupled'?)"),
        ("{kind: synthetic, rates: [2]}", "policies.acceptance.rates[0] must be at most 1"),
        ("3", "must be a name, or a mapping"),
        ("{rates: [1]}", "policies.acceptance: unknown key 'rates'"),
        ("{kind: [coupled]}", "must be a name, or a mapping"),
    ):
        assert said in refused("async", {"policies.acceptance": wrong}).message


def test_options_of_a_policy_are_laid_over_those_of_the_same_policy_only(tmp_path: Path) -> None:
    """Another name takes the options of the one before away, in a file as by --set."""
    parent, child = tmp_path / "parent.yaml", tmp_path / "child.yaml"
    parent.write_text(
        "version: 2\nextends: async_speculation\npolicies:\n"
        "  acceptance: {kind: synthetic, rates: [0.5]}\n  scheduling: {prompt_tokens: 8}\n"
    )

    def rule(policies: str, **changed: Any) -> Any:
        child.write_text(f"version: 2\nextends: {parent.name}\npolicies: {policies}\n")
        return policies_of(pipeline(str(child), **changed))

    assert rule("{}").acceptance == Synthetic(rates=(0.5,))
    assert rule("{}").scheduling == DecodesFirst(prompt_tokens=8)
    assert rule("{acceptance: {rates: [1]}}").acceptance == Synthetic(rates=(1.0,))
    assert rule("{acceptance: synthetic}").acceptance == Synthetic(rates=(0.5,))
    assert rule("{acceptance: coupled}").acceptance == Coupled()
    assert rule("{scheduling: {kind: shared}}").scheduling == Shared()
    changed = rule("{}", policies__acceptance__kind="rejection", policies__scheduling="shared")
    assert (changed.acceptance, changed.scheduling) == (Rejection(), Shared())
    again = rule(
        "{acceptance: coupled}",
        policies__acceptance="synthetic",
        policies__acceptance__rates="[0.25]",
        policies__scheduling__prompt_tokens="4",
    )
    assert again.acceptance == Synthetic(rates=(0.25,))
    assert again.scheduling == DecodesFirst(prompt_tokens=4)


def test_a_pipeline_config_survives_a_round_trip() -> None:
    config = pipeline("quickstart")
    again = PipelineConfig.model_validate(config.model_dump())
    assert again.model_dump() == config.model_dump()
    assert list(again.nodes) == list(config.nodes)
    assert isinstance(again.drafter, DraftModelOptions)


@pytest.mark.parametrize("overrides", [3, "depth=3", ["depth"], object()])
def test_overrides_that_are_no_mapping_are_refused_in_one_sentence(overrides: Any) -> None:
    with pytest.raises(ConfigError, match=r"^overrides: must be a mapping of keys to values, not "):
        load_config("async", overrides)


def test_a_config_is_written_in_python_as_in_a_file(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "extends": "async_eagle3_grammar",
        "depth": 3,
        "model": {"name": Path("/my/model")},
        "nodes": {"draft": {"tokens": 2, "model": "/my/drafter"}, "bitmask": None},
        "policies": {"drafting": "by_rows"},
        "streams": ("compute", "draft", "copy"),
    }
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(keys, default=str))
    assert load_config(keys).model_dump() == load_config(file).model_dump()
    changed = [load_config(each, {"depth": 1}).model_dump() for each in (keys, file)]
    assert changed[0] == changed[1] != load_config(file).model_dump()
    graph = {"nodes": [{"name": "a", "host": {"writes": ["x"]}}], "values": {"x": {}}}
    assert isinstance(load_config(graph), AbstractGraph)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"extends": "async", "depht": 2}, "pipeline: unknown key 'depht' (did you mean 'depth'?)"),
        ({"extends": "asinc"}, "pipeline: extends asinc: no such file or shipped config (did you"),
        ({"extends": "async", "depth": object()}, "pipeline: must be a text, number"),
        ({"extends": "async", 3: 4}, "pipeline: a key must be text, not 3"),
        (
            {"extends": "async", "nodes": {"forwrd": None}},
            "pipeline: nodes.forwrd: there is no node",
        ),
        ({"extends": 3}, "pipeline: extends must be a shipped name or a path"),
        ({}, "pipeline: the pipeline lists no nodes"),
    ],
)
def test_what_is_wrong_in_keys_from_python_is_told_in_one_line(
    keys: dict[Any, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(keys)
    assert caught.value.message.startswith(said)


def test_an_index_of_many_digits_is_no_entry() -> None:
    with pytest.raises(ConfigError, match="no entry"):
        load_config("quickstart", {"prompts." + "9" * 5000 + ".prompt": "a"})
