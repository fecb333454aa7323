"""One prompt that was handed in to a service, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Literal

from ..requests.increment import Deliver
from ..requests.request import Request, RequestOutput
from ..structured.backend import CompiledGrammar
from ..structured.grammar import GrammarError

Blame = Literal["grammar", "engine"]
"""What made a request end with an error: its grammar could not be compiled, or a whole run failed.
"""


@dataclass(eq=False)
class Ticket:
    """One prompt that was handed in, and what becomes of it: n requests."""

    id: str
    prompt: str
    requests: Sequence[Request]
    deliver: Deliver
    grammar: Future[CompiledGrammar] | None = None  # without it they do not begin
    failure: BaseException | None = None  # what ended the engine's run, and these requests with it
    outputs: dict[int, RequestOutput] = field(default_factory=dict)  # of those that have ended

    @property
    def prompt_ids(self) -> Sequence[int]:
        """The tokens of the prompt."""
        return self.requests[0].prompt_ids

    @property
    def n(self) -> int:
        """How many completions there will be: each has one increment with its output."""
        return len(self.requests)

    @property
    def ended(self) -> bool:
        """Whether every completion has its output."""
        return len(self.outputs) == len(self.requests)

    @property
    def blame(self) -> Blame | None:
        """What made it end with an error, if it was neither the request itself nor a step."""
        asked = self.grammar
        compiled = asked is not None and asked.done() and not asked.cancelled()
        if asked is not None and compiled and isinstance(asked.exception(), GrammarError):
            return "grammar"
        return "engine" if self.failure is not None else None

    def output(self) -> RequestOutput:
        """What it has come to; whatever has not ended counts as cancelled."""
        choices = tuple(
            self.outputs.get(request.index) or request.output() for request in self.requests
        )
        if len(choices) == 1:
            return choices[0]
        return replace(choices[0], id=self.id, choices=choices)
