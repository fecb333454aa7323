"""What the verifier reports: one cause, both accesses, what is needed and what is there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """One of the two accesses that conflict: who touches what, and where it runs."""

    node: str
    op: str
    actor: str
    verb: str  # reads, writes, launches, …
    value: str
    line: int | None = None

    def __str__(self) -> str:
        return f"node {self.node!r}, op {self.op!r} on {self.actor}, {self.verb} {self.value}"


@dataclass(frozen=True, slots=True)
class Violation:
    """One cause why a plan is unsound: both accesses, what is needed, what is there."""

    code: str
    message: str
    hazard: str = ""
    value: str = ""
    before: Access | None = None
    after: Access | None = None
    needed: int | None = None  # the greatest distance that is safe
    present: int | None = None  # the least distance that the plan gives; None: unordered
    also: tuple[str, ...] = ()  # orderings missing for the same cause

    @property
    def line(self) -> int | None:
        """The YAML line of the second access, where it is known."""
        return self.after.line if self.after else None

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def to_json(self) -> dict[str, object]:
        """The violation as `check --json` prints it."""
        return {
            "code": self.code,
            "message": self.message,
            "line": self.line,
            "hazard": self.hazard,
            "value": self.value,
            "before": self.before.op if self.before else None,
            "after": self.after.op if self.after else None,
            "needed": self.needed,
            "present": self.present,
            "also": list(self.also),
        }
