"""`stepweave simulate --cluster`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stepweave.cli.main import app

FIRST = "SIMULATED, not measured: llama_70b_h200: Llama-3.3-70B on a node of eight H200"
FEW = ["--cluster", "llama_70b_h200", "--set", "load.requests=4", "--set", "load.output=4"]
TWO = [*FEW, "--layout", "8", "--layout", "4x1x2"]


def simulated(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        app(["simulate", *arguments])
    return int(end.value.code or 0)


def test_the_first_line_of_every_output_says_that_it_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for ending in ("txt", "json", "svg"):
        file = tmp_path / f"out.{ending}"
        assert simulated(*TWO, "-o", str(file)) == 0
        printed, written = capsys.readouterr().out, file.read_text(encoding="utf-8")
        assert printed.splitlines()[0] == FIRST
        if ending == "txt":
            assert written == printed
        elif ending == "json":
            assert written.splitlines()[1].startswith('  "notice": "SIMULATED, not measured')
            assert [each["name"] for each in json.loads(written)["layouts"]] == ["8x1x1", "4x1x2"]
        else:
            assert "SIMULATED, not measured" in written.splitlines()[0]
            root = ElementTree.fromstring(written)
            assert FIRST in {each.text for each in root.iter("{http://www.w3.org/2000/svg}text")}


def test_json_has_latencies_shares_and_the_best_layout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulated(*TWO, "--json", "--goal", "latency", "--limit", "ttft_p99=10000") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["simulated"], found["goal"], found["best"]) == (True, "latency", "8x1x1")
    for each in found["layouts"]:
        assert each["completed"] == 4
        assert each["p99_ttft_ms"] > each["mean_itl_ms"] > 0
        assert sum(each["time"].values()) == pytest.approx(1)


def test_a_limit_that_no_layout_keeps_is_told_with_the_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulated(*FEW, "--layout", "8", "--limit", "ttft_p99=1") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "8x1x1 is out of the question: ttft_p99 is" in printed
    assert "no layout serves every request and keeps to the limits" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a config"),
        (["quickstart", "--layout", "8"], "--layout: is for a cluster"),
        (["quickstart", "--goal", "latency"], "--goal: is for a cluster"),
        ([*FEW, "--costs", "llama_8b"], "--costs: is for one plan"),
        ([*FEW, "--tokens-per-step", "2"], "--tokens-per-step: is for one plan"),
        ([*FEW, "--steps", "3"], "--steps: is for one plan"),
        ([*FEW, "--pp", "2"], "--pp: is for one plan"),
        ([*FEW, "--set", "layouts=[]"], "layouts: list a layout at least, or write all"),
        ([*FEW, "--set", "layouts=none"], "--set layouts=none: layouts must be a list"),
        ([*FEW, "--set", "layouts=[{tensr: 2}]"], "layouts[0]: unknown key 'tensr'"),
        ([*FEW, "--trace", "/nowhere.csv"], "--trace /nowhere.csv: /nowhere.csv: cannot be read"),
        ([*FEW, "--layout", "8x"], "--layout 8x: write it as"),
        ([*FEW, "--limit", "tfft_p99=1"], "did you mean 'ttft_p99'"),
        ([*FEW, "--layout", "1x1x8"], "needs 141.1 GB for weights"),
        ([*FEW, "-o", "out.html"], "written as .json, .svg, .txt"),
        (["--cluster", "lama_70b_h200"], "did you mean 'llama_70b_h200'"),
        (["--cluster", "llama_8b_h100", "--trace", "nowhere.csv"], "nowhere.csv: cannot be read"),
        (["asink", "--cluster", "llama_8b_h100"], "did you mean 'async'"),
    ],
)
def test_what_cannot_be_simulated_is_told(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(*arguments) == (1 if "GB" in said else 2)
    assert said in capsys.readouterr().err


def test_a_config_beside_a_cluster_is_its_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated("synchronous", *FEW, "--layout", "8", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pipeline"] == "synchronous"
    assert found["layouts"][0]["time"]["host"] > 0  # nothing of the host is hidden at depth 1


def test_a_trace_in_place_of_the_load_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    rows = "\n".join(f"2024-05-10 00:00:0{n}.5,{20 + n},3" for n in range(3))
    trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n")
    assert simulated("--cluster", "llama_8b_h100", "--trace", str(trace), "--json") == 0
    (layout,) = json.loads(capsys.readouterr().out)["layouts"]
    assert (layout["total_input_tokens"], layout["total_output_tokens"]) == (63, 9)
    assert 2 < layout["duration"] < 2.1


def test_latencies_that_there_are_not_are_not_zero(capsys: pytest.CaptureFixture[str]) -> None:
    one = ("--set", "load.output=1", "--set", "load.spread=0", "--layout", "8")
    assert simulated(*FEW, *one) == 0
    latencies = capsys.readouterr().out.partition("latencies in ms")[2].partition("\n\n")[0]
    assert latencies.count("–") == 3, latencies


def test_a_seed_of_zero_is_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    def drawn(*options: str) -> str:
        assert simulated(*FEW, "--layout", "8", "--json", *options) == 0
        return json.dumps(json.loads(capsys.readouterr().out)["layouts"])

    assert drawn("--set", "load.seed=5", "--seed", "0") == drawn("--seed", "0")
    assert drawn("--set", "load.seed=5") != drawn("--seed", "0")
