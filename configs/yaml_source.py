"""YAML as plain data that remembers where each part stood.

Read from ruamel's event stream, not its constructors: a tag can then never build an object, and
depth, aliases and duplicate keys are bounded before anything is built. Scalars follow the YAML
1.2 core schema: `no` is a string, `1e-3` a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import ConfigError, Mark, reading

Location = tuple[str | int, ...]

MAX_BYTES = 512 * 1024
MAX_DEPTH = 64
MAX_PARTS = 50_000  # after aliases are expanded, so an alias bomb cannot go off


@dataclass(frozen=True, slots=True)
class Located:
    """A mapping, sequence or scalar with its place, and the place of its key if it has one."""

    value: dict[str, Located] | list[Located] | str | int | float | bool | None
    mark: Mark
    key: Mark | None = None

    def plain(self) -> Any:
        """The data alone, as JSON knows it."""
        if isinstance(self.value, dict):
            return {key: part.plain() for key, part in self.value.items()}
        if isinstance(self.value, list):
            return [part.plain() for part in self.value]
        return self.value

    def at(self, location: Location) -> Located:
        """The part at a location, or the innermost part on the way to it that exists."""
        part = self
        for step in location:
            inner: Located | None = None
            if isinstance(part.value, dict):
                inner = part.value.get(str(step))
            elif isinstance(part.value, list) and isinstance(step, int):
                inner = part.value[step] if step < len(part.value) else None
            if inner is None:
                return part
            part = inner
        return part

    def keyed(self, key: Mark | None) -> Located:
        return Located(self.value, self.mark, key)

    def extent(self) -> tuple[int, int]:
        """How many parts this is, itself included, and how many levels deep."""
        parts: Iterable[Located] = ()
        if isinstance(self.value, dict):
            parts = self.value.values()
        elif isinstance(self.value, list):
            parts = self.value
        inner = [part.extent() for part in parts]
        return 1 + sum(size for size, _ in inner), 1 + max((deep for _, deep in inner), default=0)


def read_yaml(path: Path, name: str | None = None) -> Located:
    """The one mapping in a YAML file. Every fault is a `ConfigError` with line and column."""
    file = name or str(path)
    with reading(file), path.open("rb") as stream:
        raw = stream.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ConfigError.at(Mark(file), f"is larger than {MAX_BYTES // 1024} KiB")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError.at(Mark(file, line), "is not UTF-8 text") from error
    found = parse_yaml(text, file)
    if not isinstance(found.value, dict):
        raise ConfigError.at(found.mark, "the file must be a mapping of keys to values")
    return found


@lru_cache(maxsize=128)  # files that others extend are read again and again; parsing is slow
def parse_yaml(text: str, file: str) -> Located:
    """The one document in `text`. Not to be changed in place: the next caller gets it too."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return _Reader(file).document(iter(YAML(typ="safe", pure=True).parse(text)))
    except MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        mark = Mark(file, at.line + 1, at.column + 1) if at else Mark(file)
        raise ConfigError.at(mark, f"is not valid YAML: {_said(error)}") from error
    except YAMLError as error:
        position = getattr(error, "position", None)
        line = text.count("\n", 0, position) + 1 if isinstance(position, int) else None
        said = str(error).splitlines()[0]
        raise ConfigError.at(Mark(file, line), f"is not valid YAML: {said}") from error
    except (ValueError, OverflowError, RecursionError, LookupError, AssertionError) as error:
        # The scanner lets some through bare, such as chr() of an escape beyond Unicode.
        raise ConfigError.at(Mark(file), f"is not valid YAML: {error}") from error


_ADVICE = {
    "found character '\\t' that cannot start any token": "indent with spaces, not with tabs",
    "mapping values are not allowed here": "quote a text that has `: ` in it, and indent keys of "
    "one mapping alike",
    "expected ',' or '}', but got ':'": "quote a text that has `: ` in it",
}
"""By what the parser says of common mistakes."""


def _said(error: Any) -> str:
    """A marked error of the parser in one sentence, with where what it is in begins."""
    said = ", ".join(part for part in (error.context, error.problem) if part)
    begins, found = error.context_mark, error.problem_mark
    if begins is not None and found is not None and begins.line != found.line:
        said += f"; it begins at line {begins.line + 1}"
    advice = _ADVICE.get(error.problem or "")
    return f"{said}: {advice}" if advice else said


