"""What the verifier reports: one cause, both accesses, what is needed and what is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .node import Side

# The hazard, and on which sides the access that must come first and the other one are.
RACE_CODES: Mapping[tuple[str, Side, Side], str] = MappingProxyType(
    {
        ("RAW", "host", "host"): "SW-RAW-HOST-HOST",
        ("RAW", "host", "device"): "SW-RAW-HOST-DEVICE",
        ("RAW", "device", "host"): "SW-RAW-DEVICE-HOST",
        ("RAW", "device", "device"): "SW-RAW-DEVICE-DEVICE",
        ("WAR", "host", "host"): "SW-WAR-HOST-HOST",
        ("WAR", "host", "device"): "SW-WAR-HOST-DEVICE",
        ("WAR", "device", "host"): "SW-WAR-DEVICE-HOST",
        ("WAR", "device", "device"): "SW-WAR-DEVICE-DEVICE",
        ("WAW", "host", "host"): "SW-WAW-HOST-HOST",
        ("WAW", "host", "device"): "SW-WAW-HOST-DEVICE",
        ("WAW", "device", "host"): "SW-WAW-DEVICE-HOST",
        ("WAW", "device", "device"): "SW-WAW-DEVICE-DEVICE",
    }
)


@dataclass(frozen=True, slots=True)
class Access:
    """One of the two accesses that conflict: who touches what, where it runs, and when."""

    node: str
    op: str
    actor: str
    verb: str  # reads, writes, launches, …
    value: str
    line: int | None = None  # of the node in its YAML file
    step: int | None = None  # relative to step i
    place: str = ""  # which version, in which slot

    def __str__(self) -> str:
        line = "" if self.line is None else f" (line {self.line})"
        when = "" if self.step is None else f"step i{f'{self.step:+d}' if self.step else ''}: "
        where = f", {self.place}" if self.place else ""
        return (
            f"{when}node {self.node!r}{line}, op {self.op!r} on {self.actor}, "
            f"{self.verb} {self.value}{where}"
        )

    def to_json(self) -> dict[str, object]:
        return {
            "node": self.node,
            "op": self.op,
            "actor": self.actor,
            "line": self.line,
            "step": self.step,
            "access": f"{self.verb} {self.value}",
            "place": self.place,
        }


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
    repair: str = ""  # what would order them: a wait, slots, another order
    path: tuple[tuple[str, int], ...] = ()  # the ordering of `present`, as (op, total so far)

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
            "accesses": [each.to_json() for each in (self.before, self.after) if each],
            "needed": self.needed,
            "present": self.present,
            "path": [list(step) for step in self.path],
            "also": list(self.also),
            "repair": self.repair,
        }
