"""EBNF rules of which no text ends: each text of a rule would have another of it inside.

The libraries compile such a grammar, and a model that comes to the rule then writes without end, or
may write nothing more. What is written in a way that is not read here, which the libraries may well
know, is nothing that is claimed anything of.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

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


Name = str | int
"""A rule's name, or the number of a group of it, which is as a rule of its own."""

Rules = Mapping[Name, Sequence[Sequence[Name]]]
"""Alternatives of each rule: what each needs, in their order. Nothing is needed for a text."""


def endless(source: str) -> tuple[str, ...] | None:
    """Rules of which each needs the next, up to one that is there already: from the root on, or
    from another one that a text may come to.

    None where all of them have texts that end, or nothing is known. Raises nothing.
    """
    try:
        rules, names = _rules(_tokens(source))
    except _Unread:
        return None
    ending = _ending(rules)
    first = next((name for name in _reached(names) if name in rules and name not in ending), None)
    if first is None:
        return None
    path: dict[str, None] = {}
    needed: Name = first
    while needed not in path:
        if isinstance(needed, str):
            path[needed] = None
        needed = next(part for part in rules[needed][0] if part not in ending)
    return (*path, str(needed))


def _reached(names: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Rules that the root names, those that they name, and so on."""
    found = dict.fromkeys([ROOT])
    left = [ROOT]
    while left:
        new = [name for name in dict.fromkeys(names.get(left.pop(), ())) if name not in found]
        found |= dict.fromkeys(new)
        left += new
    return list(found)


def _tokens(source: str) -> list[Token]:
    found = [(match.lastgroup or "other", match[0]) for match in _TOKEN.finditer(source)]
    return [each for each in found if each[0] != "blank"]


def _rules(tokens: Sequence[Token]) -> tuple[Rules, Mapping[str, Sequence[str]]]:
    """The rules, and all names that each has in it."""
    rules: dict[Name, list[list[Name]]] = {}
    names: dict[str, list[str]] = {}
    for name, body in _bodies(tokens):
        rules[name] = [[]]
        names[name] = [written for kind, written in body if kind == "name"]
        inside: list[Name] = [name]  # the rule, and groups that are open
        for at, token in enumerate(body):
            kind, written = token
            part: Name | None = None
            if token == ("sign", "("):
                inside.append(len(rules))
                rules[inside[-1]] = [[]]
            elif token == ("sign", ")"):
                part = inside.pop()
                if not inside:
                    raise _Unread
            elif token == ("sign", "|"):
                rules[inside[-1]].append([])
            elif kind == "name":
                part = written
            elif kind not in ("text", "times"):
                raise _Unread
            if part is not None and not _may_be_missing(body, at + 1):
                rules[inside[-1]][-1].append(part)
        if len(inside) > 1:
            raise _Unread
    return rules, names


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


def _may_be_missing(body: Sequence[Token], at: int) -> bool:
    """Whether what is written from here on allows what stands before it to be there no times."""
    while at < len(body) and body[at][0] == "times":
        if body[at][1] in "*?" or re.match(r"\{\s*0+\s*[,}]", body[at][1]):
            return True
        at += 1
    return False


def _ending(rules: Rules) -> set[Name]:
    """Rules of which some text ends, and names of no rule, in time linear in what is written."""
    ending: set[Name] = set()
    waiting: dict[Name, list[tuple[Name, list[Name]]]] = defaultdict(list)
    ready: list[Name] = [part for each in rules.values() for way in each for part in way]
    ready = [part for part in ready if part not in rules]
    for name, options in rules.items():
        for option in options:
            missing = list(option)
            if missing:
                waiting[missing[-1]].append((name, missing))
            else:
                ready.append(name)
    while ready:
        name = ready.pop()
        if name in ending:
            continue
        ending.add(name)
        for waits, missing in waiting.pop(name, []):
            while missing and missing[-1] in ending:
                missing.pop()
            if missing:
                waiting[missing[-1]].append((waits, missing))
            else:
                ready.append(waits)
    return ending
