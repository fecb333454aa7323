import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from stepweave.cli.main import app
from stepweave.configs.load import shipped
from tests.graph.shipped_plans import GRAPHS

KEYS = [
    *("ok", "digest", "actors", "waits", "edges", "slots", "requirements", "period_us"),
    *("critical_cycle", "errors", "costs_from"),
]
SOUND = """\
order: keep
values:
  batch: {place: host}
  staging: {place: pinned, slots: 1}
  inputs: {place: device}
nodes:
  - name: schedule
    host: {writes: [batch], cost_us: 5}
  - name: prepare
    stream: compute
    host: {reads: [batch], writes: [staging], cost_us: 5}
    device: {reads: [staging], writes: [inputs], cost_us: 50}
  - name: forward
    stream: compute
    device: {reads: [inputs], cost_us: 100}
"""
DEADLOCK = """\
order: keep
values:
  x: {place: device}
  y: {place: device}
nodes:
  - name: first
    stream: one
    device: {reads: [y], writes: [x]}
  - name: second
    stream: two
    device: {reads: [x], writes: [y]}
"""


def stepweave(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def written(folder: Path, text: str, name: str = "it.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_sound_graph_is_one_object_with_the_documented_keys(tmp_path: Path) -> None:
    result = stepweave("check", written(tmp_path, SOUND), "--json")
    assert result.exit_code == 0, result.output
    (found,) = objects(result)
    assert list(found) == KEYS
    assert found["ok"] is True
    assert found["errors"] == []
    assert found["requirements"] == len(found["edges"])
    assert found["slots"] == {"batch": None, "staging": 1, "inputs": 1}
    assert found["actors"]["compute"] == [["prepare.device", 0], ["forward.device", 0]]
    assert [(w["from"], w["to"], w["distance"]) for w in found["waits"]] == [
        ("prepare.device", "prepare.host", 1)
    ]
    assert list(found["edges"][0]) == [
        *("from", "to", "value", "carry", "distance", "hazard", "from_stream", "to_stream"),
        *("by", "event", "witness"),
    ]


def test_people_read_the_waits_with_what_they_protect(tmp_path: Path) -> None:
    result = stepweave("check", written(tmp_path, SOUND))
    assert result.exit_code == 0
    assert "prepare.host, one step later waits for prepare.device" in result.stdout
    assert "WAR staging: prepare.device → prepare.host" in result.stdout
    assert "fresh: batch" in result.stdout


def test_the_proof_is_printed_on_request_only(tmp_path: Path) -> None:
    path = written(tmp_path, SOUND)
    assert "requirements and their witnesses" not in stepweave("check", path).stdout
    proof = stepweave("check", path, "--proof").stdout
    assert "requirements and their witnesses" in proof
    assert "RAW     staging  prepare.host    prepare.device" in proof


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("verb", [("check",), ("graph", "show")], ids=" ".join)
def test_every_shipped_config_fits_a_screen(
    name: str, verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = stepweave(*verb, name).stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "hints, not measured"),
        (("--set", "costs.forward.device=4000"), "as given, else hints, not measured"),
        (("--costs", "llama_8b"), "llama_8b: ASSUMED, not measured, 8 rows a step"),
    ],
)
def test_no_period_stands_without_the_origin_of_its_costs(
    arguments: tuple[str, ...], said: str
) -> None:
    for verb in (("check",), ("graph", "show"), ("graph", "whatif")):
        printed = " ".join(stepweave(*verb, "quickstart", *arguments).stdout.split())
        assert said in printed, verb
    why = stepweave("graph", "why", "quickstart", "draft", "d2h_copy", *arguments).stdout
    assert f"Costs: {said}" in " ".join(why.split())
    drawn = stepweave("graph", "render", "quickstart", "-o", "-", "--format", "svg", *arguments)
    assert said in drawn.stdout
    page = stepweave("graph", "render", "quickstart", "-o", "-", "--format", "html", *arguments)
    assert f"a step (costs: {said})" in page.stdout
    (found,) = objects(stepweave("check", "quickstart", "--json", *arguments))
    assert found["costs_from"] == said


def test_changed_costs_are_said_to_be_changed() -> None:
    found = stepweave("graph", "whatif", "abstract_decode", "--scale", "forward=0.5").stdout
    assert "costs      hints, not measured → hints, not measured, changed here" in found


def test_several_files_are_answered_in_order_and_one_failure_fails_all(tmp_path: Path) -> None:
    good = written(tmp_path, SOUND, "good.yaml")
    bad = written(tmp_path, SOUND.replace("reads: [inputs]", "reads: [input]"), "bad.yaml")
    result = stepweave("check", good, bad, tmp_path / "missing.yaml", good, "--json")
    assert result.exit_code == 2, "the worst of all: a file that is not there"
    found = objects(result)
    assert [each["ok"] for each in found] == [True, False, False, True]
    assert all(list(each) == KEYS for each in found)
    (error,) = found[1]["errors"]
    assert (error["code"], error["line"], error["column"]) == ("SW-UNKNOWN-NAME", 15, 22)
    assert "(did you mean 'inputs'?)" in error["message"]


