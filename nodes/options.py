"""What the options of a node kind are: the keys that a pipeline file gives beside the node's own.

Each kind has one model of its options. It gives their defaults, checks what a file says, and
describes them in the reference and to editors.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MODEL = "names a model"
"""What marks such a key: two names may be of one model, as on two machines."""

ModelName = Annotated[
    str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$"), MODEL
]
"""A shipped model, a directory or a hub name."""


class Options(BaseModel):
    """The options of a kind that has none, and the base of those that have some."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


MOST_DRAFTS = 16
"""Drafts of a row and step, at most, where each comes after the one before."""


class DrafterOptions(Options):
    """What every drafter can be told."""

    tokens: int = Field(
        default=3, ge=1, le=MOST_DRAFTS, description="Tokens drafted per step and row, at most."
    )
