"""Calls of functions: what grammar an answer with tools follows, and its text taken apart again.

Both come from the form that the model's own template writes. The grammar holds whatever the model
writes between the parts of that form, so each call names a function that was offered, and its
arguments follow that function's schema.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

from ..models.call_format import CallFormat
from .sections import Piece, held_back

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def structural_tag(
    form: CallFormat,
    functions: Sequence[Any],
    *,
    forced: bool,
    several: bool,
    schema: dict[str, Any] | bool | None = None,
) -> dict[str, Any]:
    """The grammar of an answer that may call these functions, of a name and a schema each.

    `forced`: it is a call, or several, and nothing else. Otherwise it is any text up to where a
    call begins, or, with a `schema`, calls or JSON of that schema. `several`: more than one call
    may follow, if the form has a way to write them.
    """
    one = {"type": "or", "elements": [_call(form, *each) for each in functions]}
    calls = one if len(functions) > 1 else one["elements"][0]
    if several and form.middle is not None:
        next_one = {
            "type": "sequence",
            "elements": [{"type": "const_string", "value": form.middle}, calls],
        }
        more = {"type": "star", "content": next_one}
        calls = {"type": "sequence", "elements": [calls, more]}
    tag = {"type": "tag", "begin": form.begin, "content": calls, "end": form.end}
    if forced:
        return {"type": "structural_tag", "format": tag}
    if schema is not None:
        written = {"type": "json_schema", "json_schema": schema}
        return {"type": "structural_tag", "format": {"type": "or", "elements": [tag, written]}}
    free = {
        "type": "triggered_tags",
        "triggers": [form.trigger],
        "tags": [tag],
        "stop_after_first": True,
    }
    return {"type": "structural_tag", "format": free}


def _call(form: CallFormat, name: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    """Arguments are an object, whatever else the schema allows: the form has no way to write others
    that a client could read."""
    named = {"type": "const_string", "value": name + form.between}
    written = _NO_ARGUMENTS if schema is None else {**schema, "type": "object"}
    arguments = {"type": "json_schema", "json_schema": written}
    return {"type": "sequence", "elements": [named, arguments]}


def function_at(pointer: str, tag: Any, form: CallFormat) -> str | None:
    """The function whose arguments have the schema at `#/…/json_schema` of a `structural_tag`.

    None where that is the schema of something else. Raises nothing of its own.
    """
    node = tag
    try:
        for step in pointer.split("/")[1:-3]:
            node = node[int(step) if isinstance(node, list) else step]
        value = node["elements"][0]["value"]
    except (LookupError, TypeError, ValueError):
        return None
    return value.removesuffix(form.between) if isinstance(value, str) else None


class Calls:
    """A section of text and then calls, in the form that the grammar holds them to.

    A call begins where the form's beginning has one of the `names` behind it. White space before
    the first belongs to neither. An output that was cut short gives what there is of its last call.
    `forced`: it has calls only, so that no text is to be shown where it was cut before the first.
    `or_json`: it has calls only, or else it is JSON, which may have what begins a call in it.
    """

    def __init__(
        self,
        form: CallFormat,
        names: Sequence[str],
        *,
        forced: bool = False,
        or_json: bool = False,
    ) -> None:
        self._form, self._forced, self._or_json = form, forced, or_json
        self._named = tuple(name + form.between for name in names)
        self._held = ""
        self._count = 0  # calls that have begun
        self._arguments: _JsonEnd | None = None  # of the call that is under way
        self._inside = False  # a call has begun, or ended; no text can follow
        self._shown = False  # there was text

    def push(self, text: str) -> Iterator[Piece]:
        self._held += text
        if not self._inside:
            yield from self._content()
        while self._inside and (yield from self._step()):
            pass

    def finish(self) -> Iterator[Piece]:
        in_name = self._form.begin in self._held and not self._or_json
        if self._held and not (self._inside or self._forced or in_name):
            yield Piece("content", self._held)
        self._held = ""

    def _content(self) -> Iterator[Piece]:
        start = self._beginning()
        shown = self._held[:start].rstrip()
        behind = self._held[start + len(self._form.begin) :]
        if behind.startswith(self._named):
            self._inside, self._held = True, behind
        else:
            self._held = self._held[len(shown) :]
        if shown:
            self._shown = True
            yield Piece("content", shown)

    def _beginning(self) -> int:
        """Where the first call begins, or may yet; nowhere: the end of what is held."""
        held, begin = self._held, self._form.begin
        if self._or_json:
            start = len(held) - len(held.lstrip())
            return start if not self._shown and self._may_call(held[start:]) else len(held)
        start = held.find(begin)
        while start >= 0 and not self._may_call(held[start:]):
            start = held.find(begin, start + 1)
        return start if start >= 0 else len(held) - held_back(held, (begin,))

    def _may_call(self, text: str) -> bool:
        """Whether a call begins the text, or may once there is more of it."""
        begin = self._form.begin
        if not text.startswith(begin):
            return begin.startswith(text)
        behind = text[len(begin) :]
        return any(each.startswith(behind[: len(each)]) for each in self._named)

    def _step(self) -> Generator[Piece, None, bool]:
        """One step within the calls; returns whether there is another."""
        form = self._form
        if self._arguments is not None:
            taken = self._arguments.take(self._held)
            part, self._held = self._held[:taken], self._held[taken:]
            if part:
                yield Piece("arguments", part, self._count - 1, last=self._arguments.ended)
            if self._arguments.ended:
                self._arguments = None
                return True
            return False
        if self._count and not self._between_calls():
            return False
        before = form.middle if self._count and form.middle is not None else ""
        name, found, rest = self._held[len(before) :].partition(form.between)
        if not found:
            return False
        self._held = rest
        self._count += 1
        self._arguments = _JsonEnd()
        yield Piece("name", name, self._count - 1)
        return True

    def _between_calls(self) -> bool:
        """Whether another call begins where the last one has ended."""
        return self._form.middle is not None and self._held.startswith(self._form.middle)


class _JsonEnd:
    """Finds where a JSON object ends, in text that comes in parts."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = self._escaped = False

    ended = False

    def take(self, text: str) -> int:
        """How many characters of `text` belong to the object."""
        for index, character in enumerate(text):
            if self._quoted:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._quoted = False
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.ended = True
                    return index + 1
        return len(text)
