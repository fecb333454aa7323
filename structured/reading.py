"""How one library reads a grammar: what it is given, and what it would not enforce of it.

A pure function of the grammar: no library is loaded and nothing is compiled. A backend asks it
before it compiles; who has to choose a library asks it for each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from .ebnf import ROOT, endless
from .grammar import MAX_SOURCE_BYTES, GrammarError, GrammarSpec
from .json_schema import Library as Library
from .json_schema import rewrite_schema
from .regex_language import match_language, nothing
from .regex_syntax import RegexError
from .regex_text import longest_count, regex_text, with_copies
from .schema_document import every_schema
from .schema_xgrammar import LONGEST_PATTERN
from .source import dump_json
from .structural_tag import formats, normalise


@dataclass(frozen=True)
class Reading:
    """A grammar as one library is to compile it."""

    spec: GrammarSpec
    """Equal in meaning to the one asked for, in forms that the library serves exactly."""
    unenforced: tuple[str, ...] = ()
    """Constraints that the library would ignore, each with its place in the source as it was
    written; empty where every output of the library is one that the grammar allows."""


def read(spec: GrammarSpec, library: Library) -> Reading:
    """What the library is given for a spec, and what it would not enforce.

    Raises:
        GrammarError: no library can compile it: malformed, or a reference that leads nowhere.
    """
    match spec.kind:
        case "json":
            source, unenforced = rewrite_schema(spec.source, library)
            if (size := len(source.encode())) > MAX_SOURCE_BYTES:
                raise GrammarError(
                    f"json: its alternatives and references, worked out, take {size} bytes, "
                    f"more than {MAX_SOURCE_BYTES}; use fewer of 'anyOf', 'oneOf', 'if' and "
                    "'dependencies', or split the schema"
                )
            return Reading(GrammarSpec("json", source), unenforced)
        case "regex":
            source, unenforced = rewrite_regex(spec.source, library)
            return Reading(GrammarSpec("regex", source), unenforced)
        case "structural_tag":
            return _read_tag(spec, library)
        case "grammar":
            _check_ends(spec.source)
            return Reading(spec)
        case _:
            return Reading(spec)


def rewrite_regex(source: str, library: Library) -> tuple[str, tuple[str, ...]]:
    """A regular expression for a library that the whole text must match, without anchors, and what
    the library would not enforce of it.

    Raises:
        GrammarError: no text matches it.
    """
    try:
        tree = match_language(source)
    except RegexError as error:
        return source, (f"regex: {error}",)
    if nothing(tree):
        raise GrammarError("regex: no text can match it")
    if library == "xgrammar":
        if longest_count(tree) > LONGEST_PATTERN:
            return source, (f"regex: a repetition above {LONGEST_PATTERN} cannot be enforced",)
        tree = with_copies(tree)
    return regex_text(tree), ()


def _check_ends(source: str) -> None:
    """Raises `GrammarError` if a grammar in EBNF leads to a rule of which no text ends."""
    if (path := endless(source)) is not None:
        what = "it" if path[0] == ROOT else f"its rule {path[0]!r}"
        raise GrammarError(
            f"grammar: no text of {what} ends, as its rules need each other: {' → '.join(path)}"
        )


def _read_tag(spec: GrammarSpec, library: Library) -> Reading:
    """Grammars inside of a structural tag are read like those outside."""
    tag = json.loads(normalise(spec.source))
    notes: list[str] = []
    for place, format_ in formats(tag):
        for key in ("json_schema", "pattern", "grammar"):
            if key not in format_:
                continue
            try:
                format_[key], unenforced = _read_part(key, format_, library)
            except GrammarError as error:
                raise GrammarError(f"structural_tag: in {place}/{key}: {error}") from error
            notes += (f"structural_tag: in {place}/{key}: {each}" for each in unenforced)
    return Reading(GrammarSpec("structural_tag", dump_json(tag)), tuple(notes))


def _read_part(
    key: str, format_: Mapping[str, object], library: Library
) -> tuple[object, tuple[str, ...]]:
    """What a format of a tag has under a key, for a library, and what that would not enforce."""
    given = format_[key]
    if key == "pattern":
        return rewrite_regex(str(given), library)
    if key == "grammar":
        _check_ends(str(given))
        return given, ()
    source, unenforced = rewrite_schema(json.dumps(given), library)
    schema = json.loads(source)
    if format_.get("any_order") is True:
        for keyword in ("required", "minProperties"):
            if any(keyword in each for each in every_schema(schema)):
                what = f"{keyword!r} cannot be enforced: the same name may come twice"
                unenforced += (f"with 'any_order', {what}",)
    return schema, unenforced
