"""Code of other packages: what is wrong with it is told with node, kind and package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepweave.cli.main import app
from tests.installed import installed

DECLARED = """\
from stepweave.nodes import NodeKind, Value, op, optional_state


def faulty():
    {fault}


MADE = Value("made", size={size})


@op(writes=MADE)
def make(seen=optional_state("kv", when=faulty)):
    return 1


KIND = NodeKind("mine", "x", host=(make,))
"""
STATEFUL = """\
from stepweave.nodes import NodeKind, State, op, update

SEEN = State("seen", {})


@op
def look(seen=update(SEEN)): ...


KIND = NodeKind("mine", "x", host=(look,))
"""
BROKEN = {
    "import nothing_of_that_name": (
        "node kind 'mine' of package 'theirs': entry point '{}:KIND' cannot be loaded: "
        "ModuleNotFoundError: No module named 'nothing_of_that_name'"
    ),
    "KIND = 5": "must name a NodeKind, not an object of type int",
    "KINDS = 5": "cannot be loaded: AttributeError",
    "raise SystemError('half installed')": "cannot be loaded: SystemError: half installed",
    "raise SystemExit(0)": "cannot be loaded: SystemExit: 0",
    DECLARED.format(fault="exit(0)", size=None): (
        "node 'extra': what its kind 'mine' needs cannot be made: SystemExit: 0"
    ),
    DECLARED.format(fault="1 / 0", size=None): "cannot be made: ZeroDivisionError",
    DECLARED.format(fault="return False", size="lambda: 1 / 0"): "made: ZeroDivisionError",
    DECLARED.format(fault="return False", size="lambda *all: 1"): (
        "the parameter *all hides what it reads"
    ),
    "from stepweave.nodes import op\n\n\n@op\ndef use(*all): ...": (
        "node kind 'mine' of package 'theirs': entry point '{}:KIND': node 'use': the parameter "
        "*all hides"
    ),
    "from stepweave.nodes import NodeKind\n\n\ndef f(): ...\n\n\n"
    "KIND = NodeKind('mine', 'x', host=(f,))": (
        "kind 'mine': 'f' is no op, since nothing says what it writes: decorate it with `@op("
    ),
    "from stepweave.nodes import NodeKind, Options, op, settings\n\n\n"
    "class Mine(Options): ...\n\n\n@op\ndef f(chosen=settings(Mine)): ...\n\n\n"
    "KIND = NodeKind('mine', 'x', host=(f,))": (
        "its op 'f' takes settings(Mine), but its options are Options: say `options=Mine`"
    ),
    "from stepweave.nodes import NodeKind, op\n\n\n@op\ndef f(): ...\n\n\n"
    "KIND = NodeKind('mine', 'x', device=f)": (
        "kind 'mine': device must be a tuple of ops: `device=(f,)`"
    ),
    "from stepweave.nodes import NodeKind\n\n\nKIND = NodeKind('yours', 'x')": (
        "it is called 'yours': entry point and kind share one name"
    ),
    STATEFUL.format("make=list, keys='block'"): (
        "node 'extra': the state 'seen' has keys of no pool: 'block' (did you mean 'blocks'?)"
    ),
    STATEFUL.format("keys='blocks'"): "the state 'seen' does not say how it is made: declare it",
}


SOUND = DECLARED.format(fault="return True", size=None)


@contextmanager
def package(code: str, folder: Path, name: str, called: str = "mine") -> Iterator[Path]:
    """A package that brings the kind `mine`, and a pipeline that names it in line 3."""
    project, site, path = folder / "project", folder / "site", folder / "it.yaml"
    project.mkdir()
    site.mkdir()
    (project / f"{name}.py").write_text(code)
    (project / "pyproject.toml").write_text(
        '[project]\nname = "theirs"\nversion = "1"\n'
        f'[project.entry-points."stepweave.nodes"]\n{called} = "{name}:KIND"\n'
        f'[tool.setuptools]\npy-modules = ["{name}"]\n'
    )
    path.write_text("extends: async\nnodes:\n  extra: {kind: mine, after: forward}\n")
    with installed(project, site):
        yield path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_kind_of_another_package_that_is_broken_is_named(number: int, tmp_path: Path) -> None:
    code, told = list(BROKEN.items())[number]
    name = f"their_kind_{number}"
    with package(code, tmp_path, name) as path:
        for verb in (["check"], ["run", "--prompt", "x"], ["graph", "show"]):
            result = CliRunner().invoke(app, [*verb, str(path)])
            assert result.exit_code == 1, result.output
            assert told.format(name) in result.stderr
            assert f"{path}:3:3" in result.stderr, "where the file names it"
            assert result.stdout == ""


def test_the_same_kind_without_the_fault_works(tmp_path: Path) -> None:
    with package(SOUND, tmp_path, "their_sound_kind") as path:
        result = CliRunner().invoke(app, ["check", str(path)])
    assert result.exit_code == 0, result.output


def test_a_kind_that_nobody_finds_since_its_name_is_taken_is_told(tmp_path: Path) -> None:
    with package(SOUND, tmp_path, "their_forward", called="forward"):
        result = CliRunner().invoke(app, ["list", "kinds", "--json"])
    told = json.loads(result.stdout)["kinds"]
    assert told["forward"].endswith(". That of package 'theirs' has the same name: nobody finds it")
    assert [name for name, said in told.items() if "theirs" in said] == ["forward"]
