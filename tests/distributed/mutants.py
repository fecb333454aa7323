"""Run on each of two ranks: one thing is wrong, on rank 1 or with the log; what the group says."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

import torch

from stepweave import LLM
from stepweave.distributed.agreement import Agreement
from stepweave.distributed.errors import GroupEnded
from stepweave.distributed.inbox import LoggedInbox, ReplayedInbox
from stepweave.nodes.ops import windows
from stepweave.requests.inbox import Inbox
from stepweave.requests.step_rows import StepRows
from stepweave.requests.stopping import StopChecker
from stepweave.serving.engine import EngineError
from tests.distributed.launched import write

broken: Any = windows  # whose functions are replaced
FOLLOWS = os.environ["RANK"] == "1"
AT = 5
PROMPTS = ["Write a short story about a fox.", "Write a short story about a dog."]
PARAMS = {"max_tokens": 24, "ignore_eos": True}


def no_log() -> None:
    """Each rank takes in what its own callers hand in, when they do."""
    for inbox in (LoggedInbox, ReplayedInbox):
        for name in ("take", "submit_all", "cancel", "open", "close", "wait", "is_open", "over"):
            setattr(inbox, name, Inbox.__dict__[name])

    if FOLLOWS:
        submit = Inbox.submit_all

        def late(self: Inbox, requests: Any) -> None:
            submit(self, list(requests)[:1])  # the second comes too late to be seen at all

        ReplayedInbox.submit_all = late  # type: ignore[method-assign]


def no_agreement() -> None:
    """Nobody agrees, and from a step on the logits of rank 1 are nudged."""
    Agreement.__call__ = lambda self, *own: own  # type: ignore[method-assign]
    calls = 0
    drawn = broken.draw

    def nudged(rule: Any, rows: Any, logits: torch.Tensor, *rest: Any) -> Any:
        nonlocal calls
        calls += 1
        if FOLLOWS and calls > AT:
            logits = logits.roll(1, dims=-1)
        return drawn(rule, rows, logits, *rest)

    broken.draw = nudged


def one_raises() -> None:
    """On rank 1 the stop checker of a request raises, as a decoder of text may."""
    push, calls = StopChecker.push, 0

    def raising(self: StopChecker, *given: Any) -> Any:
        nonlocal calls
        calls += 1
        if FOLLOWS and calls > AT:
            raise ValueError("no such character")
        return push(self, *given)

    StopChecker.push = raising  # type: ignore[method-assign,assignment]


def op_raises() -> None:
    """On rank 1 an op raises."""
    drawn, calls = broken.draw, 0

    def raising(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if FOLLOWS and calls > AT:
            raise MemoryError("no room")
        return drawn(*given)

    broken.draw = raising


def all_raise() -> None:
    """An op raises once, on every rank alike: the requests of its step end, and no others."""
    drawn, calls = broken.draw, 0

    def raising(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == AT:
            raise MemoryError("no room")
        return drawn(*given)

    broken.draw = raising


def one_skips() -> None:
    """Rank 1 leaves a row out of a step."""
    chosen, calls = StepRows.chosen, 0

    def fewer(self: StepRows) -> Any:
        nonlocal calls
        rows = chosen(self)
        calls += 1
        return rows[1:] if FOLLOWS and calls > AT and len(rows) > 1 else rows

    StepRows.chosen = fewer  # type: ignore[method-assign]


def listener_raises() -> None:
    """On rank 1 a caller's listener raises."""


def killed() -> None:
    """Rank 1 is killed in the middle of a step."""
    ending_with(signal.SIGKILL)


def stopped() -> None:
    """Rank 1 is stopped in the middle of a step: nobody but its silence says so."""
    ending_with(signal.SIGSTOP)


def ending_with(number: int) -> None:
    # The launcher ends rank 0 as soon as rank 1 is gone: it is to say first what it has seen.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    drawn, calls = broken.draw, 0

    def ending(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if FOLLOWS and calls > AT:
            os.kill(os.getpid(), number)
        return drawn(*given)

    broken.draw = ending


MUTANTS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        no_log,
        no_agreement,
        one_raises,
        op_raises,
        all_raise,
        one_skips,
        listener_raises,
        killed,
        stopped,
    )
}


def tell(mutant: str) -> Callable[[str, str], None]:
    def on_text(id: str, text: str) -> None:
        if FOLLOWS and mutant == "listener_raises":
            raise ValueError("this listener is broken")

    return on_text


def served(mutant: str) -> dict[str, Any]:
    """What the group comes to: its failure, or the ends of its requests."""
    executor = "serial" if mutant == "all_raise" else "threads"
    more = {"model.dtype": "float64", "executor": executor, "model.parallel.silence_s": 3}
    llm = LLM(pipeline="async", tp=2, overrides=more)
    MUTANTS[mutant]()
    began = monotonic()
    try:
        outputs = llm.generate(PROMPTS, PARAMS, on_text=tell(mutant))
        again = llm.generate(PROMPTS[:1], PARAMS)
    except (GroupEnded, EngineError) as failure:  # the latter where it ended before the call
        return {"failure": failure.message, "seconds": monotonic() - began}
    llm.close()
    return {"ends": [[each.finish_reason, each.error] for each in (*outputs, *again)]}


if __name__ == "__main__":
    out, mutant = sys.argv[1:]
    found = served(mutant)
    write(out, found)
    sys.exit("failure" in found)  # then the launcher ends the other rank, though it be stopped
