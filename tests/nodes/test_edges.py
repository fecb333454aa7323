"""The type checker sees each edge: a node that reads or writes a wrong type is an error there."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.installed import ROOT

BEGIN = """\
from stepweave.graph.declare import node, op
from stepweave.graph.parameters import buffer, given, optional, read, state, update, wanted
from stepweave.models.paged_cache import PagedCache
from stepweave.nodes.data import DraftTable, HostDrafts, HostSampled, Sampled, Progress
from stepweave.nodes.ops.history import History
from stepweave.nodes.sizes import Sizes
from stepweave.nodes.values import DRAFTS, HISTORY, HOST_DRAFTS, HOST_SAMPLED, KV, LIMITS
from stepweave.nodes.values import SAMPLED, SIZES, PROGRESS
"""

RIGHT = """\
@node(writes=SAMPLED)
def first(before: Sampled | None = read(SAMPLED, 1)) -> Sampled | None:
    return before


@op(writes=(HOST_SAMPLED, wanted(HOST_DRAFTS, of=DRAFTS)))
def second(
    sampled: Sampled | None = read(SAMPLED),
    drafts: DraftTable | None = optional(DRAFTS, 1),
    progress: Progress = read(PROGRESS, 1),
    history: History = state(HISTORY),
    cache: PagedCache = update(KV),
    sizes: Sizes = given(SIZES),
    there: HostSampled = buffer(HOST_SAMPLED),
) -> tuple[HostSampled | None, HostDrafts | None]:
    return there, None


first(None)
second(None, None)
"""

WRONG = {
    "reads another type": (
        "def wrong(sampled: Progress = read(SAMPLED)) -> None: ...",
        '(default has type "Sampled | None", parameter has type "Progress")',
    ),
    "reads a value of another's type": (
        "def wrong(sampled: Sampled = read(PROGRESS)) -> None: ...",
        '(default has type "Progress", parameter has type "Sampled")',
    ),
    "takes for granted what a step may be without": (
        "def wrong(sampled: Sampled = read(SAMPLED)) -> None: ...",
        '(default has type "Sampled | None", parameter has type "Sampled")',
    ),
    "leaves out what every step has": (
        "def wrong() -> Progress | None: ...\nop(writes=PROGRESS)(wrong)",
        'expected "Callable[[], Progress]"',
    ),
    "takes what is optional for granted": (
        "def wrong(drafts: DraftTable = optional(DRAFTS)) -> None: ...",
        '(default has type "DraftTable | None", parameter has type "DraftTable")',
    ),
    "writes another type": (
        "def wrong() -> Progress: return Progress.empty(1)\nop(writes=SAMPLED)(wrong)",
        'expected "Callable[[], Sampled | None]"',
    ),
    "writes two in the wrong order": (
        "def wrong(s: Sampled, t: Progress) -> tuple[Progress, Sampled]: return t, s\n"
        "op(writes=(SAMPLED, PROGRESS))(wrong)",
        'expected "Callable[[Sampled, Progress], tuple[Sampled | None, Progress]]"',
    ),
    "writes a wanted value of another type": (
        "def wrong(s: Sampled, t: Progress) -> tuple[Sampled, Progress]: return s, t\n"
        "node(writes=(SAMPLED, wanted(DRAFTS)))(wrong)",
        "tuple[Sampled | None, DraftTable]",
    ),
    "updates a state of another type": (
        "def wrong(history: PagedCache = update(HISTORY)) -> None: ...",
        '(default has type "History", parameter has type "PagedCache")',
    ),
    "fills the buffer of another value": (
        "def wrong(there: HostDrafts = buffer(HOST_SAMPLED)) -> None: ...",
        '(default has type "HostSampled", parameter has type "HostDrafts")',
    ),
    "takes one resource for another": (
        "def wrong(sizes: Sizes = given(LIMITS)) -> None: ...",
        '(default has type "Limits", parameter has type "Sizes")',
    ),
    "reads a state as a value": (
        "def wrong(history: History = read(HISTORY)) -> None: ...",
        'Argument 1 to "read" has incompatible type "State[History]"',
    ),
    "is called with another type": ("first(Progress.empty(1))", 'expected "Sampled | None"'),
}

SETTINGS = f"""\
[mypy]
follow_imports = skip
mypy_path = {ROOT / ".dev"}
[mypy-stepweave.graph.*,stepweave.nodes.*,stepweave.requests.*,stepweave.models.paged_cache]
follow_imports = silent
"""


@cache
def told() -> dict[str, list[str]]:
    """What mypy says of each misuse, and under "" of all that is right. It runs once.

    What `stepweave` imports from elsewhere is not looked at: it takes a minute, and is of no edge.
    """
    api: Any = pytest.importorskip("mypy.api", reason="it is about what mypy says")
    program = [*BEGIN.splitlines(), *RIGHT.splitlines()]
    last_line: dict[int, str] = {}
    for what, (code, _) in WRONG.items():
        program += ["", *code.replace("wrong", f"wrong_{len(program)}").splitlines()]
        last_line[len(program)] = what
    with TemporaryDirectory() as folder:
        path, settings = Path(folder, "edges.py"), Path(folder, "mypy.ini")
        path.write_text("\n".join(program), encoding="utf-8")
        settings.write_text(SETTINGS, encoding="utf-8")
        options = ["--no-pretty", "--no-error-summary", f"--cache-dir={folder}/cache"]
        said, errors, _ = api.run([str(path), f"--config-file={settings}", *options])
    assert not errors, errors
    found: dict[str, list[str]] = {}
    for line in said.splitlines():
        if ": error: " in line:
            place, _, message = line.partition(": error: ")
            number = int(place.rpartition(":")[2])
            found.setdefault(last_line.get(number, ""), []).append(message)
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", WRONG)
def test_an_edge_of_a_wrong_type_is_an_error_in_its_line(what: str) -> None:
    assert [message for message in told().get(what, []) if WRONG[what][1] in message], told()


def test_what_is_right_is_no_error_and_each_misuse_is_one() -> None:
    assert told().get("", []) == []
    assert {what: len(messages) for what, messages in told().items()} == dict.fromkeys(WRONG, 1)
