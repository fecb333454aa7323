"""Encoders of images, by the model's own code: Qwen2.5-VL and Qwen3-VL.

An image is encoded alone, once, and its rows are placed in the decoder's passes (`placed.py`). Its
tokens have positions of three axes, for time, height and width, and the text behind it goes on from
the largest: so a token's position is not its place in the text, by which its keys are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

FAMILIES = ("qwen2_5_vl", "qwen3_vl")
"""The model types that are served with images."""

Grid = tuple[int, int, int]
"""Patches of an image in time, height and width."""


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """An image as an encoder takes it: `patches[G, F]`, the G patches of its grid.

    As bytes, which nobody can change.
    """

    patches: bytes  # float32
    grid: Grid


class Span(NamedTuple):
    """The tokens from `start` on that stand for an image of that grid."""

    start: int
    grid: Grid


class Encoder:
    """The part of a model that makes rows of images.

    `width` of a row: the hidden size, and once more for each of the first `depth` layers that has a
    part of it added.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._base: Any = model.base_model
        config: Any = model.config
        self.image_token = int(config.image_token_id)
        self.depth = len(getattr(config.vision_config, "deepstack_visual_indexes", None) or ())
        self.merge = int(config.vision_config.spatial_merge_size)
        self.width = int(config.get_text_config(decoder=True).hidden_size) * (1 + self.depth)

    @classmethod
    def of(cls, model: PreTrainedModel) -> Encoder | None:
        """That of a model; None: it reads text alone."""
        return cls(model) if model.config.model_type in FAMILIES else None

    def attend(self) -> None:
        """Give it attention of its own: it has nothing to do with the paged cache."""
        self._base.visual.set_attn_implementation("sdpa")

    def tokens(self, grid: Grid) -> int:
        """How many tokens an image takes."""
        time, height, width = grid
        return time * height * width // self.merge**2

    def encode(self, pixels: Pixels) -> Tensor:
        """The rows of an image, `[tokens, width]`."""
        visual = self._base.visual
        given = np.frombuffer(pixels.patches, dtype=np.float32).reshape(prod(pixels.grid), -1)
        patches = torch.tensor(given, device=visual.device)
        grid = torch.tensor([pixels.grid], device=visual.device)
        made = self._base.get_image_features(patches, grid, return_dict=True)
        parts = [made.pooler_output, *(getattr(made, "deepstack_features", None) or ())]
        return torch.cat([each for (each,) in parts], dim=1)

    def axes(self, ids: Sequence[int], spans: Sequence[Span]) -> tuple[bytes, int]:
        """What is added to the places of a prompt's tokens for their positions, int64 `[3, P]`, and
        to those of all tokens behind it.
        """
        kinds = torch.zeros(1, len(ids), dtype=torch.int32)
        for span in spans:
            kinds[:, span.start : span.start + self.tokens(span.grid)] = 1
        positions, behind = self._base.get_rope_index(
            input_ids=torch.tensor([ids]),
            mm_token_type_ids=kinds,
            image_grid_thw=torch.tensor([span.grid for span in spans]),
        )
        added = positions[:, 0] - torch.arange(len(ids))
        return added.numpy().tobytes(), int(behind)
