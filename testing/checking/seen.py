"""The context of an op in checking mode: what it takes, publishes and fills is noted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...executors.context import Context
from ..forwarding import Forwarding
from .guards import AT_WORK

if TYPE_CHECKING:
    from .checked import Checked


@dataclass(frozen=True, slots=True)
class Aside:
    """Within a `with` block checking mode is at work, and not the op."""

    check: Checked

    def __enter__(self) -> None:
        AT_WORK.op = None

    def __exit__(self, *raised: object) -> None:
        AT_WORK.op = self.check


class Seen(Forwarding):
    """The context as the op sees it."""

    def __init__(self, context: Context, check: Checked) -> None:
        super().__init__(context)
        self.context, self.check, self.aside = context, check, Aside(check)

    def read(self, name: str) -> Any:
        with self.aside:
            datum = self.context.read(name)
            self.check.reads_value(name)
            return datum

    def buffer(self, name: str) -> Any:
        with self.aside:
            buffer = self.context.buffer(name)
            self.check.takes(name, buffer)
            return buffer

    def write(self, name: str, datum: Any) -> None:
        with self.aside:
            if name in self.check.homed and datum is not None:
                self.check.takes(name, self.context.buffer(name))  # it may be copied into it
            self.context.write(name, datum)
            self.check.publishes(name, self.context.published(name))

    def state(self, name: str) -> Any:
        with self.aside:
            state = self.context.state(name)
            self.check.uses_state(name)
            return state
