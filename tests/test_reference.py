"""The reference says what the code says: it is written from it, and names all there is."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import typer

from stepweave.cli.main import app
from stepweave.configs.node_keys import node_model
from stepweave.configs.schema import json_schema, policy_model
from stepweave.graph.public import PACKAGES
from stepweave.nodes.registry import kind, known_kinds
from stepweave.policies.registry import DECISIONS, known
from tests.installed import ROOT

REFERENCE = ROOT / "docs" / "reference"
SCRIPTS = ("make_reference", "sections")
IN_PROSE = (  # each has one key or two
    "Message",
    "TextPart",
    "ImagePart",
    "ImageUrlPart",
    "ImageUrl",
    "AbstractState",
    "PolicyConfig",
)


@pytest.fixture(scope="module")
def writer() -> Iterator[ModuleType]:
    """`docs/make_reference.py`, which finds its parts beside itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        import make_reference  # type: ignore[import-not-found]

        yield make_reference
    for name in [name for name in sys.modules if name.partition(".")[0] in SCRIPTS]:
        del sys.modules[name]


def _page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def _markers(name: str) -> list[str]:
    return re.findall(r"<!-- written: (.*) -->", _page(name))


def test_the_reference_is_what_the_code_says_today() -> None:
    # In a process of its own: tests register backends and kinds that are not ours. What
    # is made there stays.
    said = (
        "import gc, json\n"
        "gc.disable()\n"
        "import make_reference\n"
        "print(json.dumps(make_reference.pages()))"
    )
    written = subprocess.run(
        [sys.executable, "-c", said],
        cwd=ROOT / "docs",
        stdout=subprocess.PIPE,
        check=True,
    )
    for name, page in json.loads(written.stdout).items():
        path = ROOT / "docs" / name
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_text(page, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == page, (
            f"{name} is old: run python docs/make_reference.py"
        )


def test_text_between_markers_that_was_changed_by_hand_is_seen(writer: ModuleType) -> None:
    from sections.markdown import filled  # type: ignore[import-not-found]

    page = _page("python.md").replace("Derive the plan", "Guess the plan")
    assert page != _page("python.md")
    assert filled(page, lambda what, about: writer.WRITERS[what](about)) == _page("python.md")


def test_every_kind_of_ours_has_a_section() -> None:
    ours = {path.stem for path in (ROOT / "nodes").glob("*.py")} & set(known_kinds())
    assert {f"## {name}" for name in ours} <= set(_page("nodes.md").splitlines())


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
    for word, each in (inner or {}).items():
        yield from _commands(each, f"{name} {word}")


COMMANDS = dict(_commands(typer.main.get_command(app), "stepweave"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_verb_has_a_section_with_all_its_options(name: str) -> None:
    verb = name.removeprefix("stepweave ")
    assert f"options {verb}" in _markers("command-line.md")
    page = _page("command-line.md")
    section = re.search(rf"(?m)^## {name}( [A-Z].*)?\n(?:(?!^## ).*\n?)*", page)
    assert section, f"command-line.md has no section on {name}"
    for parameter in COMMANDS[name].params:
        for option in (*parameter.opts, *parameter.secondary_opts):
            if option.startswith("--") and option != "--help":
                assert f"`{option}" in section[0], f"{name} {option}"


def test_no_section_is_about_a_verb_that_is_gone() -> None:
    known = [f"options {name.removeprefix('stepweave ')}" for name in COMMANDS]
    assert [each for each in _markers("command-line.md") if each.startswith("options")] != []
    for each in _markers("command-line.md"):
        assert each in known or not each.startswith("options"), each


def test_every_key_of_every_config_is_in_a_table() -> None:
    wanted = [*_markers("yaml.md"), *_markers("command-line.md")]
    text = _page("yaml.md") + _page("command-line.md") + _page("nodes.md") + _page("policies.md")
    kinds = {node_model(kind(name)).__name__ for name in known_kinds()}
    policies = {policy_model(each, name).__name__ for each in DECISIONS for name in known(each)}
    for model, definition in json_schema()["$defs"].items():
        if model in IN_PROSE:
            continue
        assert f"keys {model}" in wanted or model in kinds | policies
        for key in definition["properties"].keys() - ({"kind"} if model in policies else set()):
            assert f"| `{key}` |" in text, f"{model}.{key}"


def test_every_policy_of_ours_is_in_the_table_of_its_decision() -> None:
    parts = _page("policies.md").split("\n## ")[1:]
    assert [part.split("\n")[0] for part in parts] == list(DECISIONS)
    for decision, part in zip(DECISIONS, parts, strict=True):
        for name in known(decision, installed=False):
            assert f"| `{name}` |" in part


def test_signatures_of_all_names_for_everybody_and_for_authors_are_listed_once() -> None:
    listed = [
        name
        for marker in _markers("python.md")
        if marker.startswith("names ")
        for name in marker.split()[1:]
    ]
    public = map(import_module, ("stepweave", "stepweave.nodes", "stepweave.sampling"))
    things = {name: getattr(package, name) for package in public for name in package.__all__}
    callables = {n for n, x in things.items() if isinstance(x, type) or inspect.isroutine(x)}
    assert sorted(listed) == sorted(callables)


def test_the_page_of_public_names_has_each_in_the_section_of_its_package() -> None:
    page = _page("public.md")
    for package in PACKAGES:
        section = re.search(rf"(?m)^## {re.escape(package)}\n(?:(?!^## ).*\n)*", page)
        assert section, package
        listed = re.findall(r"(?m)^\| `(\w+)` \|", section[0])
        assert listed == import_module(package).__all__
