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
    rows: int  # tokens of an image
    context_length: int

    @staticmethod
    def of(config: PipelineConfig, model: CausalLM, context_length: int) -> Images | None:
        """Those of a pipeline; None: it encodes none."""
        found = (node for node in config.nodes.values() if isinstance(node, EncodeOptions))
        options = next(found, None)
        if options is None or model.encoder is None:
            return None
        reader = ImageReader(config.model.name, options.max_bytes, options.max_pixels)
        most, rows = options.images_per_prompt, options.rows
        return Images(model.encoder, reader, most, rows, context_length)

    def illustrated(self, ids: Sequence[int], sources: Sequence[str], *, files: bool) -> Encoded:
        """The prompt in which each placeholder stands for the next image.

        An image of more tokens than there is room for is refused before it is decoded. `files`:
        whether a source may be a file of this machine. Raises `RequestError`.
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
        images: list[Pixels] = []
        tokens = len(ids) - len(places)
        for index, source in enumerate(sources):
            try:
                picture = self.reader.open(source, files=files)
                count = self.encoder.tokens((1, 1, picture.patches))
                tokens += count
                if (said := self._refuse_reason(count, tokens)) is not None:
                    raise RequestError(f"image {index}: {said}", code="SW-LENGTH")
                images.append(self.reader.pixels(picture))
            except ImageError as error:
                raise RequestError(f"image {index}: {error}") from error
        return self._placed(ids, images)

    def _refuse_reason(self, count: int, tokens: int) -> str | None:
        """Why there is no room for an image of `count` tokens, `tokens` with those of the prompt
        and the images before it, or None.
        """
        if count > self.rows:
            return (
                f"it takes {count} tokens, but there is room for {self.rows} encoded ones: make it "
                "smaller, or raise `rows` of the node that encodes"
            )
        if tokens >= self.context_length:
            return (
                f"with it the prompt has {tokens} tokens; the context of {self.context_length} "
                "tokens must hold it and at least one more: make images smaller"
            )
        return None

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
