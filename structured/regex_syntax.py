r"""Regular expressions of ECMA-262, the dialect of JSON Schema, as trees.

Read here are the forms that describe a regular language: characters, classes, groups, alternatives,
repetitions and the anchors `^` and `$`. Refused, by position, are forms that need more (lookaround,
back references, `\b`), and forms that other dialects read differently (`\A`, `[]a]`, `a{,3}`),
since an output must be right under each. Lazy quantifiers describe the same language as others.

`\d`, `\w` and `\s` are what both ECMA-262 and Python take for digits, word characters and white
space, `\D`, `\W` and `\S` what neither does. Surrogates are no characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, NoReturn

from .source import GrammarError

Ranges = tuple[tuple[int, int], ...]
"""Code points: first and last of each run, in order, runs apart."""

MAX_CODE: Final = 0x10FFFF


class RegexError(GrammarError):
    """A regular expression that is malformed, or not regular, or ambiguous between dialects."""


@dataclass(frozen=True)
class Chars:
    """One character out of a set; none at all if it is empty."""

    ranges: Ranges


@dataclass(frozen=True)
class Seq:
    """One after the other; the empty text without parts."""

    parts: tuple[Regex, ...]


@dataclass(frozen=True)
class Alt:
    """Any one of them; nothing at all without options."""

    options: tuple[Regex, ...]


@dataclass(frozen=True)
class Repeat:
    """The same again, from `low` to `high` times; None is without end."""

    inner: Regex
    low: int
    high: int | None


@dataclass(frozen=True)
class Edge:
    """`^` or `$`: the start or the end of the whole text."""

    start: bool


Regex = Chars | Seq | Alt | Repeat | Edge

EMPTY: Final = Seq(())


def ranges(*runs: tuple[int, int]) -> Ranges:
    """Runs of code points in order, merged where they touch, without surrogates."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(_without_surrogates(runs)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _without_surrogates(runs: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    kept = []
    for low, high in runs:
        kept += [(low, min(high, 0xD7FF)), (max(low, 0xE000), high)]
    return [(low, high) for low, high in kept if low <= high]


def inverted(some: Ranges) -> Ranges:
    """All other characters."""
    runs, start = [], 0
    for low, high in some:
        if start < low:
            runs.append((start, low - 1))
        start = high + 1
    return ranges(*runs, (start, MAX_CODE)) if start <= MAX_CODE else ranges(*runs)


def common(some: Ranges, others: Ranges) -> Ranges:
    """Characters in both."""
    runs = [
        (max(low, other_low), min(high, other_high))
        for low, high in some
        for other_low, other_high in others
    ]
    return ranges(*((low, high) for low, high in runs if low <= high))


