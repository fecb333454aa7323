"""send: on every stage but the last, hand hidden states on to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.parameters import given, read
from .kind import NodeKind
from .values import HIDDEN, LINKS

if TYPE_CHECKING:
    from torch import Tensor

    from .links import Links


@op
def send(hidden: Tensor | None = read(HIDDEN), links: Links = given(LINKS)) -> None:
    """Send `hidden[T, F]`; it comes back when the next stage has it."""
    if hidden is not None:
        links.send(hidden)


KIND = NodeKind("send", "send hidden states to the next stage", device=(send,), stream="send")
