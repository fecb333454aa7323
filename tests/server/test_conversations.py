"""Conversations to tokens: what templates are told, and where the work is done."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from stepweave.models.tokenizer import load_tokenizer
from stepweave.server import conversations
from stepweave.server.conversations import Conversations
from stepweave.server.errors import ApiError
from stepweave.server.protocol.chat import (
    AssistantMessage,
    Function,
    Message,
    Tool,
    ToolMessage,
    UserMessage,
)

WITHOUT_CALLS = (
    "{% for message in messages %}{% if 'tool_calls' in message %}"
    "{{ raise_exception('this model calls nothing') }}{% endif %}"
    "{{ message['role'] + ': ' + message['content'] }}{% endfor %}"
)
HELLO = UserMessage(role="user", content="hello")


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    found = load_tokenizer("embedded")
    found.chat_template = WITHOUT_CALLS
    return found


def test_a_message_with_an_empty_list_of_calls_has_none(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Servers write the list, and clients send it back."""
    found = Conversations(tokenizer, 10_000)
    encoded: list[Any] = []
    for calls in (None, ()):
        said = AssistantMessage(role="assistant", content="hi", tool_calls=calls)
        messages: list[Message] = [HELLO, said]
        encoded.append(asyncio.run(found.encode(messages, ())))
    assert encoded[0] == encoded[1]


@pytest.mark.parametrize("offered", [True, False])
def test_a_model_without_calls_refuses_what_has_them(
    tokenizer: PreTrainedTokenizerBase, offered: bool
) -> None:
    """Of the tools, or of the messages where there are none."""
    called = ToolMessage(role="tool", content="1", tool_call_id="c")
    tool = Tool(type="function", function=Function(name="f"))
    with pytest.raises(ApiError, match="calls") as refused:
        asyncio.run(Conversations(tokenizer, 100).encode([called], [tool] if offered else []))
    assert refused.value.param == ("tools" if offered else "messages")


def test_messages_are_made_ready_beside_the_event_loop(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation may have a hundred thousand calls, each with arguments to parse."""
    at_work: list[int] = []
    make = conversations._message

    def noted(message: Message, index: int) -> dict[str, Any]:
        at_work.append(threading.get_ident())
        return make(message, index)

    monkeypatch.setattr(conversations, "_message", noted)
    asyncio.run(Conversations(tokenizer, 10_000).encode([HELLO, HELLO], ()))
    assert len(at_work) == 2
    assert threading.get_ident() not in at_work
