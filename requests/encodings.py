"""The places in which encoders leave what stands for tokens: who has which, and from which step on.

An encoder runs in a step of its own choosing, beside the rows of other requests. Its rows lie in
*pages*, which pass from the encoder (`ENCODE`) to the request (`OWNER`) by the leases of the plan:
these say how many steps later the model may read them. Until then the request sits out, and others
go on. Pages go back as soon as the last token that they stand for is scheduled; who is computed
anew has them made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph.node import OWNER
from .attachments import ENCODE, Attachment, Encode, Room
from .pools import KeyPool, Leases

if TYPE_CHECKING:
    from .request import Request


@dataclass(slots=True)
class _Kept:
    """The pages of one attachment; the model may read them in step `ready` or later."""

    attachment: Attachment
    pages: list[int]
    ready: int


class Encodings:
    """Who has which pages, and what each step encodes. `leases` are those of the pages."""

    def __init__(self, room: Room, leases: Leases) -> None:
        self.room = room
        self.pool = KeyPool(range(room.pages), leases)
        self._after = max(0, leases.get((ENCODE, OWNER), 0))
        self._short = False  # somebody wants pages that there are not in this step
        self._kept: dict[int, list[_Kept]] = {}  # by request, in the order of the prompt
        self._encodes: list[Encode] = []  # of this step

    def pages_of(self, attachment: Attachment) -> int:
        """How many pages its rows fill."""
        return -(-attachment.count // self.room.rows)

    def refuse_reason(self, attachments: Sequence[Attachment]) -> str | None:
        """Why these can never be encoded, or None."""
        room = self.room.pages * self.room.rows
        for each in attachments:
            if self.pages_of(each) > self.room.pages:
                return (
                    f"what the prompt brings at token {each.start} takes {each.count} tokens, but "
                    f"there is room for {room} encoded ones: raise `rows` of the node that encodes"
                )
        return None

    def reach(self, request: Request, step: int) -> int:
        """How many tokens of a request that runs may be computed by `step`, and encode what is to
        come, as far as there are pages.
        """
        if not request.attachments:
            return request.prefill_target
        kept = self._kept.setdefault(request.uid, [])
        waiting = [each for each in request.attachments if each.end > request.prefilled]
        for attachment in waiting[len(kept) :]:
            if not self._begin(request.uid, kept, attachment, step):
                break
        ready = sum(1 for each in kept if each.ready <= step)
        return waiting[ready].start if ready < len(waiting) else request.prefill_target

    def _begin(self, uid: int, kept: list[_Kept], attachment: Attachment, step: int) -> bool:
        """Encode in this step, if there is room for it.

        Behind somebody who has none, nobody takes pages: small ones would keep a large one waiting
        for ever.
        """
        none = self._short or len(self._encodes) >= self.room.most
        pages = None if none else self.pool.grant(self.pages_of(attachment), step, ENCODE)
        if pages is None:
            self._short = True
            return False
        ready = step + self._after
        self.pool.hand_over(pages, step, ENCODE, OWNER, ready)
        kept.append(_Kept(attachment, pages, ready))
        self._encodes.append(Encode(uid, attachment, tuple(pages)))
        return True

    def runs(self, request: Request, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Which tokens from `start` to `end` stand for encoded rows: (token, row, how many)."""
        size = self.room.rows
        for kept in self._kept.get(request.uid, ()):
            first = kept.attachment.start
            for number, page in enumerate(kept.pages):
                begins = max(start, first + number * size)
                ends = min(end, kept.attachment.end, first + (number + 1) * size)
                if begins < ends:
                    yield (
                        begins - start,
                        page * size + begins - first - number * size,
                        ends - begins,
                    )

    def passed(self, request: Request, step: int) -> None:
        """Its tokens are scheduled as far as `request.prefilled`: what lies before is done with."""
        kept = self._kept.get(request.uid, [])
        while kept and kept[0].attachment.end <= request.prefilled:
            self.pool.release(kept.pop(0).pages, step)

    def release(self, request: Request, step: int) -> None:
        """Take all pages back, of a request that is preempted or ends."""
        for kept in self._kept.pop(request.uid, ()):
            self.pool.release(kept.pages, max(step, kept.ready))

    def any_awaited(self, step: int) -> bool:
        """Whether a request waits for what is being encoded, or until something can be."""
        return self._short or any(
            kept.ready > step for every in self._kept.values() for kept in every
        )

    @property
    def of_step(self) -> tuple[int, ...]:
        """For whom something is encoded in the step that is scheduled now."""
        return tuple(each.uid for each in self._encodes)

    def take(self) -> tuple[Encode, ...]:
        """What the step that is scheduled now encodes, once."""
        found = tuple(self._encodes)
        self._encodes.clear()
        self._short = False
        return found

    def check_conservation(self) -> None:
        """Every page is in one place. Raises `PoolError`."""
        self.pool.check_conservation()
        held = {page for every in self._kept.values() for kept in every for page in kept.pages}
        assert self.pool.held == held, "pages of encodings leaked"
