"""How a model writes calls of functions: read off what its own chat template writes.

There is no table of models. A conversation in which made-up functions were called is put through
the template, and what stands around their names and arguments is the form. So it is right for each
template whose calls have the name before the arguments, and the arguments in JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .chat import Chat, ChatError

_NAMES: Final = ("stepweave_first", "stepweave_second")
_ARGUMENTS: Final = {"stepweave_key": "stepweave_value"}
_CONTENT: Final = "stepweave_content"
_QUESTION: Final = {"role": "user", "content": "stepweave_question"}


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The text of calls: `begin` name `between` arguments, (`middle` name `between` arguments)…,
    `end`. `middle` is None where the template writes one call per turn only.
    """

    begin: str
    between: str
    end: str
    middle: str | None

    @property
    def trigger(self) -> str:
        """The beginning of `begin` by which a call is known: its first word, in most forms."""
        word = re.match(r'[^\s{\["]+', self.begin)
        return word[0] if word is not None else self.begin

    @classmethod
    def of(cls, chat: Chat) -> CallFormat:
        """That of a model. Raises `ChatError` where its template writes no calls, or in a form
        that cannot be read off.
        """
        one = _answer(chat, _NAMES[:1])
        begin, between, after = _around(one, _NAMES[0])
        ending = _ending(chat)
        if not after.endswith(ending):
            raise _unreadable("a turn with calls ends as no other does")
        end, middle = after.removesuffix(ending), None
        try:
            two = _answer(chat, _NAMES)
            middle = _between_calls(two)
        except ChatError:  # it takes one call per turn
            middle = None
        found = cls(begin.lstrip(), between, end, middle)
        said = begin + between + end + (middle or "")
        if any(token in said for token in chat.special_tokens):
            raise _unreadable("it marks calls by special tokens, which no text has")
        if not found.begin or not found.between:
            raise _unreadable("nothing marks a call")
        return found


def _answer(chat: Chat, names: Sequence[str]) -> str:
    """What the template writes for a turn that calls these functions."""
    calls = [
        {
            "id": f"call{index:05d}",
            "type": "function",
            "function": {"name": name, "arguments": _ARGUMENTS},
        }
        for index, name in enumerate(names)
    ]
    turn = {"role": "assistant", "content": "", "tool_calls": calls}
    return _turn(chat, turn)


def _turn(chat: Chat, turn: Mapping[str, Any]) -> str:
    """What a turn adds to the conversation up to where it begins."""
    tools = [_tool(name) for name in _NAMES]
    before = chat.render([_QUESTION], tools)
    whole = chat.render([_QUESTION, turn], tools, answering=False)
    same = 0
    while same < min(len(before), len(whole)) and before[same] == whole[same]:
        same += 1
    return whole[same:]


def _tool(name: str) -> dict[str, Any]:
    properties = {key: {"type": "string"} for key in _ARGUMENTS}
    parameters = {"type": "object", "properties": properties, "required": [*_ARGUMENTS]}
    function = {"name": name, "description": "", "parameters": parameters}
    return {"type": "function", "function": function}


def _ending(chat: Chat) -> str:
    """What ends a turn of plain text."""
    turn = _turn(chat, {"role": "assistant", "content": _CONTENT})
    return turn.partition(_CONTENT)[2]


def _around(turn: str, name: str) -> tuple[str, str, str]:
    """What stands before the name, between it and its arguments, and after them."""
    before, found, rest = turn.partition(name)
    if not found:
        raise _unreadable("it does not write the name of a function that was called")
    start = rest.find("{")
    try:
        arguments, length = json.JSONDecoder().raw_decode(rest[max(start, 0) :])
    except ValueError:
        arguments, length = None, 0
    if arguments != _ARGUMENTS:
        raise _unreadable("it does not write arguments as JSON, after the name")
    return before, rest[:start], rest[start + length :]


def _between_calls(turn: str) -> str:
    """What stands between the arguments of a call and the name of the next."""
    _, _, after_first = _around(turn, _NAMES[0])
    middle, found, _ = after_first.partition(_NAMES[1])
    if not found:
        raise _unreadable("it writes one call per turn")
    return middle


def _unreadable(why: str) -> ChatError:
    return ChatError(f"this model's chat template has no form of calls that can be used: {why}")
