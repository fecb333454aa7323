"""What a load can be asked for by a word. The command line reads these at every start."""

from __future__ import annotations

from enum import StrEnum


class Endpoint(StrEnum):
    """Which of the two ways to ask for tokens."""

    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self is Endpoint.CHAT else "/v1/completions"


class RampUp(StrEnum):
    """How the rate grows from the first request to the last."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"
