"""What a message of a conversation says: a text, or parts, some of which may be images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from ..requests.keys import Keys, WholeCharacters

MAX_TEXT = 4 * 1024 * 1024
MAX_IMAGE = 128 * 1024 * 1024

Text = Annotated[str, Field(max_length=MAX_TEXT), WholeCharacters]
ImageSource = Annotated[str, Field(min_length=1, max_length=MAX_IMAGE), WholeCharacters]
"""The path of a file, or a `data:` URL with base64."""


class TextPart(Keys):
    """A part of a message's content."""

    type: Literal["text"]
    text: Text


class ImagePart(Keys):
    """An image between the texts of a message."""

    type: Literal["image"]
    image: ImageSource


class ImageUrl(Keys):
    """A `data:` URL. How much of an image is looked at follows from its size alone."""

    url: ImageSource
    detail: Literal["auto"] | None = None


class ImageUrlPart(Keys):
    """The same as a part of type `image`, in the words of OpenAI."""

    type: Literal["image_url"]
    image_url: ImageUrl


Parts = tuple[TextPart | ImagePart, ...]


def _joined(content: Any) -> Any:
    """Text parts as one text, with a line break between them. Raises `ValueError` for others."""
    if not isinstance(content, list | tuple):
        return content
    return "\n".join([_part(part, index, ()).text for index, part in enumerate(content)])


def _with_images(content: Any, text: ValidatorFunctionWrapHandler) -> Any:
    """The same where all parts are texts; else the parts. Raises `ValueError` for others."""
    if not isinstance(content, list | tuple):
        return text(content)
    parts = tuple(_part(part, index, ("image", "image_url")) for index, part in enumerate(content))
    if all(isinstance(part, TextPart) for part in parts):
        return text(_joined(content))
    return parts


def _part(part: Any, index: int, images: Sequence[str]) -> Any:
    """A part that has been checked. Raises `ValueError`."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in images:
        return _image(part, index)
    if not isinstance(part, Mapping) or not isinstance(part.get("text"), str) or kind != "text":
        typed = kind != "text" and kind is not None
        what = f"is of type {kind!r}" if typed else "is not a text part"
        others = (
            'a part {"type": "image_url", "image_url": {"url": "data:…"}} is an image; videos and '
            "other media are not served"
            if images
            else "only messages of the user may have images"
        )
        raise ValueError(
            f'part {index} {what}: a content is a text, or a list of {{"type": "text", '
            f'"text": …}}; {others}'
        )
    if unknown := sorted(map(str, set(part) - {"type", "text"})):
        raise ValueError(f"part {index}: unknown key {unknown[0]!r}")
    return TextPart(type="text", text=part["text"])


def _image(part: Mapping[str, Any], index: int) -> ImagePart:
    kind = part["type"]
    found = part.get(kind)
    if kind == "image_url" and isinstance(found, Mapping):
        if (detail := found.get("detail", "auto")) not in ("auto", None):
            raise ValueError(
                f"part {index}: detail {detail!r} is not supported: leave it out, an image is "
                "looked at as its size and the model's own limits have it"
            )
        if unknown := sorted(map(str, set(found) - {"url", "detail"})):
            raise ValueError(f"part {index}: unknown key {unknown[0]!r}")
        found = found.get("url")
    if unknown := sorted(map(str, set(part) - {"type", kind})):
        raise ValueError(f"part {index}: unknown key {unknown[0]!r}")
    if not isinstance(found, str) or not 0 < len(found) <= MAX_IMAGE:
        raise ValueError(f"part {index} is of type {kind!r}, and has no image: give a `data:` URL")
    return ImagePart(type="image", image=found)


def _plain(content: str | Parts) -> Any:
    if isinstance(content, str):
        return content
    return [part.model_dump() for part in content]


Content = Annotated[
    Text, BeforeValidator(_joined, json_schema_input_type=str | tuple[TextPart, ...])
]
"""What a message says: a text, or parts that become one."""

UserContent = Annotated[
    Text,
    WrapValidator(
        _with_images,
        json_schema_input_type=str | tuple[TextPart | ImagePart | ImageUrlPart, ...],
    ),
    PlainSerializer(_plain),
]
"""The same with images, which stay where they stand between the texts."""


def text_of(content: str | Parts) -> str:
    """The texts of a content."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, TextPart))
