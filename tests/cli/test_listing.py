"""What there is to choose from: the list, the version, and what a shell completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stepweave
from stepweave.cli.main import app
from stepweave.configs.costs import assumed_costs
from stepweave.configs.errors import ConfigError
from stepweave.configs.keys import keys
from stepweave.configs.load import load_config, shipped
from stepweave.configs.shipped_costs import shipped_costs
from stepweave.nodes.registry import known_kinds
from stepweave.policies.registry import DECISIONS, known
from tests.installed import ROOT, installed

XGRAMMAR = {"nodes.bitmask.backend=xgrammar"}
LOOK_UP = {"nodes.draft.launch_latency_us=", "nodes.draft.longest="}
SCHEDULER = [key.name for key in keys() if key.name.startswith("scheduler")]


def listed(*arguments: str) -> dict[str, dict[str, str]]:
    result = CliRunner().invoke(app, ["list", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, dict[str, str]] = json.loads(result.stdout)
    return found


def test_everything_that_can_be_named_is_listed_with_a_line() -> None:
    found = listed()
    assert list(found) == ["pipelines", "kinds", "policies", "choices", "costs"]
    assert tuple(found["pipelines"]) == shipped()
    assert tuple(found["kinds"]) == known_kinds()
    assert tuple(found["costs"]) == shipped_costs()
    assert [name.split(": ") for name in found["policies"]] == [
        [decision, name] for decision in DECISIONS for name in known(decision)
    ]
    assert "policies.admission=eager|just_in_time" in found["choices"]
    assert "policies.acceptance=coupled|rejection|block|typical" in found["choices"]
    assert "nodes.bitmask.backend=auto|xgrammar|llguidance" in found["choices"]
    for section in found.values():
        assert all(line.strip() and "\n" not in line for line in section.values())
    basis = {name: line.partition(": ")[0] for name, line in found["costs"].items()}
    assert {name for name, word in basis.items() if word == "assumed"} == set(assumed_costs())
    assert basis["embedded"] == "measured"


def test_one_section_is_listed_alone_and_another_name_is_refused() -> None:
    assert list(listed("kinds")) == ["kinds"]
    result = CliRunner().invoke(app, ["list", "kind"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "did you mean 'kinds'?" in result.stderr


def test_the_list_fits_the_terminal() -> None:
    shown = CliRunner().invoke(app, ["list"], env={"COLUMNS": "80"}).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "quickstart" in shown


def test_every_choice_that_is_listed_is_one(tmp_path: Path) -> None:
    for key in keys():
        for choice in key.choices:
            if key.name.startswith("nodes.") or choice in ("cuda", "layer"):
                continue  # which need settings beside them
            load_config("async", {key.name: choice})


def test_the_version_is_that_of_the_package() -> None:
    assert stepweave.__version__ == version("stepweave")
    said = CliRunner().invoke(app, ["--version"])
    assert (said.exit_code, said.stdout) == (0, f"stepweave {stepweave.__version__}\n")
    done = subprocess.run(
        [sys.executable, "-m", "stepweave", "--version"], capture_output=True, text=True, cwd="/"
    )
    assert (done.returncode, done.stdout) == (0, said.stdout)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert declared["name"] == "stepweave"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("stepweave run quick", {"quickstart"}),
        ("stepweave check quickstart as", {name for name in shipped() if name.startswith("as")}),
        ("stepweave graph diff sync", {"synchronous"}),
        ("stepweave check quickstart --set sched", {f"{name}=" for name in SCHEDULER}),
        ("stepweave check quickstart --set scheduler.max_r", {"scheduler.max_rows="}),
        ("stepweave check quickstart --set order=s", {"order=search"}),
        ("stepweave run quickstart --set nodes.draft.t", {"nodes.draft.tokens="}),
        ("stepweave check quickstart --set nodes.draft.m", {"nodes.draft.model="}),
        ("stepweave graph show async_ngram --set nodes.draft.m", set()),
        ("stepweave graph show async_ngram --set nodes.draft.l", LOOK_UP),
        (
            "stepweave check nowhere --set nodes.bitmask.backend=x",
            {"nodes.bitmask.backend=xgrammar"},
        ),
        ("stepweave check quickstart --costs llama_", {"llama_1b", "llama_70b", "llama_8b"}),
        ("stepweave graph why quickstart d2h", {"d2h_copy", "d2h_copy.host", "d2h_copy.device"}),
        ("stepweave graph why quickstart draft d2h_copy.h", {"d2h_copy.host"}),
        ("stepweave graph why nowhere d", set()),
        ("stepweave list p", {"pipelines", "policies"}),
        ("stepweave check mine", {"mine.yaml"}),
    ],
)
def test_a_shell_is_offered_what_may_come_next(
    typed: str, offered: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("extends: async")
    (tmp_path / "mine.txt").write_text("")
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    asked["_STEPWEAVE_COMPLETE"] = "complete_bash"
    result = CliRunner().invoke(app, [], prog_name="stepweave", env=asked)
    assert set(result.stdout.split()) == offered


def test_a_package_that_is_broken_does_not_hide_the_others(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "broken"\nversion = "1"\n'
        '[project.entry-points."stepweave.nodes"]\nbroken = "broken_kind:KIND"\n'
        '[project.entry-points."stepweave.policies"]\n"acceptance.broken" = "broken_kind:Rule"\n'
        '[tool.setuptools]\npy-modules = ["broken_kind"]\n'
    )
    (project / "broken_kind.py").write_text("import nothing_of_that_name\n")
    site = tmp_path / "site"
    site.mkdir()
    with installed(project, site):
        kinds, policies = listed("kinds")["kinds"], listed("policies")["policies"]
        choices = listed("choices")["choices"]
        with pytest.raises(ConfigError, match=r"'acceptance\.broken' of package 'broken'"):
            load_config("async", {"policies.acceptance": "broken"})
        load_config("async", {"policies.acceptance": "rejection"})
    for broken in (kinds["broken"], policies["acceptance: broken"]):
        assert "cannot be used" in broken
        assert os.linesep not in broken
    assert kinds["forward"].startswith("run the target model")
    assert policies["acceptance: coupled"].startswith("With the same seed")
    assert "policies.acceptance=coupled|rejection|block|typical" in choices
