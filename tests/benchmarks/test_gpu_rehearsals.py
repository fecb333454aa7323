"""Every GPU benchmark rehearsed on the CPU: its main path, its checks, and what it writes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks.gpu import all as every
from benchmarks.gpu import (
    cube,
    device_time,
    gap,
    interpreter,
    kit,
    profile,
    roofline,
    session,
    smoke,
    ttft,
)
from benchmarks.gpu.jobs import Job, in_turn
from benchmarks.gpu.networks import SIZES, TOY, random_model, twin
from benchmarks.gpu.workbench import with_launches
from benchmarks.interpreter import decode_step
from stepweave.configs.costs import load_costs
from stepweave.executors.report import OpEvent
from tests.memory import settle

SCRIPTS: dict[str, ModuleType] = {
    "cube": cube,
    "gap": gap,
    "interpreter": interpreter,
    "device_time": device_time,
    "profile": profile,
    "roofline": roofline,
    "smoke": smoke,
    "ttft": ttft,
}


@pytest.fixture(scope="module", autouse=True)
def _settled() -> None:
    """Scripts collect after each of their parts, which would look at all that tests have left."""
    settle()


@pytest.fixture
def rehearse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Run a script's `main`; what it wrote."""
    monkeypatch.setattr(session, "RESULTS", tmp_path / "results")
    threads = torch.get_num_threads()

    def run(name: str, *more: str) -> dict[str, Any]:
        toy = next((job.toy for job in every.JOBS if job.name == name), ())
        path = tmp_path / f"{name}.json"
        try:
            SCRIPTS[name].main(["--toy", *toy, "--json", str(path), *more])
        finally:
            torch.set_num_threads(threads)
        assert not (tmp_path / "results").exists()
        held: dict[str, Any] = json.loads(path.read_text())
        assert held["rehearsal"] is True
        assert held["benchmark"] == name
        assert held["machine"]["device"].startswith("cpu")
        assert {"date", "torch", "transformers", "xgrammar"} <= held["machine"].keys()
        assert held["settings"]["toy"] is True
        return held

    return run


def positive(spread: dict[str, float]) -> bool:
    return 0 < spread["low"] <= spread["median"] <= spread["high"]


def test_the_cube_has_eight_corners_with_equal_tokens_and_counts(
    rehearse: Callable[..., dict[str, Any]],
) -> None:
    held = rehearse("cube", "--concurrency", "1", "--requests", "2")
    (part,) = held["parts"].values()
    corners = part["corners"]
    assert len(corners) == 8
    assert part["tokens_equal"] is part["counts_equal"] is True
    for name, corner in corners.items():
        assert positive(corner["tpot_ms"])
        assert positive(corner["seconds"])
        assert (corner["accepted"] > 0) == ("spec" in name)
        assert corner["drafted"] >= corner["accepted"]
        assert (corner["tokens_per_step"] > 1.5) == ("spec" in name)
        other = corners[name.replace("async", "sync")]
        assert (corner["drafted"], corner["accepted"]) == (other["drafted"], other["accepted"])
        assert corner["graphs"]["segments"]
    assert all(positive(ratio) for ratio in part["ratios"].values())
    assert "synthetic" in held["acceptance"]


def test_the_roofline_compares_six_sides_of_equal_tokens(
    rehearse: Callable[..., dict[str, Any]],
) -> None:
    held = rehearse("roofline")
    assert held["copy_bytes_per_s"] > 0
    (part,) = held["parts"].values()
    assert part["floor_ms"] > 0
    sides = {**part["sides"], **part["failed"]}
    assert {"ours, eager", "ours, graphs", "generate", "generate, static, compiled"} < sides.keys()
    assert "generate_batch" in sides
    for name, side in part["sides"].items():
        assert positive(side["step_ms"]), name
        assert positive(side["share_of_floor"]), name
        assert side["tokens"]["equal_within_tolerance"], name
        assert side["tokens"]["rows"] == part["batch"]


def test_the_gap_is_measured_with_and_without_jitter_and_nothing_waits(
    rehearse: Callable[..., dict[str, Any]],
) -> None:
    held = rehearse("gap", "--rows", "1")
    for name in ("quiet", "jitter"):
        assert 0 < held[name]["gap_share"]["median"] < 1
        assert positive(held[name]["period_us"])
        assert positive(held[name]["predicted_over_measured"])
        assert held[name]["steps"]["median"] > 2
        assert held[name]["graphs"]["replayed_share"] > 0.3
    assert held["waiting_calls"]["count"] == 0
    assert held["tokens_equal"] is True


def test_kernels_are_those_of_the_steps_by_which_two_runs_differ(
    rehearse: Callable[..., dict[str, Any]],
) -> None:
    arguments = ("--batch", "2", "--tokens", "8", "--rounds", "1", "--no-compile")
    (part,) = rehearse("device_time", *arguments)["parts"].values()
    assert isfinite(part["step_us"])  # two runs this short differ by less than a busy machine
    assert part["floor_us"] > 0
    assert part["busy_us"] + part["between_us"] == pytest.approx(part["step_us"])
    assert part["graphs"]["replayed_share"] > 0.3

    short = device_time.Seen(Counter(first=3, each=4), Counter(first=90, each=8), steps=5)
    long = device_time.Seen(Counter(first=3, each=12, late=2), Counter(first=90, each=28), steps=7)
    assert device_time.per_step(short, long) == {
        "each": {"launches": 4, "us": 10},
        "first": {"launches": 0, "us": 0},
        "late": {"launches": 1, "us": 0},
    }


