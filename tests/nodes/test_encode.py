"""What the node that encodes images may be told."""

import pytest
from PIL import Image
from pydantic import ValidationError

from stepweave.nodes.encode import MOST_PIXELS, EncodeOptions


def test_no_more_pixels_are_allowed_than_are_opened() -> None:
    assert Image.MAX_IMAGE_PIXELS is not None
    assert MOST_PIXELS == 2 * Image.MAX_IMAGE_PIXELS
    assert EncodeOptions(max_pixels=MOST_PIXELS).max_pixels == MOST_PIXELS
    with pytest.raises(ValidationError, match="max_pixels"):
        EncodeOptions(max_pixels=MOST_PIXELS + 1)