def test_a_deadlock_is_printed_with_its_cycle(tmp_path: Path) -> None:
    result = stepweave("check", written(tmp_path, DEADLOCK), "--json")
    assert result.exit_code == 1
    (error,) = objects(result)[0]["errors"]
    assert error["code"] == "SW-DEADLOCK"
    assert sum(distance for _, distance in error["cycle"]) <= 0


def test_a_wrong_graph_is_told_with_file_line_and_column(tmp_path: Path) -> None:
    text = SOUND.replace("writes: [inputs]", "writes: [inputs, batch]").replace("host}", "pinned}")
    path = written(tmp_path, text)
    result = stepweave("check", path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "FAILED [SW-TWO-WRITERS]" in result.stderr
    assert f"{path}:9:5:" in result.stderr


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", shipped())
def test_every_shipped_config_is_sound(name: str) -> None:
    result = stepweave("check", name, "--json")
    assert result.exit_code == 0, result.output
    assert objects(result)[0]["ok"]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_full_pipeline_is_sound_at_every_depth(depth: int) -> None:
    result = stepweave("check", "quickstart", "--json", "--set", f"depth={depth}")
    assert result.exit_code == 0, result.output


def test_the_abstract_example_needs_two_waits_and_is_bound_by_the_device() -> None:
    (found,) = objects(stepweave("check", "abstract_decode", "--json"))
    assert len(found["waits"]) == 2
    assert all(op.endswith(".device") for op, _ in found["critical_cycle"])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("slots.msk=2", "unknown value 'msk' (did you mean 'mask'?)"),
        ("costs.forwrd.device=2", "unknown op 'forwrd.device' (did you mean 'forward.device'?)"),
    ],
)
def test_pins_and_hints_must_name_what_exists(setting: str, said: str) -> None:
    result = stepweave("check", "quickstart", "--set", setting)
    assert result.exit_code == 2
    assert f"--set {setting}: {said}" in result.stderr


PROBE = """
import sys, time
from stepweave.cli.main import app
try:
    app(["check", *sys.argv[1:], "--json"])
except SystemExit as end:
    assert end.code == 0, end.code
heavy = {"torch", "transformers", "xgrammar", "rich"} & set(sys.modules)
assert not heavy, heavy
"""


def test_an_abstract_graph_is_checked_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, "abstract_decode"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"]


