"""eagle3: propose tokens with an EAGLE-3 head, from the hidden states of several layers."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from ..options import ModelName
from .eagle import KIND as EAGLE
from .eagle import EagleOptions


class Eagle3Options(EagleOptions):
    """Options of a drafter that is an EAGLE-3 head."""

    model: ModelName = Field(
        default="embedded-eagle3",
        description="The head: a directory, or a hub name. Default: that of the embedded model.",
    )


KIND = replace(
    EAGLE,
    name="eagle3",
    summary="propose k tokens per row with an EAGLE-3 head on the states of several layers",
    options=Eagle3Options,
)
