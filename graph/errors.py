"""What can be wrong with a step graph, as one small tree.

    StepweaveError
    ├── GraphError           a declaration is wrong (unknown name, two writers, …)
    │   └── DeadlockError    no set of waits can order the graph: a cycle of distance ≤ 0
    └── UnsoundPlan          a plan does not order what it must (found by the verifier)

Every error carries a stable `code`, and the YAML line and column where they are known.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .violation import Violation


class StepweaveError(Exception):
    """Base of every error that Stepweave raises for a user's mistake."""

    code = "SW-ERROR"
    names_nothing = False  # whether what was asked for by name does not exist here

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column
        if code is not None:
            self.code = code

    def to_json(self) -> dict[str, object]:
        """The error as `check --json` prints it: code, message, line, column."""
        return {
            "code": self.code,
            "message": self.message,
            "line": self.line,
            "column": self.column,
        }


class GraphError(StepweaveError):
    """A declaration of the graph is wrong; nothing was compiled."""

    code = "SW-GRAPH"


class DeadlockError(GraphError):
    """The required orderings close a cycle of total distance ≤ 0: no waits can order it.

    `cycle` is the list of (op, distance to the next op) around that cycle. The code is `SW-CHANNEL`
    where messages that may hold more would open it.
    """

    code = "SW-DEADLOCK"

    def __init__(
        self,
        message: str,
        cycle: Iterable[tuple[str, int]],
        *,
        code: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(message, code=code, line=line, column=column)
        self.cycle = tuple(cycle)

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "cycle": [list(edge) for edge in self.cycle]}


class UnsoundPlan(StepweaveError):
    """A plan leaves two conflicting accesses unordered, or cannot be executed by streams.

    `violations` has one entry for each cause; the error's own code and line are the first's.
    """

    code = "SW-UNSOUND"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        line: int | None = None,
        violations: Iterable[Violation] = (),
    ) -> None:
        super().__init__(message, code=code, line=line)
        self.violations = tuple(violations)

    def to_json(self) -> dict[str, object]:
        causes = [violation.to_json() for violation in self.violations]
        return {**super().to_json(), "violations": causes}


def shortly(error: BaseException) -> str:
    """The type and the first line of an error: libraries append advice and traces of their own.

    Where the first line only announces the next, both.
    """
    lines = [line.strip() for line in f"{error}".splitlines() if line.strip()]
    said = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def told(error: BaseException) -> str:
    """An error of code that is not ours, on one line: its class, its first paragraph."""
    said = " ".join(str(error).partition("\n\n")[0].split()).rstrip(".")
    return f"{type(error).__name__}: {said}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like it; None: none is like it."""
    return next(iter(difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=0.6)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the nearest known name, else the list of known names."""
    names = sorted(set(known))
    if (near := nearest(name, names)) is not None:
        return f" (did you mean {near!r}?)"
    return f" (known: {', '.join(names)})" if names else ""