SAMPLE = ("abstract_decode", "async_eagle3_grammar", "drafter_stream", "grammar_worker")
"""An abstract graph, the pipeline of most features, a stream and a thread that others lack."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name",
    [
        name if name in SAMPLE else pytest.param(name, marks=pytest.mark.nightly)
        for name in shipped()
    ],
)
def test_every_mutant_of_a_shipped_pipeline_is_killed_by_both_oracles(name: str) -> None:
    result = stepweave("check", name, "--mutate", "--json")
    assert result.exit_code == 0, result.output
    (found,) = objects(result)
    assert found["config"] == name
    assert found["ok"]
    assert found["disagreements"] == found["errors"] == []
    classes = found["classes"]
    assert list(classes) == ["wait", "slot", "lease", "carry", "phase", "access"]
    graph = name in GRAPHS
    for kind, tally in classes.items():
        assert tally["killed"] == tally["total"], kind
        assert tally["total"] > 0 or kind == "lease" or graph, kind
        assert tally["caught"] == tally["undeclared"], kind
    assert classes["wait"]["equivalent"] == classes["slot"]["equivalent"] == 0
    assert classes["access"]["undeclared"] > (0 if graph else 30)
    assert (classes["lease"]["total"] > 0) == bool(graph and name != "abstract_decode")


def test_people_read_a_table_of_mutants(tmp_path: Path) -> None:
    result = stepweave("check", written(tmp_path, SOUND), "--mutate")
    assert result.exit_code == 0, result.output
    first, head, *rows = result.stdout.splitlines()
    killed = first.split(": ")[1]
    assert head.split() == ["class", "killed", "total", "equivalent", "refused"]
    assert [row.split()[0] for row in rows[:7]] == [
        *("wait", "slot", "lease", "carry", "phase", "access", "all")
    ]
    counts = [[int(cell) for cell in row.split()[1:]] for row in rows[:7]]
    assert [sum(column) for column in zip(*counts[:6], strict=True)] == counts[6]
    assert killed == f"{counts[6][0]} of {counts[6][1]} mutants killed by verifier and explorer"
    assert rows[7].startswith("  undeclared accesses seen by checking mode: ")


def test_a_mutant_that_survives_is_shown_and_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepweave.testing.exploring import campaign as explore_mutants

    monkeypatch.setattr(explore_mutants, "by_explorer", lambda *_: "")
    path = written(tmp_path, SOUND)
    result = stepweave("check", path, "--mutate")
    assert result.exit_code == 1
    assert "SURVIVED" in result.stdout
    assert "prepare.host waits for prepare.device (+1): deleted" in result.stdout
    assert "explorer  no objection" in result.stdout
    (found,) = objects(stepweave("check", path, "--mutate", "--json"))
    assert not found["ok"]
    assert found["disagreements"][0]["class"] == "wait"


def test_a_config_without_a_plan_has_no_mutants(tmp_path: Path) -> None:
    result = stepweave("check", written(tmp_path, DEADLOCK), "--mutate", "--json")
    assert result.exit_code == 1
    (found,) = objects(result)
    assert not found["ok"]
    assert found["errors"][0]["code"] == "SW-DEADLOCK"
    assert stepweave("check", written(tmp_path, DEADLOCK), "--mutate").exit_code == 1


def test_hints_name_the_measured_costs_of_their_model_and_given_costs_do_not() -> None:
    def advice(*options: str) -> bool:
        return "--costs embedded gives durations" in " ".join(
            stepweave("check", *options).stdout.split()
        )

    assert advice("quickstart")
    assert not advice("quickstart", "--costs", "embedded")
    assert not advice("quickstart", "--set", "costs.forward.device=4000")
    assert not advice("abstract_decode")
    assert advice("async")
    assert not advice("async", "--set", "model.name=somewhere/else")


def test_an_error_of_the_graph_names_the_file_and_line_of_its_node(tmp_path: Path) -> None:
    """The same line of the extended file has another node."""
    (tmp_path / "mine.yaml").write_text("extends: async\n\nnodes:\n  forward: {stream: compute}\n")
    path = tmp_path / "it.yaml"
    path.write_text("extends: mine.yaml\nnodes:\n\n  sample: {reads: {logit: logits}}\n")
    result = CliRunner().invoke(app, ["check", str(path), "--set", "nodes.sample.host_cost_us=3"])
    assert f"{path}:4:3: node 'sample' of kind 'sample' reads no 'logit'" in result.stderr
    path.write_text("extends: mine.yaml\nnodes:\n\n  commit: {stream: copy}\n")
    result = CliRunner().invoke(app, ["check", str(path)])
    assert f"{path}:4:3: node 'commit' of kind 'commit' runs on the host only" in result.stderr


def test_check_says_of_a_model_in_stages_how_long_each_waits_and_what_would_help() -> None:
    def said(*options: str) -> str:
        done = stepweave("check", "async", "--pp", "2", *options)
        assert done.exit_code == 0, done.output
        return " ".join(done.stdout.split())

    assert "stage 1 takes the longest, and tokens are back in time for it" in said()
    few = said("--set", "depth=1", "--set", "costs.forward.device=4000")
    assert "of each step they wait for 54% at 0, 52% at 1; tokens are back after 4,540 µs" in few
    assert "`depth: 3` would hide their way" in few
    twice = stepweave("check", "async", "--pp", "2", "--set", "model.parallel.pipeline=3")
    assert twice.exit_code == 2
    assert "--pp: and --set model.parallel.pipeline: give one of them" in twice.stderr


@pytest.mark.parametrize("verb", ["run", "trace", "profile", "bench offline", "serve"])
def test_a_model_is_named_once(verb: str) -> None:
    asked = [*verb.split(), "async"]
    if verb in ("run", "trace", "profile"):
        asked += ["--prompt", "Once"]
    twice = stepweave(*asked, "--model", "one", "--set", "model.name=other")
    assert twice.exit_code == 2
    assert "--model: and --set model.name: give one of them" in twice.stderr
    if verb == "serve":
        return  # it listens before it loads
    nowhere = stepweave(*asked, "--model", "/no/where")
    assert nowhere.exit_code == 2
    assert "/no/where" in nowhere.stderr


def test_what_is_wrong_in_a_mode_is_told_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "modes.yaml"
    graph = """\
nodes: [{name: a, host: {writes: [x]}}]
values: {x: {}}
modes:
  one: {skips: [a]}
  two: {skips: [b]}
"""
    file.write_text(graph)
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 1
    assert f"{file}:5:3: modes: mode 'two': skips name the node 'b'" in result.output
    child = tmp_path / "child.yaml"
    child.write_text("extends: modes.yaml\nmodes:\n  two: {skips: [], after: []}\n")
    said = CliRunner().invoke(app, ["check", str(child)]).output
    assert f"{child}:3:3: modes: mode 'two' may follow no mode" in said


def test_stages_of_a_graph_without_a_model_are_told_by_their_option() -> None:
    done = stepweave("check", "abstract_decode", "--pp", "2")
    assert done.exit_code == 2
    lines = done.stderr.splitlines()[1:]
    assert lines
    assert all(line.startswith("  --pp 2: ") for line in lines)


def test_debugging_shows_where_what_is_wrong_was_found() -> None:
    assert "Traceback" not in stepweave("check", "nosuch").stderr
    done = stepweave("--debug", "check", "nosuch")
    assert "Traceback" in done.stderr
    assert done.exit_code == 2
