"""What encoders have made of images, until the model has taken it in."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...models.causal_lm import CausalLM
from ...models.memory import room_for
from ...requests.attachments import Encode, Room

PAGE = 16
"""Rows of a page: an image leaves on average half of its last one unused."""


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
    def encode(self, target: CausalLM, encodes: Sequence[Encode]) -> None:
        """Encode one image after the other, each into its pages: alone, so that no bit of it
        depends on the others.
        """
        for each in encodes:
            made = target.encode(each.data)
            for page, part in zip(each.pages, torch.split(made, PAGE), strict=True):
                self.rows[page * PAGE : page * PAGE + len(part)] = part
