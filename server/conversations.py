"""Conversations as the API has them, to tokens as the model's template writes them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..models.call_format import CallFormat
from ..models.chat import Chat, ChatError, TooLong
from ..requests.params import RequestError
from ..serving.images import Encoded, Images, illustrated
from ..serving.prompts import without_images
from .errors import ApiError
from .protocol.base import json_object
from .protocol.chat import (
    AssistantMessage,
    Message,
    SystemMessage,
    Tool,
    ToolCall,
    ToolMessage,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Conversations:
    """Renders and encodes beside the event loop: a template is a program, and texts may be long."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        most_characters: int,
        images: Images | None = None,
    ) -> None:
        self._tokenizer, self._images = tokenizer, images
        self._most = most_characters
        self._mine = threading.local()  # a `Chat` is of one thread

    async def encode(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Encoded:
        """The tokens of a conversation, with its images.

        Raises `ApiError` where the template refuses it, and for an image that cannot be taken.
        """
        if tools or any(map(_of_calls, messages)):
            await self.call_format("tools" if tools else "messages")
        try:
            return await asyncio.to_thread(self._encode, messages, tools)
        except ChatError as error:
            code = "context_length_exceeded" if isinstance(error, TooLong) else None
            raise ApiError(400, f"{error}", param="messages", code=code) from error
        except RequestError as error:
            code = "context_length_exceeded" if error.code == "SW-LENGTH" else None
            raise ApiError(400, f"{error}", param="messages", code=code) from error

    async def call_format(self, param: str = "tools") -> CallFormat:
        """How this model writes calls. Raises `ApiError`, which blames this key of the request,
        where its template has no form of them.
        """
        found = await asyncio.to_thread(lambda: self._call_format)
        if isinstance(found, ChatError):
            raise ApiError(400, f"{found}", param=param, code="unsupported_parameter")
        return found

    @cached_property
    def _call_format(self) -> CallFormat | ChatError:
        try:
            return CallFormat.of(self._chat)
        except ChatError as error:
            return error

    @property
    def _chat(self) -> Chat:
        chat: Chat | None = getattr(self._mine, "chat", None)
        if chat is None:
            chat = self._mine.chat = Chat(self._tokenizer, self._most)
        return chat

    def _encode(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Encoded:
        unsaid: Any = {"function": {"strict"}}  # it is for us: arguments follow their schema always
        offered = [each.model_dump(exclude_none=True, exclude=unsaid) for each in tools]
        said = [_message(each, index) for index, each in enumerate(messages)]
        told, sources = without_images(said)
        return illustrated(self._images, self._chat.encode(told, offered), sources, files=False)


def _of_calls(message: Message) -> bool:
    """Whether it has calls, or the result of one."""
    if isinstance(message, AssistantMessage):
        return bool(message.tool_calls)
    return isinstance(message, ToolMessage)


def _message(message: Message, index: int) -> dict[str, Any]:
    """A message as templates take it; a call's arguments are a mapping there."""
    told = message.model_dump(exclude_none=True)
    if isinstance(message, SystemMessage):
        told["role"] = "system"
    if isinstance(message, AssistantMessage):
        told.setdefault("content", "")
        told.pop("tool_calls", None)  # templates ask whether it is there: no calls are no list
        if message.tool_calls:
            where = f"messages[{index}].tool_calls"
            told["tool_calls"] = [
                _call(call, f"{where}[{number}]") for number, call in enumerate(message.tool_calls)
            ]
    return told


def _call(call: ToolCall, where: str) -> dict[str, Any]:
    arguments = json_object(call.function.arguments)
    if arguments is None:
        said = f"{where}.function.arguments must be the text of a JSON object"
        raise ApiError(400, said, param="messages")
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }
