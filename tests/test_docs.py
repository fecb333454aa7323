"""The documentation is run: every command, every block of code, every file, every link.

A document is a session of its own in an empty folder. Its blocks run from top to bottom, and what
they make stays for those below. A comment before a block says what is special about it:

    <!-- output -->           the block is what the block before it printed
    <!-- refused: SW-… -->    the YAML below is wrong, with this code
    <!-- fails -->            the command below ends with exit code 1 or 2
    <!-- file: path -->       the block is that file of the repository, word for word
    <!-- not run: why -->     the block needs what a test here has not, such as several processes

A word after the language is a file name: the block is written there. `pip install .` in a session
installs what its files declare, for that session. `stepweave serve` goes on, on a free port in
place of 8000, and is one service for all documents that start it alike. UPDATE_GOLDEN=1 rewrites
what is printed.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from stepweave.cli import compare
from stepweave.cli.main import app
from stepweave.configs.prompts import read_prompts
from stepweave.policies.registry import DECISIONS
from stepweave.serving import profiling
from stepweave.testing.exploring import campaign
from stepweave.testing.exploring.mutants import mutants
from tests.installed import ROOT, installed
from tests.server.in_process import serving

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
SERVED = "http://localhost:8000"
COMMENT = re.compile(r"<!-- (output|fails|not run: [^>]+|refused: (\S+)|file: (\S+)) -->")
INSTALLS = re.compile(
    r"python3 -m venv \.venv"
    r"|(\.venv/bin/)?pip install( -q)?( -c constraints\.txt)?( -e)? (\.|\"\.\[(dev|server)\]\")"
    r"|pip install --no-deps (\.|\./\S+)"
    r"|\.venv/bin/python -m pytest( -n 2)?"
)


@dataclass(frozen=True)
class Block:
    """A fenced block, with the comment that stands before it."""

    language: str
    name: str
    text: str
    line: int
    comment: str = ""
    detail: str = ""


def blocks(document: Path) -> Iterator[Block]:
    fence: tuple[str, str, int] | None = None
    inside: list[str] = []
    comment = detail = ""
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), start=1):
        if fence is not None:
            if line.strip() == "```":
                text = "".join(f"{each}\n" for each in inside)
                yield Block(fence[0], fence[1], text, fence[2], comment, detail)
                fence, inside, comment, detail = None, [], "", ""
            else:
                inside.append(line)
        elif line.startswith("```"):
            language, _, name = line.removeprefix("```").partition(" ")
            fence = (language, name.strip(), number)
        elif match := COMMENT.fullmatch(line.strip()):
            comment = match[1].partition(":")[0]
            detail = match[2] or match[3] or ""
        elif line.strip():
            comment = detail = ""
    assert fence is None, f"{document.name}: the block of line {fence[2] if fence else 0} is open"


@dataclass
class Session:
    """A reader who tries everything, in order."""

    document: Path
    service: Callable[..., str]  # the address of what `stepweave serve` starts with these arguments
    printed: str = ""
    rewritten: dict[int, str] = field(default_factory=dict)  # line of the fence -> what it holds
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__docs__"})
    installs: ExitStack = field(default_factory=ExitStack)
    served: str = SERVED  # the address that takes its place

    def take(self, block: Block) -> None:
        where = f"{self.document.relative_to(ROOT)}:{block.line}"
        if block.comment == "not run":
            return
        if block.comment == "file":
            assert block.text == (ROOT / block.detail).read_text(), f"{where} is not {block.detail}"
        elif block.comment == "output" and os.environ.get("UPDATE_GOLDEN"):
            self.rewritten[block.line] = "".join(f"{line}\n" for line in _bare(self.printed))
        elif block.comment == "output":
            assert _bare(block.text) == _bare(self.printed), f"{where} is not what is printed"
        elif block.language in ("python", "toml", "jsonl", "json") and block.name:
            Path(block.name).write_text(block.text, encoding="utf-8")
            if block.language == "jsonl":
                read_prompts(Path(block.name))
        elif block.language == "bash":
            for line in block.text.splitlines():
                self.command(line, where, fails=block.comment == "fails")
        elif block.language == "python":
            caught = io.StringIO()
            text = block.text.replace(SERVED, self.served)
            with redirect_stdout(caught):
                exec(compile("\n" * block.line + text, where, "exec"), self.names)
            self.printed = caught.getvalue()
        elif block.language == "yaml":
            self.check(block, where)
        elif block.language == "json":
            json.loads(block.text)
        else:
            assert block.language == "text", f"{where}: nobody tests {block.language!r}"

    def command(self, line: str, where: str, *, fails: bool) -> None:
        for part in line.split(" && "):
            words = part.removeprefix(".venv/bin/").split(" > ")
            if words[0].startswith("curl "):
                self.printed = curl(shlex.split(words[0].replace(SERVED, self.served))[1:])
                continue
            if not words[0].startswith("stepweave "):
                assert INSTALLS.fullmatch(part), f"{where}: {part!r} is neither run nor known"
                if part == "pip install --no-deps .":
                    site = Path("site")
                    site.mkdir()
                    self.installs.enter_context(installed(Path(), site.resolve()))
                continue
            if words[0].startswith("stepweave serve "):
                self.served = self.service(*shlex.split(words[0])[2:])
                continue
            asked = shlex.split(words[0].replace(SERVED, self.served))
            done = CliRunner().invoke(app, asked[1:])
            wanted = (1, 2) if fails else (0,)
            assert done.exit_code in wanted, f"{where}: {part}\n{done.output}\n{done.exception!r}"
            self.printed = done.output if fails else done.stdout
            if len(words) > 1:
                Path(words[1]).write_text(done.stdout, encoding="utf-8")

    def check(self, block: Block, where: str) -> None:
        path = Path(block.name or f"line{block.line}.yaml")
        path.write_text(block.text, encoding="utf-8")
        found = json.loads(CliRunner().invoke(app, ["check", str(path), "--json"]).stdout)
        if block.comment == "refused":
            assert [error["code"] for error in found["errors"]] == [block.detail], where
        else:
            assert found["ok"], f"{where}: {found['errors']}"


def curl(words: list[str]) -> str:
    """What `curl URL -H HEADER -d BODY` prints; a body that is no answer fails."""
    headers = dict(
        each.split(": ", 1) for flag, each in pairwise(words) if flag in ("-H", "--header")
    )
    bodies = [each for flag, each in pairwise(words) if flag == "-d"]
    [url] = [each for each in words if each.startswith("http://")]
    method = "POST" if bodies else "GET"
    answer = httpx.request(method, url, headers=headers, content="".join(bodies), timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.text


def _bare(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


@pytest.fixture(scope="module", autouse=True)
def _examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with ExitStack() as stack:
        for name in ("steer", "decisions", "leap", "processors"):
            site = tmp_path_factory.mktemp("site")
            stack.enter_context(installed(ROOT / "examples" / name, site))
        yield


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is run again and again for a figure that says more is run once: no document has it."""
    monkeypatch.setattr(compare, "MOST_ROUNDS", 1)
    monkeypatch.setattr(profiling, "REQUESTS_PER_ROW", 3)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Each runs in an empty folder, so whoever starts another like it could not tell the two."""
    with ExitStack() as running:

        @cache
        def address(*arguments: str) -> str:
            folder = tmp_path_factory.mktemp("service")
            return running.enter_context(serving(folder, *arguments)).url

        yield address


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_works_as_written(
    document: Path,
    service: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if document.parent == ROOT:  # all mutants of a larger plan are judged by the tests of `check`
        monkeypatch.setattr(campaign, "mutants", lambda plan: islice(mutants(plan), 20))
    session = Session(document, service)
    found = list(blocks(document))
    with session.installs:
        for block in found:
            session.take(block)
    lines = document.read_text(encoding="utf-8").splitlines(keepends=True)
    for block in reversed(found):
        if block.line in session.rewritten:
            end = block.line + len(block.text.splitlines())
            lines[block.line : end] = [session.rewritten[block.line]]
    if session.rewritten:
        document.write_text("".join(lines), encoding="utf-8")


def test_the_readmes_first_bash_blocks_are_its_commands() -> None:
    first, second, third = [b.text for b in blocks(ROOT / "README.md") if b.language == "bash"][:3]
    install = "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt "
    assert first == f"{install}. && .venv/bin/stepweave run configs/quickstart.yaml\n"
    assert second == f'{install}-e ".[dev]" && .venv/bin/python -m pytest -n 2\n'
    assert third == f'{install}".[server]" && .venv/bin/stepweave serve quickstart\n'


def test_every_link_leads_somewhere() -> None:
    link = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
    for document in DOCUMENTS:
        for path, anchor in link.findall(document.read_text(encoding="utf-8")):
            target = (document.parent / path).resolve() if path else document
            said = f"{document.relative_to(ROOT)}: {path}#{anchor}"
            assert target.exists(), said
            if anchor:
                assert anchor in {_slug(line) for line in _headings(target)}, said


def _headings(document: Path) -> list[str]:
    return [line for line in document.read_text(encoding="utf-8").splitlines() if line[:1] == "#"]


def _slug(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower())
    return kept.replace(" ", "-")


def test_every_document_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for document in sorted((ROOT / "docs").rglob("*.md")):
        assert f"]({document.relative_to(ROOT)})" in readme


def test_the_glossary_names_every_decision() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    [said] = re.findall(r"\* \*\*Policy\*\*: [^*]*? in the pipeline file: ([^.*]+)\.", glossary)
    assert set(re.findall(r"\w+", said)) - {"or"} == set(DECISIONS)


SCRIPTS = ("make_images", "tutorial_images")


@cache
def _pictures(script: str) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        pages = importlib.import_module("sections.pipelines")
        patch.setattr(pages, "PROFILES", pages.PROFILES[:1])  # a picture has the first costs
        drawn: dict[str, str] = importlib.import_module(script).pictures()
        pages.plans.cache_clear()
    del sys.modules[script]
    return drawn


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_pictures_are_those_of_the_plans(script: str) -> None:
    for name, drawn in _pictures(script).items():
        path = ROOT / "docs" / "images" / name
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_text(drawn, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == drawn, f"old: run python docs/{script}.py"


def test_every_picture_is_drawn_by_a_script_and_shown_on_a_page() -> None:
    names = {name for script in SCRIPTS for name in _pictures(script)}
    images = ROOT / "docs" / "images"
    there = {path.relative_to(images).as_posix() for path in images.rglob("*") if path.is_file()}
    assert names == there
    shown = "".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    assert {name for name in names if f"images/{name}" not in shown} == set()


def test_every_test_that_the_theory_names_exists() -> None:
    theory = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    folders = ("graph", "executors", "testing", "timelines")
    files = [path for each in folders for path in (ROOT / "tests" / each).rglob("*.py")]
    tests = "".join(path.read_text() for path in files)
    named = re.findall(r"`(test_\w+)`", theory)
    assert len(named) > 20
    for name in named:
        assert f"def {name}(" in tests, name


def test_the_reference_knows_every_error_code() -> None:
    reference = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    folders = [path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"]
    for folder in folders:
        for source in folder.rglob("*.py"):
            for code in re.findall(r'"(SW-[A-Z-]+)"', source.read_text(encoding="utf-8")):
                assert f"`{code}`" in reference, f"{source.relative_to(ROOT)}: {code}"