ANY: Final = Chars(ranges((0, MAX_CODE)))
_DIGIT: Final = ranges((0x30, 0x39))
_WORD: Final = ranges((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Final = ranges(
    *((0x9, 0xD), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
_SPACE_ANYWHERE: Final = ranges(*_SPACE, (0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF))
_LINE_END: Final = ranges((0xA, 0xA), (0xD, 0xD), (0x2028, 0x2029))
_NO_WORD: Final = ranges(
    *common(inverted(_WORD), ((0, 0x7F),)),
    *((0x80, 0xA9), (0xAB, 0xB1), (0xB4, 0xB4), (0xB6, 0xB8), (0xBB, 0xBB), (0xBF, 0xBF)),
    *((0xD7, 0xD7), (0xF7, 0xF7), (0x2000, 0x203E), (0x2041, 0x2053), (0x2055, 0x206F)),
)
"""In no reader's `\\w`; fewer than there are, since the others are hundreds of runs."""


@cache
def _classes(*, negated: bool) -> dict[str, Ranges]:
    r"""What `\d` and its like stand for, so that a text is right for every reader.

    ECMA-262 has ASCII in `\d` and `\w`, Python all of Unicode. So the plain letters stand for what
    is in both, and the capital ones for what is in neither; inside of a negated class, whose
    complement counts, the other way round.
    """
    text = "".join(chr(code) for code in range(0x11000) if not 0xD800 <= code <= 0xDFFF)
    digits = ranges(*((ord(hit[0][0]), ord(hit[0][-1])) for hit in re.finditer(r"\d+", text)))
    no_digit = common(inverted(digits), ((0, 0xFFFF),))
    if negated:
        return {
            "d": inverted(no_digit),
            "D": inverted(_DIGIT),
            "w": inverted(_NO_WORD),
            "W": inverted(_WORD),
            "s": _SPACE_ANYWHERE,
            "S": inverted(_SPACE),
        }
    return {
        "d": _DIGIT,
        "D": no_digit,
        "w": _WORD,
        "W": _NO_WORD,
        "s": _SPACE,
        "S": inverted(_SPACE_ANYWHERE),
    }


_CONTROLS: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_DOT: Final = Chars(inverted(_LINE_END))


def parse_regex(source: str) -> Regex:
    """The tree of a regular expression.

    Raises:
        RegexError: says at which character (counted from 1) and why.
    """
    parser = _Parser(source)
    tree = parser.alternatives()
    if parser.more():
        parser.fail("this ')' closes no group")
    return tree


def literal(text: str) -> Regex:
    """Exactly this text."""
    return Seq(tuple(Chars(ranges((ord(each), ord(each)))) for each in text))


class _Parser:
    """Recursive descent over one source."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0

    def more(self) -> bool:
        return self._at < len(self._source)

    def fail(self, what: str, at: int | None = None) -> NoReturn:
        at = self._at if at is None else at
        raise RegexError(f"{what} (at character {at + 1} of {self._source!r})")

    def alternatives(self) -> Regex:
        options = [self._sequence()]
        while self._took("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def _took(self, text: str) -> bool:
        if self._source.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _next(self) -> str:
        self._at += 1
        return self._source[self._at - 1]

    def _sequence(self) -> Regex:
        parts: list[Regex] = []
        while self.more() and self._source[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def _repeated(self, atom: Regex) -> Regex:
        start = self._at
        bounds = self._quantifier()
        if bounds is None:
            return atom
        if isinstance(atom, Edge):
            self.fail("an anchor cannot be repeated", start)
        low, high = bounds
        if high is not None and high < low:
            self.fail("the bounds of this repetition are the wrong way round", start)
        self._took("?")  # lazy: the same language
        if self.more() and self._source[self._at] in "*+?":
            self.fail("nothing to repeat")
        return Repeat(atom, low, high)

    def _quantifier(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._took(sign):
                return bounds
        found = re.compile(r"\{([0-9]+)(,([0-9]*))?\}").match(self._source, self._at)
        if found is None:
            if re.compile(r"\{,[0-9]+\}").match(self._source, self._at):
                self.fail("'{,n}' means different things to different readers: write '{0,n}'")
            return None
        if max(len(found[1]), len(found[3] or "")) > 6:
            self.fail("this repetition is too long")
        self._at = found.end()
        low = int(found[1])
        return low, low if found[2] is None else int(found[3]) if found[3] else None

    def _atom(self) -> Regex:
        start = self._at
        character = self._next()
        match character:
            case "^":
                return Edge(True)
            case "$":
                return Edge(False)
            case ".":
                return _DOT
            case "(":
                return self._group(start)
            case "[":
                return Chars(self._class(start))
            case "\\":
                return Chars(self._escape(start, negated=False))
            case "*" | "+" | "?":
                self.fail("nothing to repeat", start)
        if character == "{" and re.compile(r"[0-9]+(,[0-9]*)?\}").match(self._source, self._at):
            self.fail("nothing to repeat", start)
        return Chars(ranges((ord(character), ord(character))))

    def _group(self, start: int) -> Regex:
        if self._took("?"):
            named = re.compile(r"P?<[A-Za-z_]\w*>").match(self._source, self._at)
            if named:
                self._at = named.end()
            elif not self._took(":"):
                if re.compile("<?[=!]").match(self._source, self._at):
                    self.fail("lookaround cannot be enforced", start)
                self.fail("a group of this kind cannot be enforced", start)
        inner = self.alternatives()
        if not self._took(")"):
            self.fail("this '(' is not closed", start)
        return inner

    def _class(self, start: int) -> Ranges:
        negated = self._took("^")
        if self._source.startswith("]", self._at):
            self.fail("']' at the start of a class means different things to different readers")
        runs: list[tuple[int, int]] = []
        while not self._took("]"):
            if not self.more():
                self.fail("this '[' is not closed", start)
            at = self._at
            low = self._class_atom(negated)
            if (
                self._source.startswith("-", self._at)
                and not self._source.startswith("-]", self._at)
                and len(low) == 1
                and low[0][0] == low[0][1]
            ):
                self._at += 1
                if not self.more():
                    self.fail("this '[' is not closed", start)
                high = self._class_atom(negated)
                if len(high) != 1 or high[0][0] != high[0][1]:
                    self.fail("a range in a class needs a character at each end", at)
                if high[0][0] < low[0][0]:
                    self.fail("this range in a class is the wrong way round", at)
                runs.append((low[0][0], high[0][0]))
            else:
                runs.extend(low)
        found = ranges(*runs)
        return inverted(found) if negated else found

    def _class_atom(self, negated: bool) -> Ranges:
        start = self._at
        character = self._next()
        if character == "\\":
            return self._escape(start, negated=negated, in_class=True)
        return ((ord(character), ord(character)),)

    def _escape(self, start: int, *, negated: bool, in_class: bool = False) -> Ranges:
        if not self.more():
            self.fail("it ends in a backslash", start)
        character = self._next()
        if character in "dDwWsS":
            return _classes(negated=negated)[character]
        if character in _CONTROLS:
            code = _CONTROLS[character]
        elif character == "b" and in_class:
            code = 8
        elif character in "bB":
            self.fail("a word boundary cannot be enforced", start)
        elif character in "123456789k":
            self.fail("a back reference cannot be enforced", start)
        elif character in "pP":
            self.fail("classes of Unicode properties cannot be enforced", start)
        elif character == "0":
            if self.more() and self._source[self._at].isdigit():
                self.fail("an octal escape means different things to different readers", start)
            code = 0
        elif character == "x":
            code = self._hex(2, start)
        elif character == "u":
            code = self._unicode(start)
        elif character == "c" and re.match("[a-zA-Z]", self._source[self._at : self._at + 1]):
            code = ord(self._next()) & 31
        elif character.isascii() and character.isalnum():
            self.fail(f"'\\{character}' means different things to different readers", start)
        else:
            code = ord(character)
        return ((code, code),)

    def _hex(self, digits: int, start: int) -> int:
        text = self._source[self._at : self._at + digits]
        if not re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", text):
            self.fail(f"this escape needs {digits} hexadecimal digits", start)
        self._at += digits
        return int(text, 16)

    def _unicode(self, start: int) -> int:
        code = self._hex(4, start)
        low = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})").match(self._source, self._at)
        if 0xD800 <= code <= 0xDBFF and low:  # a pair of surrogates is one character
            self._at = low.end()
            return 0x10000 + ((code - 0xD800) << 10) + (int(low[1], 16) - 0xDC00)
        return code


@lru_cache(maxsize=4096)
def _searcher(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(python_regex(parse_regex(pattern)))
    except RegexError:
        try:  # lookaround and the like can be asked about a given text all the same
            return re.compile(pattern, re.ASCII)
        except re.error as error:
            raise RegexError(f"{error} in {pattern!r}") from None


def finds(pattern: str, text: str) -> bool:
    """Whether a pattern of JSON Schema is found in a text.

    Raises:
        RegexError: the pattern is malformed.
    """
    return _searcher(pattern).search(text) is not None


def python_regex(tree: Regex) -> str:
    """The tree for Python's `re`."""
    match tree:
        case Chars(()):
            return r"(?!)"
        case Chars(runs):
            return "[" + "".join(rf"\U{low:08x}-\U{high:08x}" for low, high in runs) + "]"
        case Seq(parts):
            return "".join(f"(?:{python_regex(part)})" for part in parts)
        case Alt(options):
            return "|".join(f"(?:{python_regex(option)})" for option in options) or r"(?!)"
        case Repeat(inner, low, high):
            return f"(?:{python_regex(inner)}){{{low},{'' if high is None else high}}}"
        case Edge(start):
            return r"\A" if start else r"\Z"
