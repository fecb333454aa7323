"""`graph whatif`: one change, a sweep, a table of two, and which op matters."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from stepweave.cli.main import app
from stepweave.cli.planned import planned
from stepweave.cli.sweeps import sweep
from stepweave.configs.errors import ConfigError
from stepweave.graph.answers.extensions import extensions, gain_words
from stepweave.graph.planner.compile import compile_plan
from tests.cli.questions import assert_examples_work, data, graph, matches_golden, text, words

FORWARD = ("--sweep", "scale.forward=0.1:1:10")


@pytest.mark.parametrize(
    ("golden", "question"),
    [
        ("whatif_rank.txt", ("abstract_decode",)),
        ("whatif_rank_changed.txt", ("drafter_stream", "--set", "depth=1", "--rank")),
        ("whatif_scale.txt", ("abstract_decode", "--scale", "forward=0.3")),
        ("whatif_slots.txt", ("drafter_stream", "--slots", "sampled=2")),
        ("whatif_sweep.txt", ("abstract_decode", *FORWARD)),
        (
            "whatif_grid.txt",
            ("quickstart", "--sweep", "depth=1,2", "--sweep", "cost.forward.device=100,1000"),
        ),
    ],
)
def test_the_answer_reads_as_it_did(golden: str, question: tuple[str, ...]) -> None:
    matches_golden(golden, text("whatif", *question))


def test_a_node_scales_all_its_ops_and_costs_come_before_factors() -> None:
    found = data(
        *("whatif", "abstract_decode", "--cost", "forward.device=1000"),
        *("--scale", "forward=2", "--scale", "forward.device=3"),
    )
    assert found["before"]["period_us"] == 4870
    assert found["after"]["period_us"] == 4870 - 4000 + 6000
    assert found["after"]["speedup"] == pytest.approx(4870 / 6870)


def test_nothing_changes_is_said() -> None:
    assert text("whatif", "async", "--scale", "forward=1").startswith("nothing changes")


def test_the_plan_is_derived_anew_unless_it_is_kept() -> None:
    """Where a launch takes long, another order of the driver keeps it off the slowest cycle."""
    change = ("whatif", "drafter_stream", "--cost", "forward.host=500")
    anew, kept = data(*change), data(*change, "--keep-plan")
    assert (anew["after"]["period_us"], kept["after"]["period_us"]) == (570, 820)
    assert kept["after"]["waits"] == kept["before"]["waits"]
    assert kept["after"]["slots"] == kept["before"]["slots"]


@pytest.mark.parametrize("change", [("--set", "depth=3"), ("--slots", "staging=3")])
def test_a_kept_plan_takes_no_other_plan(change: tuple[str, str]) -> None:
    done = graph("whatif", "quickstart", "--keep-plan", *change)
    assert done.exit_code == 2
    assert "only costs can be changed" in done.stderr


def test_slots_that_a_config_pins_stay_pinned() -> None:
    pinned = ("whatif", "async", "--set", "slots.staging=3")
    found = data(*pinned, "--cost", "forward.device=500")["after"]
    assert found["slots"]["staging"] == 3
    found = data("whatif", "async", "--slots", "staging=1")["after"]
    assert found["slots"]["staging"] == 1


def test_every_op_has_a_sensitivity() -> None:
    found = data("whatif", "abstract_decode")
    assert len(found["ops"]) == 15
    first = found["ops"][0]
    assert (first["op"], first["faster"], first["until_us"]) == ("forward.device", 1.0, 2765)


def test_a_sweep_is_every_value_and_bends_where_the_ranking_says() -> None:
    found = data("whatif", "abstract_decode", *FORWARD)
    periods = {each["values"][0]: each["period_us"] for each in found["sweep"]}
    assert list(periods) == [f"{n / 10:g}" for n in range(1, 11)]
    for factor, period in periods.items():
        assert period == pytest.approx(max(2105, 4870 - 4000 * (1 - float(factor))))
    assert [e["bound_by"] for e in found["sweep"]].index("compute") == 3


def test_depth_slots_costs_and_settings_can_be_swept() -> None:
    for key, values in (
        ("depth", "1,2"),
        ("slots.staging", "1,2"),
        ("cost.forward.device", "10,1000"),
        ("costs.forward.device", "10,1000"),
        ("executor", "serial,threads"),
    ):
        found = data("whatif", "async", "--sweep", f"{key}={values}")
        assert [each["values"][0] for each in found["sweep"]] == values.split(",")
    periods = [e["period_us"] for e in data("whatif", "async", "--sweep", "depth=1,2")["sweep"]]
    assert periods == [440, 300]


def test_the_batch_size_of_a_costs_file_can_be_swept() -> None:
    found = data("whatif", "async_eagle", "--costs", "llama_8b", "--sweep", "rows=1,64,512")
    periods = [each["period_us"] for each in found["sweep"]]
    assert periods == sorted(periods)
    assert periods[0] < periods[-1]


def test_what_the_planner_refuses_is_a_row_and_not_the_end(tmp_path: Path) -> None:
    config = tmp_path / "tight.yaml"
    config.write_text(
        "order: keep\nvalues:\n  x: {place: pinned}\nnodes:\n"
        "  - name: read\n    host: {reads: [x@-1], cost_us: 5}\n"
        "    actor: other\n"
        "  - name: write\n    host: {writes: [x], cost_us: 5}\n"
        "  - name: again\n    host: {reads: [x@-1], cost_us: 5}\n"
    )
    found = data("whatif", config, "--sweep", "slots.x=1,2")["sweep"]
    assert found[0] == {"values": ["1"], "refused": "SW-DEADLOCK"}
    assert found[1]["period_us"] == 10
    assert "refused" in text("whatif", config, "--sweep", "slots.x=1,2")


def test_two_sweeps_make_a_table_of_all_pairs() -> None:
    question = ("quickstart", "--sweep", "depth=1,2", "--sweep", "cost.forward.device=100,1000")
    found = data("whatif", *question)
    assert found["keys"] == ["depth", "cost.forward.device"]
    assert {tuple(e["values"]): e["period_us"] for e in found["sweep"]} == {
        ("1", "100"): 640,
        ("1", "1000"): 1540,
        ("2", "100"): 500,
        ("2", "1000"): 1400,
    }


def test_a_table_that_is_too_wide_is_printed_as_rows() -> None:
    question = ("async", "--sweep", "depth=1,2", "--sweep", "cost.forward.device=100:2000:12")
    lines = text("whatif", *question).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].split() == [
        *("depth", "cost.forward.device", "µs", "a", "step", "speed-up", "waits", "bound", "by")
    ]
    assert len([line for line in lines if "×" in line]) == 24


def test_a_sweep_is_written_as_svg_csv_and_json(tmp_path: Path) -> None:
    for name in ("sweep.svg", "sweep.csv", "sweep.json"):
        words("whatif", "abstract_decode", *FORWARD, "-o", tmp_path / name)
    drawing = ElementTree.parse(tmp_path / "sweep.svg").getroot()
    assert drawing.get("class") == "view plot"
    rows = list(csv.DictReader((tmp_path / "sweep.csv").read_text().splitlines()))
    assert [row["scale.forward"] for row in rows] == [f"{n / 10:g}" for n in range(1, 11)]
    assert (rows[0]["step_us"], rows[0]["waits"]) == ("2105.0", "2")
    assert json.loads((tmp_path / "sweep.json").read_text())["keys"] == ["scale.forward"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--scale", "forwrd=2"), "did you mean 'forward'"),
        (("--cost", "forward.devce=2"), "did you mean 'forward.device'"),
        (("--slots", "stagin=2"), "did you mean 'staging'"),
        (("--slots", "batch=2"), "value 'batch' is fresh and has no slots"),
        (("--set", "depht=2"), "did you mean 'depth'"),
        (("--sweep", "depht=1,2"), "--sweep depht=1: unknown key 'depht' (did you mean 'depth'?)"),
        (("--sweep", "depth=1,0"), "--sweep depth=0: "),
        (("--sweep", "scale.forwrd=1,2"), "did you mean 'forward'"),
        (("--sweep", "forward=1,2"), "did you mean 'scale.forward'?"),
        (("--sweep", "bitmask.host=1,2"), "did you mean 'scale.bitmask.host'?"),
        (("--sweep", "staging=1,2"), "did you mean 'slots.staging'?"),
        (("--scale", "forward=fast"), "--scale forward=fast: 'fast' is not a number from 0 on"),
        (("--scale", "forward=-1"), "not a number from 0 on"),
        (("--scale", "forward=nan"), "not a number from 0 on"),
        (("--slots", "staging=1.5"), "not a whole number from 1 on"),
        (("--slots", "staging=two"), "'two' is not a whole number from 1 on"),
        (("--slots", "staging=-1"), "'-1' is not a whole number from 1 on"),
        (("--cost", "forward.device"), "write it as --cost KEY=VALUE"),
        (("--sweep", "depth"), "write it as KEY=A,B,C or KEY=FROM:TO:STEPS"),
        (("--sweep", "rows=1,2"), "--sweep rows=1: is the batch size at which --costs is read"),
        (
            ("--rows", "8"),
            "--rows: is the batch size at which --costs is read: give --costs as well",
        ),
        (("-o", "x.svg"), "add --sweep KEY=VALUES"),
        (("--sweep", "depth=1,2", "-o", "x.pdf"), "written as .svg, .csv or .json"),
        (("--sweep", "depth=1,2", "-o", "no/such/x.svg"), "there is no directory"),
        (("--sweep", "depth=1", "--sweep", "depth=2", "--sweep", "depth=3"), "two sweeps"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: tuple[str, ...], said: str) -> None:
    done = graph("whatif", "quickstart", *arguments)
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("k=1,2,3", ("1", "2", "3")),
        ("k=0.5:2:4", ("0.5", "1", "1.5", "2")),
        ("k=1:3:3", ("1", "2", "3")),
        ("a.b = x, y ,x", ("x", "y")),
    ],
)
def test_values_are_listed_or_spaced(written: str, values: tuple[str, ...]) -> None:
    assert sweep(written).values == values


@pytest.mark.parametrize("written", ["k=1:2", "k=1:2:1", "k=a:b:3", "k=1:2:3:4", "k=,", "=1", "k="])
def test_what_is_no_sweep_is_refused(written: str) -> None:
    with pytest.raises(ConfigError):
        sweep(written)


def test_the_examples_of_the_help_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_examples_work("whatif", tmp_path, monkeypatch)
    assert (tmp_path / "sweep.svg").exists()


def printed(*words: str) -> str:
    result = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_what_rates_gain_is_said() -> None:
    said = " ".join(printed("graph", "whatif", "seldom_statistics").split())
    assert "rates: 2.15× the steps per second of a plan in which each node runs once a step" in said
    assert "(4,180 µs a step)" in said


@pytest.mark.parametrize(
    ("name", "gain", "without"),
    [("kv_swap", "1.80", 1800), ("offload_prefetch", "1.75", 1750), ("two_batches", "2.00", 2000)],
)
def test_what_classes_of_users_gain_is_predicted_and_simulated(
    name: str, gain: str, without: int
) -> None:
    claim = f"{gain}× the steps per second of a plan in which all users of a key are of one class"
    said = " ".join(printed("graph", "whatif", name).split())
    assert f"keys: {claim} ({without:,} µs a step)" in said
    said = " ".join(printed("simulate", name).split())
    assert f"keys {claim} ({without:,} µs a step, simulated)" in said
    [found] = json.loads(printed("graph", "whatif", name, "--json"))["gains"]
    assert found == {"name": "keys", "without_us": without}
    [measured] = json.loads(printed("simulate", name, "--json"))["gains"]
    assert measured["without_us"] == pytest.approx(without, rel=0.01)


def test_where_keys_gain_nothing_it_is_said_that_this_is_a_matter_of_costs() -> None:
    graph = planned("kv_swap").graph
    copies = [op for op, vertex in graph.vertices.items() if vertex.op.classes]
    for us, end in ((100.0, "step)"), (0.0, "step): with these costs there is room for all of it")):
        plan = compile_plan(graph, costs=dict.fromkeys(copies, us))
        [said] = (gain_words(plan, each) for each in extensions(plan))
        assert said.removesuffix(" there, too").endswith(end)
        assert ("1.00×" in said) == (us == 0)


def test_what_plans_beside_the_usual_one_gain_is_said_with_what_a_switch_costs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "deeper.yaml"
    path.write_text("extends: async_grammar\ndepth: 1\nplans: {deep: {depth: 3}}\n")
    usual, deep = (planned("async_grammar", {"depth": depth}) for depth in ("1", "3"))
    gain = usual.period_us / deep.period_us
    assert gain > 1.1
    said = " ".join(printed("graph", "whatif", str(path)).split())
    claim = f"plans: {gain:.2f}× the steps per second of the plan that a run begins with, by deep"
    assert f"{claim} ({deep.period_us:,.6g} µs a step) a switch between plans makes steps" in said
    assert "plans:" not in printed("graph", "whatif", "async")


def test_of_a_plan_without_drafts_is_said_how_many_kept_drafts_it_is_worth() -> None:
    asked = ("--costs", "llama_8b", "--rows", "128")
    drafts, bare = (planned(name, costs="llama_8b", rows=128) for name in ("async_eagle", "async"))
    said = " ".join(printed("graph", "whatif", "drafts_by_load", *asked).split())
    claim = f"without drafts from 112 requests on: {bare.step_us:,.6g} µs a step"
    gain = drafts.step_us / bare.step_us
    assert f"{claim}, {gain:.2f}× the steps per second" in said
    assert f"gives a row fewer than {gain:.2f}" in said
    assert gain > 2
    found = json.loads(printed("check", "drafts_by_load", "--json", *asked))["plans"]
    assert found == {"usual": drafts.step_us, "no_drafts": bare.step_us}


def test_what_modes_gain_is_said_with_all_their_periods() -> None:
    said = " ".join(printed("graph", "whatif", "prefill_decode").split())
    assert "modes: guaranteed 5,685 µs a step, 1.42× the steps per second" in said
    assert "decode 4,385, prefill 5,685" in said
    found = json.loads(printed("check", "prefill_decode", "--json"))
    assert (found["modes"]["worst_us"], found["modes"]["word"]) == (5685.0, ["prefill"])
    assert "modes" not in json.loads(printed("check", "abstract_decode", "--json"))


def test_simulate_takes_the_periods_of_rates_and_modes() -> None:
    assert "1,945 µs a step (predicted 1,945)" in printed("simulate", "seldom_statistics")
    said = printed("simulate", "prefill_decode")
    assert "decode: 4,385 µs a step (predicted 4,385)" in said
    assert "prefill: 5,685 µs a step (predicted 5,685)" in said


def test_why_takes_a_node_with_a_rate_or_one_of_its_firings() -> None:
    every = printed("graph", "why", "draft_passes", "sample.device", "draft.device")
    one = printed("graph", "why", "draft_passes", "sample.device", "draft#1.device")
    assert "draft#0.device" in every
    assert "draft#2.device" in every
    assert "draft#1.device" in one
    assert "draft#2.device(" not in one


def test_a_range_has_the_ends_that_were_written() -> None:
    assert sweep("rows=8:1048576:3").values == ("8", "524292", "1048576")
    costs = sweep("cost.forward.device=1234567:1234570:4").values
    assert costs == ("1234567", "1234568", "1234569", "1234570")


def test_a_key_is_swept_once() -> None:
    result = graph("whatif", "quickstart", "--sweep", "depth=1", "--sweep", "depth=2")
    assert result.exit_code == 2
    assert "depth is swept already" in result.stderr


def test_where_nodes_have_rates_a_step_is_told_beside_the_cycle(tmp_path: Path) -> None:
    asked = ("whatif", "seldom_statistics", "--sweep", "scale.forward=1,2")
    found = data(*asked)
    assert [point["period_us"] for point in found["sweep"]] == [
        pytest.approx(4 * point["step_us"]) for point in found["sweep"]
    ]
    words(*asked, "-o", tmp_path / "sweep.csv")
    rows = list(csv.DictReader((tmp_path / "sweep.csv").read_text().splitlines()))
    assert [float(row["step_us"]) for row in rows] == [p["step_us"] for p in found["sweep"]]


def test_ops_that_take_no_time_are_not_worth_making_faster(tmp_path: Path) -> None:
    file = tmp_path / "zero.yaml"
    file.write_text(
        "version: 1\nnodes:\n- {name: a, host: {cost_us: 100}}\n- {name: b, host: {cost_us: 0}}\n"
    )
    found = text("whatif", file)
    paying = found.partition("making these faster")[2].partition("\n\n")[0]
    assert "a.host" in paying
    assert "b.host" not in paying
