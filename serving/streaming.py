"""Outputs of a running call as an iterator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue

from ..requests.request import RequestOutput
from .runs import Listeners, Run


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Settled text of one prompt: `id` is that of its output, with n > 1 `id/index`.

    The last piece of each prompt has no text, and its `output`.
    """

    id: str
    text: str
    output: RequestOutput | None = None


class Call:
    """One call of `generate`, which may be cancelled before it has its turn."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._cancelled = False

    def begins(self, run: Run) -> None:
        self._run = run
        if self._cancelled:
            run.cancel()

    def cancel(self) -> None:
        self._cancelled = True
        if self._run is not None:
            self._run.cancel()


def pieces(call: Call, serve: Callable[[Listeners], object]) -> Iterator[TextPiece]:
    """What `serve` tells its listeners, while it runs on a thread of its own.

    It begins with the first piece that is asked for, and is cancelled when nobody asks any more.
    What it raises is raised here.
    """
    told: SimpleQueue[TextPiece | BaseException | None] = SimpleQueue()
    listeners = Listeners(
        on_text=lambda name, text: told.put(TextPiece(name, text)),
        on_output=lambda output: told.put(TextPiece(output.id, "", output)),
    )

    def work() -> None:
        try:
            serve(listeners)
            told.put(None)
        except BaseException as error:
            told.put(error)

    worker = threading.Thread(target=work, name="stepweave-stream", daemon=True)
    worker.start()
    try:
        while (piece := told.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece
    finally:
        call.cancel()
        worker.join()