@dataclass
class _Reader:
    """Builds `Located` parts from parser events."""

    file: str
    parts: int = 0
    anchors: dict[str, Located] = field(default_factory=dict)

    def document(self, events: Iterator[Any]) -> Located:
        found: Located | None = None
        for event in events:
            kind = _kind(event)
            if kind in ("StreamStart", "StreamEnd", "DocumentStart", "DocumentEnd"):
                continue
            if found is not None:
                raise self._error(event, "holds more than one document; keep one per file")
            found = self._part(event, events, depth=0)
        if found is None:
            raise ConfigError.at(Mark(self.file, 1, 1), "is empty")
        return found

    def _part(self, event: Any, events: Iterator[Any], depth: int) -> Located:
        kind = _kind(event)
        if kind == "Alias":
            return self._alias(event, depth)
        if event.tag is not None:
            raise self._error(event, f"tag {event.tag!r}: tags are not allowed; write plain data")
        self._bound(event, 1, depth)
        mark = self._mark(event)
        if kind == "Scalar":
            plain = event.style in (None, "") and event.implicit[0]
            found = Located(self._scalar(event, plain), mark)
        elif kind == "SequenceStart":
            found = Located(self._sequence(events, depth), mark)
        else:
            found = Located(self._mapping(events, depth), mark)
        if event.anchor:
            self.anchors[event.anchor] = found
        return found

    def _sequence(self, events: Iterator[Any], depth: int) -> list[Located]:
        found = []
        for event in events:
            if _kind(event) == "SequenceEnd":
                break
            found.append(self._part(event, events, depth + 1))
        return found

    def _mapping(self, events: Iterator[Any], depth: int) -> dict[str, Located]:
        found: dict[str, Located] = {}
        for event in events:
            if _kind(event) == "MappingEnd":
                break
            if _kind(event) != "Scalar" or event.tag is not None:
                raise self._error(event, "a key must be plain text")
            key, mark = event.value, self._mark(event)
            if key == "<<" and event.style in (None, ""):
                said = "`<<` is not read: write the keys, or let the file extend another"
                raise ConfigError.at(mark, said)
            _refuse_surrogates(key, mark)
            if key in found:
                raise ConfigError.at(mark, f"duplicate key {key!r} (first at {found[key].key})")
            found[key] = self._part(next(events), events, depth + 1).keyed(mark)
        return found

    def _alias(self, event: Any, depth: int) -> Located:
        target = self.anchors.get(event.anchor)
        if target is None:
            raise self._error(event, f"alias *{event.anchor} has no complete anchor before it")
        size, levels = target.extent()
        self._bound(event, size, depth + levels - 1)
        return target

    def _scalar(self, event: Any, plain: bool) -> str | int | float | bool | None:
        text: str = event.value
        _refuse_surrogates(text, self._mark(event))
        if not plain:
            return text
        try:
            return _core_schema(text)
        except ValueError as error:
            said = f"is not a usable number: it has {len(text)} digits"
            raise self._error(event, said) from error

    def _bound(self, event: Any, parts: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._error(event, f"is nested more than {MAX_DEPTH} levels deep")
        self.parts += parts
        if self.parts > MAX_PARTS:
            raise self._error(event, f"holds more than {MAX_PARTS} parts, aliases expanded")

    def _mark(self, event: Any) -> Mark:
        return Mark(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _error(self, event: Any, message: str) -> ConfigError:
        return ConfigError.at(self._mark(event), message)


def _kind(event: Any) -> str:
    return type(event).__name__.removesuffix("Event")


_WORDS: Mapping[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


def _core_schema(text: str) -> str | int | float | bool | None:
    """A plain scalar by the core schema of YAML 1.2 (yaml.org/spec/1.2.2, §10.3.2)."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(re.sub(r"\.(?=[a-zA-Z])", "", text))
    return text


def _refuse_surrogates(text: str, mark: Mark) -> None:
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError.at(mark, "holds half of a surrogate pair, which is not text")
