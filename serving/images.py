"""Prompts with images: each placeholder becomes as many tokens as its image has rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..configs.schema import PipelineConfig
from ..models.causal_lm import CausalLM
from ..models.images import ImageError, ImageReader, digest_of
from ..models.vision import FAMILIES, Encoder, Pixels, Span
from ..nodes.encode import EncodeOptions
from ..requests.attachments import Attachment, Axes
from ..requests.params import RequestError


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as tokens, and what some of them stand for."""

    ids: tuple[int, ...]
    attachments: tuple[Attachment, ...] = ()
    axes: Axes | None = None


@dataclass(frozen=True)
class Images:
    """Puts images into the prompts of one model."""

    encoder: Encoder
    reader: ImageReader
    most: int  # images of a prompt

    @staticmethod
    def of(config: PipelineConfig, model: CausalLM) -> Images | None:
        """Those of a pipeline; None: it encodes none."""
        found = (node for node in config.nodes.values() if isinstance(node, EncodeOptions))
        options = next(found, None)
        if options is None or model.encoder is None:
            return None
        reader = ImageReader(config.model.name, options.max_bytes, options.max_pixels)
        return Images(model.encoder, reader, options.images_per_prompt)

    def illustrated(self, ids: Sequence[int], sources: Sequence[str], *, files: bool) -> Encoded:
        """The prompt in which each placeholder stands for the next image.

        `files`: whether a source may be a file of this machine. Raises `RequestError`.
        """
        places = [at for at, token in enumerate(ids) if token == self.encoder.image_token]
        if len(places) != len(sources):
            raise RequestError(
                f"the prompt has {len(places)} placeholders for images, and {len(sources)} images"
            )
        if len(sources) > self.most:
            raise RequestError(f"the prompt has {len(sources)} images, more than {self.most}")
        if any(after - at == 1 for at, after in pairwise(places)):
            raise RequestError("two images of the prompt have no token between them")
        images = [self._read(source, index, files) for index, source in enumerate(sources)]
        return self._placed(ids, images)

    def _read(self, source: str, index: int, files: bool) -> Pixels:
        try:
            return self.reader.read(source, files=files)
        except ImageError as error:
            raise RequestError(f"image {index}: {error}") from error

    def _placed(self, ids: Sequence[int], images: Sequence[Pixels]) -> Encoded:
        if not images:
            return Encoded(tuple(ids))
        tokens: list[int] = []
        attached: list[Attachment] = []
        left = iter(images)
        for token in ids:
            count = 1
            if token == self.encoder.image_token:
                image = next(left)
                count = self.encoder.tokens(image.grid)
                attached.append(Attachment(len(tokens), count, digest_of(image), image))
            tokens += [token] * count
        spans = [Span(each.start, image.grid) for each, image in zip(attached, images, strict=True)]
        return Encoded(tuple(tokens), tuple(attached), Axes(*self.encoder.axes(tokens, spans)))


def illustrated(
    images: Images | None, ids: Sequence[int], sources: Sequence[str], *, files: bool
) -> Encoded:
    """The prompt with its images. Raises `RequestError`, where none are served too."""
    if images is not None:
        return images.illustrated(ids, sources, files=files)
    if sources:
        raise RequestError(
            "the prompt has images, and nothing encodes them here: that takes a model of type "
            f"{' or '.join(FAMILIES)} in a pipeline with a node `encode`, such as `async_vision`, "
            "on one engine"
        )
    return Encoded(tuple(ids))
