"""Prompts as callers hand them in, to token ids as the model's tokenizer and template have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

from ..configs.contents import text_of
from ..configs.prompts import PromptLine, prompt_of
from ..configs.schema import PipelineConfig
from ..models.chat import Chat, ChatError, TooLong
from ..models.tokenizer import load_tokenizer, most_characters, too_long
from ..requests.complaints import shown
from ..requests.params import RequestError, SamplingParams
from .images import Encoded, Images, illustrated

Prompt = str | Mapping[str, Any] | PromptLine | Sequence[int] | Encoded


class Prompts:
    """Reads and encodes the prompts of one pipeline. `images`: what puts images into them.

    Every method raises `RequestError` or `ConfigError` for what cannot be served, and nothing else.
    """

    def __init__(
        self, config: PipelineConfig, context_length: int, images: Images | None = None
    ) -> None:
        self.images = images
        self._model = config.model
        self.tokenizer = load_tokenizer(config.model.name)
        self.most_characters = most_characters(self.tokenizer, context_length)
        self._chat = Chat(self.tokenizer, self.most_characters)

    def read(self, prompt: Prompt, request_id: str) -> PromptLine | Encoded:
        """A prompt as a line, or as token ids."""
        if isinstance(prompt, Encoded):
            return prompt
        if isinstance(prompt, str | Mapping | PromptLine):
            return prompt_of(prompt, request_id)
        return illustrated(self.images, _token_ids(prompt), (), files=True)

    def params(self, prompt: PromptLine | Encoded, given: SamplingParams | None) -> SamplingParams:
        """Those given, else greedy decoding; what a line says itself goes before."""
        given = given or SamplingParams()
        if not isinstance(prompt, PromptLine):
            return given
        own = prompt.parameters
        if "structured_outputs" in own:
            own["reasoning"] = None  # its own
        return replace(given, **own) if own else given

    def encode(self, prompt: PromptLine | Encoded) -> Encoded:
        """A prompt as tokens, with its images."""
        if isinstance(prompt, Encoded):
            return prompt
        if prompt.prompt_token_ids is not None:
            ids = list(prompt.prompt_token_ids)
            return illustrated(self.images, ids, prompt.images, files=True)
        messages, sources = without_images(
            [message.model_dump() for message in prompt.messages or ()]
        )
        ids = self._ids(prompt, messages)
        return illustrated(self.images, ids, [*sources, *prompt.images], files=True)

    def _ids(self, prompt: PromptLine, messages: list[dict[str, Any]]) -> list[int]:
        wanted = self._model.prompt_format
        if wanted == "chat" or (wanted == "auto" and self._model.name == "embedded"):
            messages = messages or [{"role": "user", "content": prompt.prompt or ""}]
        if not messages:
            # A plain prompt is the model's input as it stands: special tokens in it are tokens.
            text = prompt.prompt or ""
            if len(text) > self.most_characters:
                said = too_long("the prompt", len(text), self.most_characters)
                raise RequestError(said, code="SW-LENGTH")
            return list(self.tokenizer(text, verbose=False)["input_ids"])
        try:
            return self._chat.encode(messages)
        except TooLong as error:
            raise RequestError(f"{error}", code="SW-LENGTH") from error
        except ChatError as error:
            raise RequestError(f"{error}") from error


def _token_ids(prompt: object) -> tuple[int, ...]:
    if not isinstance(prompt, Iterable) or isinstance(prompt, bytes | bytearray):
        raise RequestError(
            f"a prompt is a text, a mapping or a list of token ids, not {shown(prompt)}"
        )
    ids = tuple(prompt.tolist() if hasattr(prompt, "tolist") else prompt)
    for index, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, Integral):
            raise RequestError(
                f"token {index} of the prompt must be a whole number, not {shown(token)}"
            )
    return tuple(map(int, ids))


def without_images(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Messages as templates take them, and the images of their parts. Raises nothing."""
    sources: list[str] = []
    told: list[dict[str, Any]] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list | tuple):
            sources += [part["image"] for part in content if part["type"] == "image"]
            parts = [
                {"type": "image"} if part["type"] == "image" else dict(part) for part in content
            ]
            message = {**message, "content": parts}
        told.append(message)
    return told, sources


def prompt_text(line: PromptLine | Encoded) -> str:
    """The text by which an output names its prompt: the last message, of several."""
    if isinstance(line, Encoded):
        return ""
    return text_of(line.messages[-1].content) if line.messages else line.prompt or ""


def id_and_text(prompt: Prompt, uid: int) -> tuple[str, str]:
    """The id and the text of a prompt, before anything of it is checked."""
    if isinstance(prompt, str):
        return str(uid), prompt
    if isinstance(prompt, Mapping):
        found, messages = prompt.get("prompt"), prompt.get("messages")
        given = prompt.get("id")
    elif isinstance(prompt, PromptLine):
        found, given = prompt.prompt, prompt.id
        messages = prompt.messages and [message.model_dump() for message in prompt.messages]
    else:
        return str(uid), ""
    if not isinstance(found, str):
        last = messages[-1] if isinstance(messages, Sequence) and messages else {}
        found = last.get("content", "") if isinstance(last, Mapping) else ""
        if isinstance(found, list | tuple):
            texts = [part.get("text") for part in found if isinstance(part, Mapping)]
            found = "\n".join(text for text in texts if isinstance(text, str))
    return str(uid if given is None else given), str(found)
