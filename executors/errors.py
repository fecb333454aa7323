"""What can go wrong while a plan runs, below `StepweaveError`.

StepweaveError
├── NodeFailure        an op raised; the run was stopped
├── DeviceFailure      work on a stream failed after its launch; always the cause of a NodeFailure
├── StuckWait          nothing moved for a while, and somebody waits
└── UndeclaredAccess   an op asked for something it did not declare
    └── ContractViolation  an op did something it did not declare
"""

from __future__ import annotations

from collections.abc import Mapping

from ..graph.errors import StepweaveError
from ..graph.step_graph import Vertex

At = tuple[str, int]  # an op and a step

_LEFT = "is inside an op that does not return"


def leave_behind(error: BaseException, worker: str) -> None:
    """Note that a run ended with this error while a worker is inside an op, which may yet write."""
    error.add_note(f"{worker} {_LEFT}")


def left_behind(error: BaseException) -> bool:
    """Whether a worker of the run that ended with this error may still write what others read."""
    return any(note.endswith(_LEFT) for note in getattr(error, "__notes__", ()))


class NodeFailure(StepweaveError):
    """An op raised: the run was stopped. The op's own exception is `__cause__`."""

    code = "SW-NODE-FAILURE"

    def __init__(self, node: str, op: str, step: int, cause: BaseException) -> None:
        super().__init__(
            f"node {node!r}: op {op!r} failed in step {step}: {type(cause).__name__}: {cause}"
        )
        self.node = node
        self.op = op
        self.step = step
        self.__cause__ = cause


class DeviceFailure(StepweaveError):
    """A device reported an error when a host op waited for an event: work before it failed.

    A kernel fails long after its launch returned, so all that is known is where the error was seen:
    at or before `op` of `step` on that op's stream. The device's own error is `__cause__`.
    `advice` says how its users learn more.
    """

    code = "SW-DEVICE-FAILURE"

    def __init__(self, op: str, step: int, advice: str) -> None:
        super().__init__(
            f"the device failed in {op!r} of step {step}, or in work before it on its stream. "
            f"{advice}".rstrip()
        )
        self.op = op
        self.step = step


class StuckWait(StepweaveError):
    """No op began or ended for `watchdog_s`, while an actor waited for another op.

    `activity` says what each actor was doing. If all of them wait, the plan's waits form a
    circle; if one runs an op, that op hangs or is slower than the watchdog allows.
    """

    code = "SW-STUCK-WAIT"

    def __init__(self, op: At, awaited: At, seconds: float, activity: Mapping[str, str]) -> None:
        doing = "".join(f"\n  {actor}: {what}" for actor, what in activity.items())
        super().__init__(
            f"op {op[0]!r} of step {op[1]} waits for {awaited[0]!r} of step {awaited[1]}, "
            f"and nothing has moved for {seconds:g} s:{doing}"
        )
        self.op, self.step = op
        self.awaited, self.awaited_step = awaited
        self.activity = dict(activity)

    @staticmethod
    def of(waiting: Mapping[str, tuple[At, At]]) -> StuckWait:
        """The deadlock of these actors: each is at an op, which waits for another."""
        doing = {actor: waits_for(*each) for actor, each in waiting.items()}
        return StuckWait(*next(iter(waiting.values())), 0.0, doing)


def waits_for(op: At, awaited: At) -> str:
    """What an actor does that waits, in words."""
    return f"waits, for {op[0]!r} of step {op[1]}, for {awaited[0]!r} of step {awaited[1]}"


class UndeclaredAccess(StepweaveError):
    """An op reads, writes or touches a name that it did not declare that way."""

    code = "SW-UNDECLARED-ACCESS"


class ContractViolation(UndeclaredAccess):
    """What an op did and what it declared differ: found by checking mode, or when it publishes.

    `value` is the value or state concerned, if it is one. `file` and `source_line` say where in the
    code of the op, where that is known; `line` is the node's line in its YAML file.
    """

    def __init__(
        self,
        code: str,
        vertex: Vertex,
        value: str,
        step: int,
        what: str,
        file: str | None = None,
        source_line: int | None = None,
    ) -> None:
        super().__init__(
            f"{code}: node {vertex.node.name!r}: op {vertex.name!r}, in step {step}, {what}",
            code=code,
            line=vertex.node.line,
        )
        self.node = vertex.node.name
        self.op = vertex.name
        self.value = value
        self.step = step
        self.file = file
        self.source_line = source_line