def test_the_profile_is_a_costs_file_that_loads(
    rehearse: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    held = rehearse("profile", "--costs", str(tmp_path))
    (file,) = held["files"]
    costs = load_costs(tmp_path / file)
    (check,) = held["checks"]["toy"].values()
    assert check["graphs"]["replayed_share"] > 0.3
    assert all("→" not in segment for segment in check["graphs"]["segments"])
    assert costs.file.basis == "measured"
    assert "rehearsal" in costs.file.describes
    assert {"forward.device", "steer.device", "bitmask.host", "draft.device"} <= set(costs.file.ops)
    assert costs.file.ops["forward.device"].at(2, 8) > 0
    assert not list(session.RESULTS.glob("*"))


def test_the_interpreter_runs_the_plan_and_a_wait_for_every_edge(
    rehearse: Callable[..., dict[str, Any]],
) -> None:
    held = rehearse("interpreter")
    for part in held["parts"].values():
        assert part["waits"]["plan"] == 2 < part["waits"]["every edge"]
        assert positive(part["us_per_step"]["by hand"])
        assert positive(part["setup_us"])
    assert list(held["parts"]) == ["0", "4"]


def test_time_to_first_token_has_three_sides_at_the_same_arrivals(
    rehearse: Callable[..., dict[str, Any]],
) -> None:
    held = rehearse("ttft")
    assert held["served_per_s"] > 0
    (part,) = held["loads"].values()
    assert list(part) == list(ttft.SIDES)
    assert all(positive(side["mean_us"]) for side in part.values())
    reference = part["synchronous"]["over_synchronous"]
    assert {each["median"] for each in reference.values()} == {1.0}


@pytest.mark.parametrize("name", SCRIPTS)
def test_without_a_gpu_a_script_refuses_and_names_the_rehearsal(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        SCRIPTS[name].main([])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"benchmarks.gpu.{name} measures a GPU" in said
    assert "--toy" in said


def test_a_rehearsal_is_not_written_to_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        interpreter.main(["--toy", "--json", str(session.RESULTS / "gpu_interpreter.json")])
    assert "its numbers mean nothing" in capsys.readouterr().err


def test_all_shares_out_the_time_and_goes_on_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[tuple[list[str], float]] = []

    def run(line: list[str], timeout: float, check: bool) -> Any:
        begun.append((line, timeout))
        failed = "benchmarks.gpu.roofline" in line
        return type("Ended", (), {"returncode": 3 if failed else 0})()

    monkeypatch.setattr(subprocess, "run", run)
    assert every.main(["--minutes", "28", "--out", str(tmp_path / "out")]) == 1
    assert [line[2] for line, _ in begun] == [f"benchmarks.gpu.{job.name}" for job in every.JOBS]
    assert len(begun) == len(every.JOBS)
    minutes = [float(line[line.index("--minutes") + 1]) for line, _ in begun]
    assert minutes[0] == pytest.approx(28 * 0.27, abs=0.1)
    assert minutes[-1] > minutes[0]  # nobody used any: the last has all that is left
    assert all(timeout <= 28 * 60 for _, timeout in begun)
    assert "--toy" not in begun[0][0]
    assert "roofline: failed with 3" in capsys.readouterr().out


def test_the_smoke_says_of_each_part_whether_it_is_right(
    rehearse: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = rehearse("smoke", "--pipelines", "async_eagle", "--tokens", "6")["parts"]
    assert list(parts) == [f"{kind}, async_eagle" for kind in ("kernels", "8 bits", "captures")]
    assert all(part["right"] for part in parts.values()), parts
    assert parts["captures, async_eagle"]["graphs"]["in_pieces"] > 0
    counts = parts["kernels, async_eagle"]["accepted"]
    assert counts["kernels"] == counts["plain torch"] > 0

    turns = iter([[[None, [5, 6], 4, 3]], [[None, [5, 6], 4, 2]]])
    monkeypatch.setattr(smoke, "loaded", lambda *_, **__: nullcontext())
    monkeypatch.setattr(smoke, "counted", lambda *_: next(turns))
    for kind in ("in_8_bits", "captured"):
        monkeypatch.setattr(smoke, kind, lambda *_: {"right": True})
    parts = rehearse("smoke", "--pipelines", "async_eagle")["parts"]
    wrong = parts["kernels, async_eagle"]
    assert not wrong["right"], "a draft more or less is seen"
    assert all(wrong["tokens_equal"])


@pytest.mark.parametrize("call", ["right", "fast", "cube"])
def test_each_call_of_the_kit_ends_within_its_minutes(
    call: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[tuple[list[str], float]] = []

    def run(line: list[str], timeout: float, **_: Any) -> Any:
        begun.append((line, timeout))
        return type("Ended", (), {"returncode": 0})()

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert kit.main([call, "--out", str(tmp_path)]) == 0
    jobs = kit.calls("8b")[call]
    assert len(begun) == len(jobs)
    assert sum(job.share for job in jobs) == pytest.approx(1.0)
    assert all(timeout <= 9 * 60 for _, timeout in begun)
    for job, (line, _) in zip(jobs, begun, strict=True):
        module = SCRIPTS.get(job.name)
        if module is not None:  # what it is told is understood
            rest = line[line.index("-m") + 2 :]
            assert str(tmp_path / f"gpu_{job.name}.json") in rest
            monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
            session.begin(job.name, "", rest, module.options)
        else:
            files = [each for each in line if each.startswith("tests/")]
            assert files
            assert all(Path(__file__).parents[2].joinpath(each).exists() for each in files)


def test_without_a_sanitizer_that_part_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    names = [job.name for job in kit.calls("8b")["right"]]
    assert names == ["kernels", "smoke", "streams"]


def test_what_a_command_prints_is_kept_though_it_fails_or_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = ("/bin/sh", "-c")
    jobs = [
        Job("said", 0.5, ("echo so far; exit 3",), command=shell),
        Job("gone", 0.5, command=(str(tmp_path / "no such program"),)),
    ]
    assert in_turn(jobs, 9, tmp_path, toy=False) == 2
    assert (tmp_path / "gpu_said.txt").read_text() == "so far\n"
    said = capsys.readouterr().out
    assert "said: failed with 3" in said
    assert "no such program" in said


def test_a_part_that_a_call_does_not_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kit.main(["fast", "--only", "cube"])
    assert "fast has no part 'cube'; it has roofline, gap" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("call", ["right", "fast", "cube"])
def test_each_call_of_the_kit_is_rehearsed_whole(call: str, tmp_path: Path) -> None:
    assert kit.main([call, "--toy", "--out", str(tmp_path)]) == 0
    assert [each for each in tmp_path.iterdir() if each.suffix == ".json"]


def test_the_sizes_are_those_of_the_models_they_are_named_after() -> None:
    assert SIZES["8b"].weight_bytes() == pytest.approx(15.01e9, rel=1e-3)
    assert SIZES["8b"].cache_bytes() == 131072
    assert SIZES["1b"].weight_bytes() == pytest.approx(2 * 1.236e9, rel=1e-2)
    model = random_model(TOY, torch.device("cpu"), torch.float32)
    counted = sum(p.numel() for name, p in model.named_parameters() if "embed" not in name)
    norms = (2 * TOY.layers + 1) * TOY.hidden
    assert TOY.weight_bytes(item=1) == counted - norms


def test_a_twin_has_the_same_weights_in_the_same_memory() -> None:
    model = random_model(TOY, torch.device("cpu"), torch.float32)
    other = twin(model, TOY)
    ids = torch.arange(1, 9)[None]
    assert torch.equal(model(input_ids=ids).logits, other(input_ids=ids).logits)
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(a.data_ptr() == b.data_ptr() for a, b in pairs)


def test_gaps_are_counted_between_ops_of_steps_that_count() -> None:
    def event(op: str, step: int, start: float, end: float, actor: str = "compute") -> OpEvent:
        return OpEvent(op, step, actor, start, end)

    events = [
        event("a", 0, 0.0, 1.0),
        event("b", 0, 1.5, 2.0),
        event("other", 0, 2.0, 9.0, "copy"),
        event("a", 1, 2.0, 3.0),
        event("a", 4, 9.0, 10.0),
        event("b", 4, 10.25, 11.0),
    ]
    found, whole = gap.gaps(events, {0, 1, 4})
    assert found == [0.5, 0.0, 0.25]
    assert whole == pytest.approx((2.0 - 1.0) + (3.0 - 2.0) + (11.0 - 10.0))
    assert gap.gaps(events, {0})[0] == [0.5]


def test_launching_is_counted_with_the_op_that_launches_unless_the_next_one_waits() -> None:
    plan = decode_step(lambda *inputs: 0)
    assert {wait.target for wait in plan.waits} == {"d2h_copy.device", "commit.host"}
    events = [
        OpEvent("schedule.host", 5, "driver", 0.0, 1.0),
        OpEvent("forward.host", 5, "driver", 2.0, 3.0),
        OpEvent("forward.device", 5, "compute", 3.5, 9.0),
        OpEvent("sample.host", 5, "driver", 4.0, 4.25),
        OpEvent("d2h_copy.host", 5, "driver", 5.0, 6.0),
        OpEvent("commit.host", 4, "driver", 8.0, 9.0),
    ]
    ends = {event.op: event.end_s for event in with_launches(plan, events)}
    assert ends == {
        "schedule.host": 1.0,  # launches nothing
        "forward.host": 4.0,
        "forward.device": 9.0,
        "sample.host": 5.0,
        "d2h_copy.host": 6.0,  # what follows waits
        "commit.host": 9.0,
    }
