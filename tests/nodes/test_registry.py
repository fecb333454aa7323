"""Code of other packages: what is wrong with it is told with node, kind and package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepweave.cli.main import app
from tests.installed import installed

DECLARED = """\
from stepweave.graph.node import Node, Op, Value
from stepweave.nodes.kind import Built, NodeKind


def build(spec, machine):
    return Built(Node(spec.name, host=(Op(writes=("made",)),)), values=(Value("made"),))


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
    DECLARED + "KIND = NodeKind('mine', 'x', lambda spec, machine: exit(0))": (
        "node 'extra': `build` of kind 'mine', in module '{}', failed: SystemExit: 0"
    ),
    DECLARED + "KIND = NodeKind('mine', 'x', lambda spec, machine: 1 / 0)": (
        "node 'extra': `build` of kind 'mine', in module '{}', failed: ZeroDivisionError"
    ),
    DECLARED + "KIND = NodeKind('mine', 'x', lambda spec, machine: None)": (
        "failed: TypeError: it must return a Built, not NoneType"
    ),
    DECLARED + "KIND = NodeKind('mine', 'x', lambda spec: build(spec, None))": "failed: TypeError",
    DECLARED + "KIND = NodeKind('mine', 'x', lambda s, m: build(s, m).values)": "not tuple",
}


SOUND = DECLARED + "KIND = NodeKind('mine', 'x', build)"


@contextmanager
def package(code: str, folder: Path, name: str) -> Iterator[Path]:
    """A package that brings the kind `mine`, and a pipeline that names it in line 3."""
    project, site, path = folder / "project", folder / "site", folder / "it.yaml"
    project.mkdir()
    site.mkdir()
    (project / f"{name}.py").write_text(code)
    (project / "pyproject.toml").write_text(
        '[project]\nname = "theirs"\nversion = "1"\n'
        f'[project.entry-points."stepweave.nodes"]\nmine = "{name}:KIND"\n'
        f'[tool.setuptools]\npy-modules = ["{name}"]\n'
    )
    path.write_text("extends: async\nnodes:\n  extra: {kind: mine, after: forward}\n")
    with installed(project, site):
        yield path


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
