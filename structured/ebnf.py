"""EBNF grammars of which no text ends: each text of a rule would have another of it inside.

The libraries compile such a grammar, and a model then writes without end. What is written in a way
that is not read here, which the libraries may well know, is nothing that is claimed anything of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ROOT = "root"

_TOKEN = re.compile(
    r"""
      (?P<blank> \s+ | \#[^\n]* )
    | (?P<text> "(?:\\.|[^"\\\n])*" | \[(?:\\.|[^]\\\n])*] )
    | (?P<is> ::= )
    | (?P<name> [A-Za-z_][\w.-]* )
    | (?P<times> [*+?] | \{\s*\d+\s*(?:,\s*\d*\s*)?} )
    | (?P<sign> [()|] )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)

Token = tuple[str, str]
"""What it is, and how it is written."""


class _Unread(Exception):
    """The grammar has something that is not read here."""


@dataclass(frozen=True)
class _Alternatives:
    """What rules each alternative needs, and what groups; () for a text that is there already."""

    options: Sequence[Sequence[str | _Alternatives]]


def endless(source: str) -> tuple[str, ...] | None:
    """Rules from the root on of which each needs the next, up to one that is there already.

    None where some text ends, or nothing is known. Raises nothing.
    """
    try:
        rules = {name: _read(body) for name, body in _bodies(_tokens(source))}
    except (_Unread, RecursionError):
        return None
    ending: set[str] = set()
    while more := {
        name for name, rule in rules.items() if name not in ending and _ends(rule, ending)
    }:
        ending |= more
    if ROOT in ending or ROOT not in rules:
        return None
    path = [ROOT]
    while path.count(path[-1]) == 1:
        needed = next(_needed(rules[path[-1]], ending))
        if needed not in rules:
            return None
        path.append(needed)
    return tuple(path)


def _tokens(source: str) -> list[Token]:
    found = [(match.lastgroup or "other", match[0]) for match in _TOKEN.finditer(source)]
    return [each for each in found if each[0] != "blank"]


def _bodies(tokens: Sequence[Token]) -> Iterator[tuple[str, Sequence[Token]]]:
    """Each rule's name and what it is."""
    starts = [at - 1 for at, (kind, _) in enumerate(tokens) if kind == "is"]
    if not starts or starts[0] != 0 or any(tokens[at][0] != "name" for at in starts):
        raise _Unread
    names = [tokens[at][1] for at in starts]
    if len(set(names)) < len(names):
        raise _Unread
    for name, start, end in zip(names, starts, [*starts[1:], len(tokens)], strict=True):
        yield name, tokens[start + 2 : end]


def _read(tokens: Sequence[Token]) -> _Alternatives:
    found, after = _alternatives(tokens, 0)
    if after < len(tokens):
        raise _Unread
    return found


def _alternatives(tokens: Sequence[Token], at: int) -> tuple[_Alternatives, int]:
    options: list[list[str | _Alternatives]] = [[]]
    while at < len(tokens) and tokens[at] != ("sign", ")"):
        kind, written = tokens[at]
        at += 1
        part: str | _Alternatives | None = None
        if written == "|" and kind == "sign":
            options.append([])
            continue
        if written == "(" and kind == "sign":
            part, at = _alternatives(tokens, at)
            if at >= len(tokens):
                raise _Unread
            at += 1
        elif kind == "name":
            part = written
        elif kind != "text":
            raise _Unread
        while at < len(tokens) and tokens[at][0] == "times":
            if tokens[at][1] in "*?" or re.match(r"\{\s*0+\s*[,}]", tokens[at][1]):
                part = None
            at += 1
        if part is not None:
            options[-1].append(part)
    return _Alternatives(options), at


def _ends(rule: str | _Alternatives, ending: set[str]) -> bool:
    if isinstance(rule, str):
        return rule in ending
    return any(all(_ends(part, ending) for part in option) for option in rule.options)


def _needed(rule: str | _Alternatives, ending: set[str]) -> Iterator[str]:
    """Rules that have no text which ends, and that some alternative needs."""
    if isinstance(rule, str):
        if rule not in ending:
            yield rule
        return
    for option in rule.options:
        for part in option:
            if not _ends(part, ending):
                yield from _needed(part, ending)
