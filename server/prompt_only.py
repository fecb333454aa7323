"""Streams of prompts that are to be told, and scored, and not continued.

An engine draws at least one token, which costs a prompt nothing: none of it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..requests.increment import Increment
from ..requests.request import RequestOutput

if TYPE_CHECKING:
    from ..serving.async_llm import Listener
    from ..serving.ticket import Blame
    from .front import Stream


@dataclass(frozen=True)
class PromptOnly:
    """A stream whose increments have no tokens, nor their text."""

    stream: Stream

    @property
    def prompt_ids(self) -> Sequence[int]:
        return self.stream.prompt_ids

    @property
    def blame(self) -> Blame | None:
        return self.stream.blame

    def listen(self, listener: Listener) -> None:
        self.stream.listen(lambda increments: listener([_bare(each) for each in increments]))

    def cancel(self) -> None:
        self.stream.cancel()


def _bare(increment: Increment) -> Increment:
    output = increment.output
    if output is None:
        return Increment(increment.id, increment.index)
    return Increment(increment.id, increment.index, output=_bare_output(output))


def _bare_output(output: RequestOutput) -> RequestOutput:
    """Ended by its length, were the token drawn the end of the text too."""
    drawn = output.finish_reason in ("stop", "length")
    return replace(
        output,
        text="",
        token_ids=(),
        logprobs=None if output.logprobs is None else (),
        finish_reason="length" if drawn else output.finish_reason,
        drafted=0,
        accepted=0,
    )
