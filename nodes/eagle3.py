"""eagle3: propose tokens with an EAGLE-3 head, from the hidden states of several target layers.

What it computes is in `eagle.py`; the head says which layers it reads (arXiv:2503.01840).
"""

from __future__ import annotations

from pydantic import Field

from .drafter import Drafter, settled_spans
from .eagle import HeadOptions, propose
from .options import ModelName


class Eagle3Options(HeadOptions):
    """Options of an EAGLE-3 head."""

    model: ModelName = Field(
        default="embedded-eagle3",
        description="The head: a directory, or a hub name. Default: that of the embedded model.",
    )


KIND = Drafter(
    "eagle3",
    "propose k tokens per row with an EAGLE-3 head on hidden states of several target layers",
    propose,
    options=Eagle3Options,
    draws=True,
    spans=settled_spans,
)
