"""Who compares what several processes that do the same come to, where there are several."""

from __future__ import annotations

from typing import Protocol


class Witness(Protocol):
    """Told what each step came to. What it raises ends the run."""

    def decided(self, step: int, op: str, said: object) -> None:
        """What the shapes of a step depend on; the step does not go on before it is compared."""

    def noted(self, step: int, op: str, said: object) -> None:
        """What an op came to."""

    def failing(self, step: int, error: str) -> None:
        """An op has failed; its step has when no other op is under way. By any thread."""

    def failed(self, step: int | None, error: str) -> None:
        """A step has failed: come back where it has failed everywhere alike."""
