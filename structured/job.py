"""What a grammar library is called with for one grammar: text, small enough to be sent about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .refusal import SMALLER, Refusal

MAX_JOB_BYTES: Final = 1024 * 1024
"""Longest text for a library, in UTF-8 bytes: four times the longest source. Reading it takes the
interpreter some ten milliseconds, in which no other thread of the engine runs."""


@dataclass(frozen=True)
class Job:
    """One call of a library.

    Attributes:
        call: "lark" for llguidance; "json", "regex", "ebnf" or "structural_tag" for XGrammar.
        source: the text that the call takes.
        any_whitespace: of XGrammar's call "json".
        without_controls: tokens with control characters are to be taken out of every mask, since
            the library lets them in.
        warnings: constraints that are not enforced, each with its place.
    """

    call: str
    source: str
    any_whitespace: bool = False
    without_controls: bool = False
    warnings: tuple[str, ...] = ()

    def checked(self, kind: str) -> Job:
        """This job. Raises `Refusal` if its text is too long."""
        size = len(self.source.encode())
        if size > MAX_JOB_BYTES:
            raise Refusal(
                "limit",
                [f"{kind}: written out it has {size} bytes, more than {MAX_JOB_BYTES}; {SMALLER}"],
            )
        return self
