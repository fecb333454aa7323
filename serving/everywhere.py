"""A grammar that every rank of a group has compiled before its request begins."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING

from ..structured.backend import CompiledGrammar
from ..structured.grammar import GrammarError, GrammarSpec

if TYPE_CHECKING:
    from ..distributed.tasks import Tasks


def compiled_everywhere(
    tasks: Tasks, spec: GrammarSpec, reasoning: bool | None, own: Future[CompiledGrammar]
) -> Future[CompiledGrammar]:
    """The grammar of rank 0, `own`, when the other ranks have compiled it, too.

    The future has a `GrammarError` where one of them cannot, or compiles it otherwise, and
    `GroupEnded` where the group ends before.
    """
    from ..distributed.errors import GroupEnded  # which one rank alone needs nothing of

    found: Future[CompiledGrammar] = Future()

    def done(everywhere: Future[None]) -> None:
        if not found.set_running_or_notify_cancel():
            return  # its request has been cancelled meanwhile
        error = everywhere.exception()
        if error is None:
            found.set_result(own.result())
        else:
            known = isinstance(error, GrammarError | GroupEnded)
            found.set_exception(error if known else GrammarError(f"{error}"))

    task = {"kind": spec.kind, "source": spec.source, "reasoning": reasoning}
    tasks.everywhere(task, as_text(own)).add_done_callback(done)
    return found


def as_text(compiled: Future[CompiledGrammar]) -> Future[str]:
    """What has to be the same of a grammar on every rank: its library, and what that leaves out."""
    text: Future[str] = Future()

    def say(done: Future[CompiledGrammar]) -> None:
        try:
            grammar = done.result()
        except (Exception, CancelledError) as error:
            text.set_exception(error)
        else:
            text.set_result(" ".join((*grammar.notes, *grammar.warnings)))

    compiled.add_done_callback(say)
    return text
