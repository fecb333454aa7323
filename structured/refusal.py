"""Why a library does not serve a grammar, in a form that can be sent, compared and chosen from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .source import GrammarError

Cause = Literal["source", "unenforced", "limit", "library", "foreign"]
"""What a refusal comes from: the grammar itself, which no library can compile; a constraint that
would be ignored; a limit on the work of compiling; the library, in whose words it is then; or that
this library has no equal for what is asked."""


class Refusal(GrammarError):
    """A grammar that one library does not serve.

    Args:
        cause: what it comes from.
        reasons: at least one; each is a whole message, and each alone is enough to refuse.
    """

    def __init__(self, cause: Cause, reasons: Sequence[str]) -> None:
        super().__init__(reasons[0])
        self.cause: Cause = cause
        self.reasons = tuple(reasons)


def refused(kind: str, error: BaseException) -> Refusal:
    """What a library raised for a grammar of some kind, as a refusal."""
    if isinstance(error, Refusal):
        return error
    # A `SystemError` is what comes of a library that has no memory left to make its exception of.
    if isinstance(error, MemoryError | SystemError) or "bad_alloc" in str(error):
        return out_of_memory(kind)
    if isinstance(error, GrammarError):  # said by us, with its kind in front
        return Refusal("source", [str(error)])
    return Refusal("library", [f"{kind}: {reason(error)}"])


def out_of_memory(kind: str) -> Refusal:
    """The refusal of a grammar whose compilation was given no more memory."""
    return Refusal("limit", [f"{kind}: compiling takes too much memory; {SMALLER}"])


SMALLER = "make it smaller (fewer optional properties, alternatives or bounded repetitions)"
"""What helps against every limit on the work of compiling."""


def is_library_error(error: BaseException) -> bool:
    """An ordinary exception, or a panic of a library written in Rust, which is none in Python."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def reason(error: BaseException) -> str:
    """What the user can act on, without the time and file that XGrammar puts in front."""
    # "[12:00:00] /project/cpp/x.cc:17: Check failed: (…) is false: what matters"
    text = str(error).strip()
    if text.startswith("[") and ".cc:" in text:
        text = text.split(".cc:", 1)[1].split(":", 1)[-1].strip()
        if text.startswith("Check failed:") and " is false:" in text:
            text = text.split(" is false:", 1)[1].strip()
    return text or type(error).__name__
