"""Conversations to tokens: the chat template's special tokens are tokens, a message's text is text.

A template writes its special tokens, such as <|im_end|>, as text among the contents of messages,
and a tokenizer cannot tell who wrote which. Where a content has the text of a special token, that
text is marked before the template sees it. What is not marked afterwards is the template's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from .template_limit import MAX_TEMPLATE_LINES, at_most_lines
from .tokenizer import too_long

_MARKS = "".join(map(chr, range(0xFDD0, 0xFDF0)))
"""Code points that Unicode promises never to assign, so that texts have no use for them."""


class ChatError(ValueError):
    """The messages cannot become tokens: there is no template, or it refuses them."""


class TooLong(ChatError):
    """No context has room for the text that the messages make."""


class Chat:
    """Renders and encodes conversations for one tokenizer.

    `most`: characters of a rendered conversation, at most; None: no limit.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, most: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._most = most
        self._special = _special_tokens(tokenizer)
        self._marking = _Marking(tokenizer, self._special, _MARKS[0])

    def encode(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """The conversation's tokens, up to where the answer begins.

        `tools`: the functions that the model may call, as chat templates take them. A message may
        have calls of them, each with its arguments as a mapping. Raises `ChatError`, and `TooLong`
        before a text is encoded that is longer than `most`.
        """
        marking = self._marking_for([*_texts(list(messages)), *_texts(list(tools))])
        marked = [
            {**_changed(message, marking.marked), "role": message["role"]} for message in messages
        ]
        text = self.render(marked, [_changed(tool, marking.marked) for tool in tools])
        if self._most is not None and len(text) - text.count(marking.mark) > self._most:
            raise TooLong(too_long("the conversation", len(text), self._most))
        if marking.mark not in text:
            return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        return marking.encode(text)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        answering: bool = True,
    ) -> str:
        """What the template makes of a conversation; `answering`: up to where the answer begins.

        Special tokens in a message are not told from the template's. Raises `ChatError`.
        """
        if not self._tokenizer.chat_template:
            raise ChatError("this model's tokenizer has no chat template: give a `prompt`")
        try:
            with at_most_lines(MAX_TEMPLATE_LINES):
                text = self._tokenizer.apply_chat_template(
                    [dict(each) for each in messages],
                    tools=[dict(each) for each in tools] or None,
                    tokenize=False,
                    add_generation_prompt=answering,
                )
        except Exception as error:  # a template is the model's program; it may raise anything
            raise ChatError(f"the chat template refuses these messages: {error}") from error
        assert isinstance(text, str), "a template renders one conversation to one text"
        return text

    @property
    def special_tokens(self) -> frozenset[str]:
        """The texts of tokens that no text may spell."""
        return frozenset(self._special)

    def _marking_for(self, contents: Sequence[str]) -> _Marking:
        """With a mark that no content has."""
        free = (m for m in (self._marking.mark, *_MARKS) if not any(m in each for each in contents))
        mark = next(free, None)
        if mark is None:
            raise ChatError("the messages use every code point that is no character")
        if mark != self._marking.mark:
            self._marking = _Marking(self._tokenizer, self._special, mark)
        return self._marking


class _Marking:
    """Tells special tokens that a content has, by a mark within, from those of the template."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, special: Mapping[str, int], mark: str
    ) -> None:
        self.mark = mark
        self._tokenizer, self._special = tokenizer, special
        self._pattern = re.compile(
            "|".join(
                # Nothing fits into a token of one character: it has two marks behind it.
                re.escape(token) + (f"(?!{mark}{mark})" if len(token) == 1 else "")
                for token in sorted(special, key=len, reverse=True)
            )
            or r"(?!)"
        )
        # What a neighbouring text could make a token of, at the end of a text and at its start.
        cuts = [(token, at) for token in special for at in range(1, len(token))]
        self._beginnings = tuple({token[:at] for token, at in cuts})
        self._ends = tuple({token[at:] for token, at in cuts})
        self._copy: Tokenizer | None = None
        self._ids: dict[int, int] = {}  # numbers in the copy that are others in the original

    def marked(self, content: str) -> str:
        """`content` with marks in all that is the text of a special token.

        Also at an end that a neighbouring text could make one.
        """
        changed = -1
        while changed:  # again where a mark has uncovered another that overlaps
            content, changed = self._pattern.subn(self._split, content)
        if content.endswith(self._beginnings):
            content += self.mark
        if content.startswith(self._ends):
            content = self.mark + content
        return content

    def _split(self, found: re.Match[str]) -> str:
        marks = self.mark * (2 if len(found[0]) == 1 else 1)
        return found[0][:1] + marks + found[0][1:]

    def encode(self, text: str) -> list[int]:
        """The tokens of a rendered text, its marks taken out. Raises `ChatError`."""
        if self._copy is None:
            self._copy = self._copied()
        parts: list[str] = []
        end = own = 0
        for found in self._pattern.finditer(text):
            parts += (text[end : found.start()].replace(self.mark, ""), self._between(found[0]))
            end = found.end()
            own += found[0] != self._tokenizer.unk_token
        parts.append(text[end:].replace(self.mark, ""))
        encoded = self._copy.encode("".join(parts), add_special_tokens=False).ids
        ids = [self._ids.get(each, each) for each in encoded]
        unknown = self._tokenizer.unk_token_id  # what it makes of letters that it does not know
        found_ids = [each for each in ids if each in self._special.values() and each != unknown]
        if len(found_ids) != own:
            raise ChatError(
                "a message has the text of a special token, and this tokenizer reads it as "
                "that token everywhere: remove it"
            )
        return ids

    def _copied(self) -> Tokenizer:
        """A tokenizer that knows special tokens only between two marks."""
        backend: Any = getattr(self._tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise ChatError(
                "a message has the text of a special token, and this tokenizer cannot read it as "
                "text: remove it"
            )
        told = json.loads(backend.to_str())
        added = told["added_tokens"]
        for token in added:
            if token["content"] in self._special:
                token["content"] = self._between(token["content"])
        told |= {"truncation": None, "padding": None}
        copy = Tokenizer.from_str(json.dumps(told, ensure_ascii=False))
        # What is not in the model's own vocabulary gets the next free number, in the copy.
        self._ids = {
            number: token["id"]
            for token in added
            if (number := copy.token_to_id(token["content"])) is not None
        }
        return copy

    def _between(self, token: str) -> str:
        return f"{self.mark}{token}{self.mark}"


def _texts(value: Any) -> Iterator[str]:
    """Every text in nested lists and mappings, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """The same with every text changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_changed(key, change): _changed(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(inner, change) for inner in value]
    return value


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Ids of the tokens that the tokenizer marks as special, by their text."""
    added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    found = {token.content: number for number, token in added.items() if token.special}
    for text in tokenizer.all_special_tokens:
        number = tokenizer.convert_tokens_to_ids(str(text))
        if isinstance(number, int):
            found.setdefault(str(text), number)
    return {text: number for text, number in found.items() if text}
