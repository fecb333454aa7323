"""What ships: the repository root is the package, and its parts are listed by hand."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BESIDE = {"tests", "benchmarks", "docs", "examples", "training", "build", "dist"}
TEXTS = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".json", ".jsonl", ".svg", ".cfg", ""}


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def own_files() -> Iterator[Path]:
    """Everything that belongs to the project; caches, builds and environments do not."""
    for path in sorted(ROOT.iterdir()):
        hidden = path.name.startswith(".") and path.name not in {".ci", ".gitignore"}
        if hidden or path.name.endswith(".egg-info") or path.name in {"build", "dist", "venv"}:
            continue
        if path.is_file():
            yield path
            continue
        for inner in path.rglob("*"):
            parts = inner.relative_to(ROOT).parts
            if inner.is_file() and not {"__pycache__", "out", "build"} & set(parts):
                yield inner


def test_every_package_is_listed_and_every_listed_package_is_there() -> None:
    folders = {"stepweave"}
    for init in ROOT.rglob("__init__.py"):
        parts = init.parent.relative_to(ROOT).parts
        if parts and parts[0] not in BESIDE and not parts[0].startswith((".", "venv")):
            folders.add(".".join(("stepweave", *parts)))
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == folders


def test_the_root_holds_no_other_module_since_it_would_ship() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_type_checkers_see_every_package() -> None:
    packages = [name.partition(".")[2] for name in PROJECT["tool"]["setuptools"]["packages"]]
    links = {path.name for path in (ROOT / ".dev" / "stepweave").iterdir()}
    folders = {name.partition(".")[0] for name in packages if name}
    assert links == {"__init__.py", "__main__.py", "py.typed", *folders}
    assert all(path.is_symlink() for path in (ROOT / ".dev" / "stepweave").iterdir())


def test_data_files_match_a_pattern_that_ships_them() -> None:
    shipped = PROJECT["tool"]["setuptools"]["package-data"]
    for package, folder in (("stepweave.configs", "configs"), ("stepweave.models", "models")):
        wanted = {
            path
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix not in {".py", ".pyc"}
        }
        found = {path for pattern in shipped[package] for path in (ROOT / folder).glob(pattern)}
        assert wanted == found


def test_imports_point_down() -> None:
    pytest.importorskip("importlinter", reason="comes with the extra `dev`")
    from importlinter.cli import lint_imports

    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0


def test_importing_stepweave_and_building_a_graph_needs_no_torch() -> None:
    code = (
        "import sys; from stepweave import compile_plan, lanes, node, step_graph, verify;"
        "graph = step_graph(node(writes='a')(lambda: 1)); verify(compile_plan(graph));"
        "print([name for name in ('torch', 'transformers', 'xgrammar') if name in sys.modules])"
    )
    assert python(code) == "[]"


def test_the_version_is_the_one_of_the_changelog() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == PROJECT["project"]["version"]


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    somewhere = re.compile(
        r"/(home|Users)/\w+|/root/\w+|[A-Z]:\\Users|file://|--(extra-)?index-url"
    )
    own = [str(path) for path in (ROOT, Path.home()) if len(path.parts) > 2]
    for path in own_files():
        if path.suffix not in TEXTS or path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        found = somewhere.search(text) or next((place for place in own if place in text), None)
        assert not found, f"{path.relative_to(ROOT)} names {found}"


def test_the_ci_script_can_be_executed() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
