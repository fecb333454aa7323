"""encode: make rows of the images of requests, which the model takes in place of tokens.

An image is encoded in a step before the one that computes its tokens, while that step runs for
others: the rows are keyed, and pass from the encoder to the request by a lease of the plan. Which
images are encoded in a step is decided with its rows (`requests/encodings.py`). With a model that
reads text alone there are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..graph.declare import op
from ..graph.node import OWNER, State
from ..graph.parameters import given, read, settings, update
from ..requests.attachments import ENCODE
from .kind import NodeKind
from .options import Options
from .values import BATCH, DEVICE, ENCODED, ENCODES, FAILURES, PAGES, TARGET

if TYPE_CHECKING:
    import torch

    from ..models.causal_lm import CausalLM
    from ..requests.attachments import Encode
    from ..requests.batch import StepBatch
    from .data import RequestFailures
    from .ops.encoding import EncodedRows


MOST_PIXELS = 178_956_970
"""Of an image that Pillow opens: twice its `Image.MAX_IMAGE_PIXELS`."""


class EncodeOptions(Options):
    """Which images are taken, and how many are kept encoded."""

    rows: int = Field(
        default=4096,
        ge=16,
        le=1 << 20,
        description="Encoded tokens that are kept at the same time; an image of more is refused.",
    )
    images_per_step: int = Field(
        default=1, ge=1, le=64, description="Images encoded in a step, at most."
    )
    images_per_prompt: int = Field(
        default=16, ge=1, le=1024, description="Images of a prompt, at most."
    )
    max_bytes: int = Field(
        default=16 << 20, ge=1, le=1 << 30, description="Bytes of an image file, at most."
    )
    max_pixels: int = Field(
        default=1 << 25,
        ge=1,
        le=MOST_PIXELS,
        description="Pixels of an image before it is resized, at most.",
    )


def _new_encoded(
    options: EncodeOptions = settings(EncodeOptions),
    target: CausalLM = given(TARGET),
    device: torch.device = given(DEVICE),
) -> EncodedRows:
    from .ops.encoding import PAGE, EncodedRows

    width = target.encoded_width
    pages = options.rows // PAGE if width else 0
    return EncodedRows(pages, width, options.images_per_step, target.dtype, device)


ENCODED_ROWS: State[EncodedRows] = State(
    ENCODED, make=_new_encoded, keys=PAGES, leases=((ENCODE, OWNER, 1),)
)
"""What was made of images, until the model has taken it in.

That is a step later, whatever an encoding is assumed to take: the one forward pass that could have
waited for it works meanwhile.
"""


@op(writes=ENCODES)
def list_encodes(batch: StepBatch = read(BATCH)) -> tuple[Encode, ...] | None:
    """The images that were decided on with the rows."""
    return batch.encodes or None


@op(writes=FAILURES)
def encode(
    encodes: tuple[Encode, ...] | None = read(ENCODES),
    encoded: EncodedRows = update(ENCODED_ROWS, users=ENCODE),
    target: CausalLM = given(TARGET),
) -> RequestFailures:
    """Run the model's encoder over each image; whose cannot be encoded."""
    return () if encodes is None else encoded.encode(target, encodes)


KIND = NodeKind(
    "encode",
    "run the model's encoder over images, for the steps that take them in",
    host=(list_encodes,),
    device=(encode,),
    stream="encoding",
    options=EncodeOptions,
    stages="all",
)
