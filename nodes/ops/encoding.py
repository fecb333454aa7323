"""What encoders have made of images, until the model has taken it in."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...graph.errors import StepweaveError, shortly
from ...models.causal_lm import CausalLM
from ...models.memory import room_for
from ...requests.attachments import Attachment, Encode, Room
from ..data import RequestFailure, RequestFailures

PAGE = 16
"""Rows of a page: an image leaves on average half of its last one unused."""

NOT_OF_AN_IMAGE = (torch.AcceleratorError, StepweaveError)
"""Errors that no image is to blame for: a device of which nobody knows what it still computes, and
a fault of the graph. They are the step's. Memory that an image does not get is its own affair.
"""


class EncodedRows:
    """`rows[P · 16, E]`: pages of rows, each of which stands for one token.

    `room`: how much is in it, as the request table has to know.
    """

    fixed = True
    """Its tensor never moves: captured graphs know it by identity."""

    def __init__(
        self, pages: int, width: int, most: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises `NoMemory`."""
        self.room = Room(pages, PAGE, most)
        nbytes = pages * PAGE * width * dtype.itemsize
        with room_for(f"{pages * PAGE} encoded rows", nbytes, device, "lower nodes.encode.rows"):
            self.rows = torch.zeros(pages * PAGE, width, dtype=dtype, device=device)

    @torch.inference_mode()
    def encode(self, target: CausalLM, encodes: Sequence[Encode]) -> RequestFailures:
        """Encode one image after the other, each into its pages: alone, so that no bit of it
        depends on the others, and none fails with another.
        """
        failed = []
        for each in encodes:
            try:
                made = _made(target, each.attachment)
            except NOT_OF_AN_IMAGE:
                raise
            except Exception as error:  # the boundary: one request's image, one request's error
                where = f"the image at token {each.attachment.start} of the prompt"
                said = f"{where} cannot be encoded: {shortly(error)}"
                failed.append(RequestFailure(each.uid, said))
                continue
            for page, part in zip(each.pages, torch.split(made, PAGE), strict=True):
                self.rows[page * PAGE : page * PAGE + len(part)] = part
        return tuple(failed)


def _made(target: CausalLM, image: Attachment) -> Tensor:
    """The rows of an image, `[count, E]`: finite, for what is not stays in the KV cache.

    Raises `ValueError` for others, and what the encoder raises.
    """
    made = target.encode(image.data)
    if made.shape != (image.count, target.encoded_width):
        raise ValueError(
            f"its encoder made {tuple(made.shape)} numbers of it, not "
            f"{(image.count, target.encoded_width)}"
        )
    if not bool(made.isfinite().all()):
        raise ValueError("its encoder made numbers of it that are not finite")
    return made
