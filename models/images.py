"""Images as callers hand them in, to what an encoder takes: by the model's own image processor.

A source is the path of a file, or a `data:` URL. Nothing is fetched: an address in a request would
have this machine ask others whatever a client likes. What a file says of its size is read before
any of it is expanded, and how many patches it comes to follows from that. Pillow is imported when
the first image comes.
"""

from __future__ import annotations

import re
import warnings
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.errors import shortly
from .errors import ModelError
from .source import from_local_then_hub, located, quiet
from .vision import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""What is decoded; of an animation the first picture."""

_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_OPENING = Lock()
"""Filters of warnings belong to the process: of two threads that change them for a moment, one
could leave them changed for good."""
_ADDRESS = re.compile(r"(data|[a-z][a-z0-9+.-]{1,20}(?=://)):", re.IGNORECASE)
"""A colon alone makes no address: names of files have some."""
_PLACE = re.compile(r"(?: object)? at 0x[0-9a-f]+", re.IGNORECASE)
"""Where something lies in memory, as Python shows what has no other name."""


class ImageError(ValueError):
    """An image that cannot be taken, and why."""


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An image of which nothing is decoded yet; `patches`: how many it comes to."""

    image: Image
    patches: int


class ImageReader:
    """Reads images for the model of a checkpoint. Any number of threads may call it."""

    def __init__(self, checkpoint: str, max_bytes: int, max_pixels: int) -> None:
        self._checkpoint, self._max_bytes, self._max_pixels = checkpoint, max_bytes, max_pixels

    def open(self, source: str, *, files: bool) -> Picture:
        """An image as it was sent. `files`: whether it may be a file of this machine.

        Raises `ImageError`.
        """
        raw = self._bytes(source, files)
        with _readable():
            image = self._opened(raw)
            width, height = image.size  # turned on its side it has as many
            return Picture(image, self._processor.get_number_of_image_patches(height, width))

    def pixels(self, picture: Picture) -> Pixels:
        """The patches of an image. Raises `ImageError`."""
        with _readable():
            from PIL import ImageOps

            upright = ImageOps.exif_transpose(picture.image).convert("RGB")
            made = self._processor(images=[upright], return_tensors="np")
            patches, (grid,) = made["pixel_values"], made["image_grid_thw"].tolist()
        return Pixels(np.ascontiguousarray(patches, dtype=np.float32).tobytes(), tuple(grid))

    def _bytes(self, source: str, files: bool) -> bytes:
        most = self._max_bytes
        if found := _DATA_URL.match(source):
            data = source[found.end() :]
            if len(data) * 3 // 4 > most + 2:
                raise ImageError(f"it has more than {most} bytes")
            try:
                raw = b64decode(data, validate=True)
            except ValueError as error:
                raise ImageError(f"its data URL is not base64: {error}") from error
        elif (kind := _ADDRESS.match(source)) or not files:
            what = f"a {kind[1].lower()} address is not fetched" if kind else "no file is opened"
            also = ", or the path of a file" if files else ""
            raise ImageError(f"{what}: send its contents as `data:image/png;base64,…`{also}")
        else:
            try:
                with Path(source).open("rb") as stream:
                    raw = stream.read(most + 1)
            except (OSError, ValueError) as error:
                raise ImageError(f"{source[:200]!r} cannot be opened: {shortly(error)}") from error
        if len(raw) > most:
            raise ImageError(f"it has more than {most} bytes")
        return raw

    def _opened(self, raw: bytes) -> Image:
        try:
            from PIL import Image, UnidentifiedImageError
        except ImportError as error:
            raise ImageError("images need Pillow: pip install 'stepweave[vision]'") from error
        with _OPENING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes, which are judged here
            try:
                image = Image.open(BytesIO(raw), formats=FORMATS)
            except UnidentifiedImageError as error:
                known = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
                raise ImageError(f"it cannot be read: it is no {known}") from error
        width, height = image.size
        if width * height > self._max_pixels:
            raise ImageError(
                f"it has {width} x {height} pixels, more than {self._max_pixels}: make it smaller"
            )
        return image

    @cached_property
    def _processor(self) -> Any:
        from transformers import AutoImageProcessor

        name = located(self._checkpoint)
        try:
            with quiet():
                return from_local_then_hub(AutoImageProcessor, name, backend="pil")
        except Exception as error:
            raise ModelError(
                f"{name}: its image processor cannot be loaded ({shortly(error)}); copy "
                "preprocessor_config.json from where its weights are from"
            ) from error


@contextmanager
def _readable() -> Iterator[None]:
    """Raises `ImageError` for what a decoder raises in the block, or the model's own processor."""
    try:
        yield
    except ImageError:
        raise
    except Exception as error:
        said = _PLACE.sub("", shortly(error))
        raise ImageError(f"it cannot be read: {said}") from error


def digest_of(pixels: Pixels) -> bytes:
    """Equal for equal patches in equal grids alone."""
    digest = blake2b(repr(pixels.grid).encode(), digest_size=16)
    digest.update(pixels.patches)
    return digest.digest()
