"""What is wrong in a file that the user wrote, and where.

A file is read to its end before it is refused, so one `ConfigError` lists every problem found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..graph.errors import StepweaveError


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file: line and column count from 1."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        known = (self.file, self.line, self.column)
        return ":".join(str(part) for part in known if part is not None)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, with what to do about it in the message."""

    mark: Mark
    message: str
    code: str = field(default="SW-CONFIG")

    def __str__(self) -> str:
        return f"{self.mark}: {self.message}"

    def to_json(self) -> dict[str, object]:
        return {
            "code": self.code,
            "message": self.message,
            "file": self.mark.file,
            "line": self.mark.line,
            "column": self.mark.column,
        }


class ConfigError(StepweaveError):
    """A file, or a setting given beside it, cannot be used. `problems` says all that is wrong."""

    code = "SW-CONFIG"

    def __init__(self, *problems: Problem) -> None:
        first = problems[0]
        super().__init__(
            "\n".join(str(problem) for problem in problems),
            code=first.code,
            line=first.mark.line,
            column=first.mark.column,
        )
        self.problems = problems

    @classmethod
    def at(cls, mark: Mark, message: str, code: str = "SW-CONFIG") -> ConfigError:
        return cls(Problem(mark, message, code))


@contextmanager
def reading(name: str) -> Iterator[None]:
    """What the system says of a file that cannot be read is a `ConfigError` about `name`."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError.at(Mark(name), f"cannot be read: {reason}") from error


def existing_file(name: str, beside: Path) -> Path | None:
    """The file of that name, from the folder `beside` on; None if there is none.

    Raises `ConfigError` for a name that no file can have.
    """
    path = beside / name
    with reading(name):
        return path if path.exists() and not path.is_dir() else None
