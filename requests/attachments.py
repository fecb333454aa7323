"""What a request brings beside tokens: data of which an encoder makes what stands for some of them.

Between the tokens of a prompt are placeholders, all of one id. In place of their embeddings the
model takes *rows* that an encoder has made of an image, say: an attachment is such data and where
its rows stand. What the data are is the business of the encoder alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ENCODE = "encode"
"""The class of users of a keyed state that fills its pages."""


class Room(NamedTuple):
    """How much can be encoded: `pages` of `rows` each, and `most` attachments in a step."""

    pages: int = 0
    rows: int = 1
    most: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Attachment:
    """The tokens from `start` on, `count` of them, stand for what an encoder makes of `data`.

    `digest`: of all that its rows depend on, equal for equal data alone.
    """

    start: int
    count: int
    digest: bytes
    data: Any  # immutable, like all that a batch holds

    @property
    def end(self) -> int:
        """Behind its last token."""
        return self.start + self.count


class Encode(NamedTuple):
    """What to encode in a step, for which request, and the pages for its rows, in their order."""

    uid: int
    attachment: Attachment
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Axes:
    """Positions that have several axes, for a model whose attention is told such ones.

    They are given as what is added to a token's place in the text, since places are known before
    tokens are. Wang et al. 2024 (Qwen2-VL, arXiv:2409.12191) call it M-RoPE.
    """

    prompt: bytes  # [3, P] int64: of each token of the prompt
    behind: int  # of every token behind it, on all axes

    def of(self, start: int, count: int) -> npt.NDArray[np.int64]:
        """Of the tokens from `start` on, `[3, count]`."""
        import numpy as np

        known = np.frombuffer(self.prompt, dtype=np.int64).reshape(3, -1)[:, start : start + count]
        return np.pad(known, ((0, 0), (0, count - known.shape[1])), constant_values=self.behind)


def content_of(attachments: Iterable[Attachment], start: int, stop: int) -> bytes:
    """What the tokens from `start` to `stop` stand for beside themselves; empty for text."""
    return b"".join(
        each.digest + each.start.to_bytes(8, "little")
        for each in attachments
        if each.start < stop and start < each.end
    )
