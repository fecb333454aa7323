import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from stepweave.cli.main import app
from stepweave.cli.planned import planned

COSTS = """\
version: 1
basis: measured
describes: a test
batch: 2
ops:
  schedule.host: {rows: {1: 100, 4: 400}}
  forward.host: 50
  forward.device: {tokens: {1: 1000, 4: 1300}}
"""
GRAPH = """\
order: keep
values:
  batch: {place: host}
  token: {place: device, slots: 2}
nodes:
  - name: schedule
    host: {writes: [batch], cost_us: 7}
  - name: forward
    stream: compute
    host: {reads: [batch], cost_us: 7}
    device: {reads: [token@-1], writes: [token], cost_us: 7}
"""


def stepweave(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def simulated(*arguments: object) -> dict[str, Any]:
    result = stepweave("simulate", *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "graph.yaml").write_text(GRAPH)
    (tmp_path / "costs.yaml").write_text(COSTS)
    return tmp_path


@pytest.mark.usefixtures("files")
def test_an_abstract_graph_is_simulated_with_costs_at_a_batch_size() -> None:
    found = simulated("graph.yaml", "--costs", "costs.yaml")
    assert found["period_us"] == pytest.approx(1100)  # two rows, the device alone
    assert found["predicted_period_us"] == pytest.approx(1100)
    assert found["host_us"] == pytest.approx(200 + 50)
    assert found["costs"]["rows"] == 2
    assert found["device_gap_us"] == {"compute": pytest.approx(0)}
    assert simulated("graph.yaml", "--costs", "costs.yaml", "--rows", 4)["period_us"] == (
        pytest.approx(1300)
    )
    assert simulated("graph.yaml")["period_us"] == pytest.approx(14), (
        "the hints: the host is busier"
    )


@pytest.mark.usefixtures("files")
def test_tokens_per_second_are_of_all_rows() -> None:
    found = simulated("graph.yaml", "--costs", "costs.yaml", "--tokens-per-step", "2.2")
    assert found["tpot_us"] == pytest.approx(500)
    assert found["tokens_per_second"] == pytest.approx(2 * 2.2 / 1100e-6)
    assert simulated("graph.yaml")["tokens_per_second"] is None


@pytest.mark.usefixtures("files")
def test_the_same_seed_gives_the_same_jitter() -> None:
    def period(*more: str) -> float:
        found: float = simulated("graph.yaml", "--costs", "costs.yaml", *more)["period_us"]
        return found

    jitter = ("--jitter", "0.3", "--seed")
    assert period(*jitter, "4") == period(*jitter, "4")
    assert period(*jitter, "4") != period(*jitter, "5")
    assert period(*jitter, "4") == pytest.approx(period(), rel=0.15)


def test_comparing_with_depth_1_runs_the_same_costs_one_step_at_a_time() -> None:
    costs = ("async_eagle3_grammar", "--costs", "llama_8b", "--rows", "10")
    found = simulated(*costs, "--compare", "depth=1")
    assert found["compared"]["period_us"] == simulated(*costs, "--set", "depth=1")["period_us"]
    ratio = found["compared"]["period_us"] / found["period_us"]
    assert found["speed_ratio"] == pytest.approx(ratio)
    assert ratio > 1.05
    assert found["overlap"] == pytest.approx(1)
    assert found["compared"]["overlap"] < 0.8
    assert {op.split(".")[1] for op in found["critical_path"]} == {"device"}
    assert "schedule.host" in found["compared"]["critical_path"]
    assert sum(found["critical_path"].values()) == pytest.approx(1)


def test_the_serial_executor_overlaps_nothing() -> None:
    found = simulated("synchronous", "--costs", "llama_8b")
    assert found["period_us"] == pytest.approx(found["host_us"] + found["device_us"])
    assert found["overlap"] == pytest.approx(0)


def test_the_serial_executor_is_predicted_to_overlap_nothing() -> None:
    found = simulated("async", "--set", "executor=serial")
    assert found["predicted_period_us"] == pytest.approx(found["host_us"] + found["device_us"])
    assert "(predicted 470)" in stepweave("simulate", "async", "--set", "executor=serial").stdout


def test_the_table_over_all_profiles_tells_times_of_a_step() -> None:
    """Of a graph with rates, whose plan is of a cycle of four steps."""
    for line in simulated("seldom_statistics", "--costs", "all")["profiles"]:
        one = simulated("seldom_statistics", "--costs", line["costs"])
        assert line["period_us"] == pytest.approx(one["period_us"] / 4)
        assert line["serial_us"] == pytest.approx((one["host_us"] + one["device_us"]) / 4)


def test_no_model_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulated("async", "--costs", "llama_8b", "--set", "model.name=/nowhere/at/all")
    assert found["period_us"] > 4000


def test_all_shipped_profiles_make_one_table() -> None:
    result = stepweave("simulate", "async_eagle3_grammar", "--costs", "all")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "ASSUMED costs, not measured ones" in lines[0]
    assert [line.split()[0] for line in lines[2:5]] == ["llama_1b", "llama_70b", "llama_8b"]
    for line in simulated("async_eagle3_grammar", "--costs", "all")["profiles"]:
        assert line["serial_us"] > line["depth_1_us"] > line["period_us"]
        assert line["bound_by"] == "compute"
        assert line["basis"] == "assumed"


@pytest.mark.usefixtures("files")
def test_what_is_printed_says_where_the_costs_come_from() -> None:
    assumed = stepweave("simulate", "async", "--costs", "llama_8b").stdout
    assert "llama_8b (ASSUMED, not measured" in assumed
    assert "not in this pipeline: bitmask.device" in assumed
    assert "├forward " in assumed
    assert "device gap     0 µs a step, on compute" in assumed
    assert "costs: hints, not measured" in stepweave("simulate", "async").stdout


@pytest.mark.usefixtures("files")
def test_each_ending_gives_a_file_of_its_kind(files: Path) -> None:
    for ending in ("html", "json", "svg", "txt"):
        result = stepweave("simulate", "graph.yaml", "-o", f"out.{ending}")
        assert result.exit_code == 0, result.output
    assert (files / "out.html").read_text().lower().startswith("<!doctype html>")
    events = json.loads((files / "out.json").read_text())["traceEvents"]
    assert {"schedule.host", "forward.device"} <= {event["name"].split(" ")[0] for event in events}
    assert "period" in (files / "out.txt").read_text()
    assert (files / "out.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("async", "-o", "out.pdf"), "must be one of .html, .json, .svg, .txt"),
        (("async", "--costs", "llama_9b"), "did you mean 'llama_8b'?"),
        (("async", "--rows", "4"), "--costs is read: give --costs as well"),
        (("async", "--costs", "all", "--compare", "depth=1"), "drop --compare"),
        (("async", "--compare", "depth"), "write it as --compare dotted.key=value"),
        (("async", "--compare", "depht=1"), "--compare depht=1: unknown key"),
        (("asinc",), "did you mean 'async'?"),
        (("async", "-o", "nowhere/out.txt"), "there is no directory"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = stepweave("simulate", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []


# --- the same costs in the other verbs ----------------------------------------------------------


@pytest.mark.usefixtures("files")
def test_check_plans_with_a_costs_file_and_says_so() -> None:
    result = stepweave("check", "graph.yaml", "--costs", "costs.yaml", "--rows", 4)
    assert "period          1,300 µs" in result.stdout
    assert "costs: costs.yaml (measured): a test; at 4 rows, 4 query tokens" in result.stdout
    found = json.loads(stepweave("check", "graph.yaml", "--costs", "costs.yaml", "--json").stdout)
    assert found["period_us"] == pytest.approx(1100)
    assert found["costs"] == ["costs: costs.yaml (measured): a test; at 2 rows, 2 query tokens"]
    assert "costs" not in json.loads(stepweave("check", "graph.yaml", "--json").stdout)


def test_a_setting_on_the_command_line_goes_before_the_costs_file() -> None:
    result = stepweave(
        *("check", "async", "--costs", "llama_8b", "--json", "--set", "costs.forward.device=9000")
    )
    plain = json.loads(stepweave("check", "async", "--costs", "llama_8b", "--json").stdout)
    assert 9000 < json.loads(result.stdout)["period_us"] < 9200
    assert plain["period_us"] < 4500


def test_graph_show_draws_the_plan_with_costs() -> None:
    result = stepweave("graph", "show", "async_eagle3_grammar", "--costs", "llama_8b", "--rows", 32)
    assert result.exit_code == 0
    assert "period  5,988 µs a step" in result.stdout
    assert "ASSUMED" in result.stdout


def test_a_batch_size_without_costs_is_refused_by_check() -> None:
    result = stepweave("check", "async", "--rows", "4")
    assert result.exit_code == 2
    assert "--rows" in result.stderr


@pytest.mark.usefixtures("files")
def test_a_launch_latency_of_the_file_is_in_the_plan(files: Path) -> None:
    (files / "late.yaml").write_text(f"{COSTS}launch_latency_us: {{forward: 20}}\n")
    plain, late = (planned("graph.yaml", costs=f"{name}.yaml") for name in ("costs", "late"))
    assert [node.launch_latency_us for node in plain.graph.nodes] == [None, None]
    assert [node.launch_latency_us for node in late.graph.nodes] == [None, 20]
