"""Prompts as callers hand them in, to token ids as the model's tokenizer and template have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

from ..configs.prompts import PromptLine, prompt_of
from ..configs.schema import PipelineConfig
from ..models.chat import Chat, ChatError, TooLong
from ..models.tokenizer import load_tokenizer, most_characters, too_long
from ..requests.complaints import shown
from ..requests.params import RequestError, SamplingParams

Prompt = str | Mapping[str, Any] | PromptLine | Sequence[int]


class Prompts:
    """Reads and encodes the prompts of one pipeline.

    Every method raises `RequestError` or `ConfigError` for what cannot be served, and nothing else.
    """

    def __init__(self, config: PipelineConfig, context_length: int) -> None:
        self._model = config.model
        self.tokenizer = load_tokenizer(config.model.name)
        self.most_characters = most_characters(self.tokenizer, context_length)
        self._chat = Chat(self.tokenizer, self.most_characters)

    def read(self, prompt: Prompt, request_id: str) -> PromptLine | tuple[int, ...]:
        """A prompt as a line, or as token ids."""
        if isinstance(prompt, str | Mapping | PromptLine):
            return prompt_of(prompt, request_id)
        return _token_ids(prompt)

    def params(
        self, prompt: PromptLine | tuple[int, ...], given: SamplingParams | None
    ) -> SamplingParams:
        """Those given, else greedy decoding; what a line says itself goes before."""
        given = given or SamplingParams()
        if not isinstance(prompt, PromptLine):
            return given
        own = prompt.parameters
        if "structured_outputs" in own:
            own["reasoning"] = None  # its own
        return replace(given, **own) if own else given

    def encode(self, prompt: PromptLine | tuple[int, ...]) -> tuple[int, ...]:
        """The tokens of a prompt."""
        if isinstance(prompt, tuple):
            return prompt
        messages = [message.model_dump() for message in prompt.messages or ()]
        wanted = self._model.prompt_format
        if wanted == "chat" or (wanted == "auto" and self._model.name == "embedded"):
            messages = messages or [{"role": "user", "content": prompt.prompt or ""}]
        if not messages:
            # A plain prompt is the model's input as it stands: special tokens in it are tokens.
            text = prompt.prompt or ""
            if len(text) > self.most_characters:
                said = too_long("the prompt", len(text), self.most_characters)
                raise RequestError(said, code="SW-LENGTH")
            return tuple(self.tokenizer(text)["input_ids"])
        try:
            return tuple(self._chat.encode(messages))
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


def prompt_text(line: PromptLine | tuple[int, ...]) -> str:
    """The text by which an output names its prompt: the last message, of several."""
    if isinstance(line, tuple):
        return ""
    return line.messages[-1].content if line.messages else line.prompt or ""


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
    return str(uid if given is None else given), str(found)
