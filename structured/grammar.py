"""What a request asks its output to look like, checked before any grammar library sees it.

This file owns the request's side only: which of six kinds of grammar, its source text, and the
limits on that source. It knows no tokenizer and no library, so a front end can refuse a bad
request in microseconds, on any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal, cast, get_args

from .source import MAX_DEPTH as MAX_DEPTH
from .source import GrammarError as GrammarError
from .source import dump_json, load_json, nesting_error
from .source import json_depth as json_depth
from .structural_tag import normalise

GrammarKind = Literal["json", "json_object", "regex", "grammar", "choice", "structural_tag"]

KINDS: Final[tuple[GrammarKind, ...]] = get_args(GrammarKind)
"""The request keys, in the order in which error messages list them."""

MAX_SOURCE_BYTES: Final = 256 * 1024
"""Longest grammar source, in UTF-8 bytes. A schema generated from a large API is some 50 KiB."""

MAX_CHOICES: Final = 4096
"""Most alternatives of one `choice`."""


class MatcherFailure(RuntimeError):
    """A grammar call failed for one request. Only that request ends; the batch goes on.

    Not a `GrammarError`: the grammar was fine when it was compiled, the matcher broke under way.
    """


@dataclass(frozen=True)
class GrammarSpec:
    """One request's grammar: its kind and its source, hashable and so usable as a cache key.

    `source` is a JSON Schema as JSON text ("json"), empty ("json_object"), a regular expression
    ("regex"), an EBNF text whose first rule is `root` ("grammar"), a JSON array of strings
    ("choice"), or a structural tag as JSON text ("structural_tag").

    Raises:
        GrammarError: the source breaks a limit or cannot be read as what `kind` says.
    """

    kind: GrammarKind
    source: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise GrammarError(
                f"unknown kind of grammar {self.kind!r}{_guess(str(self.kind))}; "
                f"use one of {', '.join(KINDS)}"
            )
        size = _check_unicode(self.source, f"{self.kind}: the source")
        if size > MAX_SOURCE_BYTES:
            raise GrammarError(
                f"{self.kind}: the source has {size} bytes, more than {MAX_SOURCE_BYTES}"
            )
        match self.kind:
            case "json":
                _check_schema_text(self.source)
            case "json_object":
                if self.source:
                    raise GrammarError("json_object takes no source; for a schema use 'json'")
            case "choice":
                _read_choices(self.source)
            case "structural_tag":
                normalise(self.source)
            case "regex" | "grammar":
                if self.kind == "grammar" and not self.source.strip():
                    raise GrammarError("grammar: the source is empty; it needs a rule 'root'")
                depth = bracket_depth(self.source, ebnf=self.kind == "grammar")
                if depth > MAX_DEPTH:
                    raise GrammarError(
                        f"{self.kind}: brackets are nested {depth} deep, more than {MAX_DEPTH}"
                    )

    @classmethod
    def from_request(cls, request: Mapping[str, object]) -> GrammarSpec:
        """Read `{"json": …}`, `{"json_object": true}`, `{"regex": …}`, `{"grammar": …}`,
        `{"choice": […]}` or `{"structural_tag": {…}}`. A key whose value is None counts as absent,
        as clients send it.

        Raises:
            GrammarError: no key, several keys, an unknown key (with the nearest right name), or a
                value of the wrong type or over a limit.
        """
        given = {key: value for key, value in request.items() if value is not None}
        for key in given:
            if key not in KINDS:
                raise GrammarError(
                    f"unknown kind of grammar {key!r}{_guess(str(key))}; "
                    f"use exactly one of {', '.join(KINDS)}"
                )
        if len(given) != 1:
            raise GrammarError(
                f"exactly one of {', '.join(KINDS)} is needed, got "
                f"{' and '.join(sorted(given)) or 'none'}"
            )
        key, value = next(iter(given.items()))
        kind = cast(GrammarKind, key)
        match kind:
            case "json":
                return cls(kind, value if isinstance(value, str) else _dump(value))
            case "structural_tag":
                # Equal requests in either form become equal specs, and are compiled once.
                return cls(kind, normalise(value if isinstance(value, str) else _dump(value)))
            case "json_object":
                if value is not True:
                    raise GrammarError(f"json_object: write true or leave it out, not {value!r}")
                return cls(kind, "")
            case "regex" | "grammar":
                if not isinstance(value, str):
                    raise GrammarError(f"{kind}: needs a string, got {type(value).__name__}")
                return cls(kind, value)
            case "choice":
                if isinstance(value, str) or not isinstance(value, Sequence):
                    raise GrammarError(
                        f"choice: needs a list of strings, got {type(value).__name__}"
                    )
                return cls(kind, _dump(list(value)))

    @property
    def choices(self) -> tuple[str, ...]:
        """The alternatives of a "choice" without repetitions, in the order given."""
        assert self.kind == "choice", f"a grammar of kind {self.kind!r} has no choices"
        return tuple(dict.fromkeys(_read_choices(self.source)))


def bracket_depth(source: str, *, ebnf: bool) -> int:
    """How deep parentheses nest in a regex or EBNF text, outside of classes and literals.

    An over-estimate is harmless, an exception is not, so unbalanced text is simply counted; the
    compiler reports it.
    """
    depth = deepest = 0
    closing: str | None = None  # what ends the class or literal that we are in
    characters = iter(source)
    for character in characters:
        if character == "\\":
            next(characters, None)  # an escaped bracket opens nothing
        elif closing is not None:
            if character == closing:
                closing = None
        elif character == "[":
            closing = "]"
        elif ebnf and character == '"':
            closing = '"'
        elif character == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif character == ")":
            depth = max(0, depth - 1)
    return deepest


def _check_unicode(text: str, name: str) -> int:
    """The bytes of a text in UTF-8. Raises `GrammarError` if it has none, for its surrogates."""
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise GrammarError(f"{name} is not valid Unicode: {error}") from error


def _check_schema_text(source: str) -> None:
    schema = load_json(source, "json")
    if not isinstance(schema, dict | bool):
        raise GrammarError(
            f"json: a JSON Schema is an object or a boolean, not {type(schema).__name__}"
        )
    nesting_error(schema, "json")


def _read_choices(source: str) -> list[str]:
    choices = load_json(source, "choice")
    if not isinstance(choices, list) or not all(isinstance(each, str) for each in choices):
        raise GrammarError("choice: every alternative must be a string")
    if not choices:
        raise GrammarError("choice: the list is empty, so nothing could be written")
    if len(choices) > MAX_CHOICES:
        raise GrammarError(f"choice: {len(choices)} alternatives, more than {MAX_CHOICES}")
    for choice in choices:
        _check_unicode(choice, f"choice: {choice!r}")
    return cast(list[str], choices)


def _dump(value: object) -> str:
    try:
        return dump_json(value)
    except RecursionError:
        raise GrammarError(f"nested too deep to read, more than {MAX_DEPTH}") from None
    except (TypeError, ValueError) as error:
        raise GrammarError(f"not expressible as JSON: {error}") from error


def _guess(key: str) -> str:
    # Names under which other servers take the same thing.
    known = {
        "json_schema": "json",
        "schema": "json",
        "guided_json": "json",
        "guided_regex": "regex",
        "guided_grammar": "grammar",
        "guided_choice": "choice",
        "ebnf": "grammar",
        "pattern": "regex",
        "enum": "choice",
        "structural_tags": "structural_tag",
        "tools": "structural_tag",
    }
    near = known.get(key) or next(iter(get_close_matches(key, KINDS, n=1)), None)
    return f" (did you mean {near!r}?)" if near else ""
