"""What a regular expression matches, as a tree without anchors; lengths; the other texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Final

from .regex_syntax import (
    ANY,
    EMPTY,
    Alt,
    Chars,
    Edge,
    Regex,
    RegexError,
    Repeat,
    Seq,
    inverted,
    parse_regex,
    ranges,
)

MAX_WAYS: Final = 256
"""Most alternatives into which anchors inside of groups may split an expression."""

MAX_LISTED: Final = 64
"""Most texts of an expression that are listed in its place."""

LONGEST_LISTED: Final = 256
"""The longest text that is written out where all texts of an expression are listed."""

LONGEST_EXCLUDED: Final = 64
"""The longest text that others may be told not to be: their pattern nests a level a character."""

ANYTHING: Final = Repeat(ANY, 0, None)


@dataclass(frozen=True)
class _Way:
    """A body without anchors, and whether it must stand at the start and at the end."""

    start: bool
    body: Regex
    end: bool


@lru_cache(maxsize=256)
def search_language(pattern: str) -> Regex:
    """All texts in which a pattern is found, as a tree without anchors that matches them whole.

    Raises:
        RegexError: not readable, or an anchor stands where it cannot be resolved.
    """
    return _language(pattern, around=ANYTHING)


def match_language(regex: str) -> Regex:
    """All texts that an expression matches as a whole, as a tree without anchors. See
    `search_language`."""
    return _language(regex, around=EMPTY)


def _language(source: str, around: Regex) -> Regex:
    options = []
    for way in _ways(parse_regex(source), source):
        before = EMPTY if way.start else around
        after = EMPTY if way.end else around
        options.append(sequence(before, way.body, after))
    return alternatives(*options)


def sequence(*parts: Regex) -> Regex:
    """One after the other, flat."""
    flat: list[Regex] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Seq) else [part])
    if any(nothing(part) for part in flat):
        return Alt(())
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alternatives(*options: Regex) -> Regex:
    """Any of them, flat, each once, single characters as one class."""
    flat: dict[Regex, None] = {}
    for option in options:
        for each in option.options if isinstance(option, Alt) else (option,):
            if not nothing(each):
                flat[each] = None
    kept = list(flat)
    classes = [each for each in kept if isinstance(each, Chars)]
    if len(classes) > 1:
        joined = Chars(ranges(*(run for each in classes for run in each.ranges)))
        kept = [each for each in kept if each not in classes]
        kept.insert(0, joined)
    return kept[0] if len(kept) == 1 else Alt(tuple(kept))


def nothing(tree: Regex) -> bool:
    """Whether it is plain that no text matches."""
    match tree:
        case Chars(runs):
            return not runs
        case Seq(parts):
            return any(map(nothing, parts))
        case Alt(options):
            return all(map(nothing, options))
        case Repeat(inner, low, _):
            return low > 0 and nothing(inner)
    return False


def _ways(tree: Regex, source: str) -> list[_Way]:
    """The tree as alternatives whose anchors stand at their edges only."""
    match tree:
        case Edge(start):
            return [_Way(start, EMPTY, not start)]
        case Alt(options):
            found = [way for option in options for way in _ways(option, source)]
            free = [way.body for way in found if not way.start and not way.end]
            joined = [_Way(False, alternatives(*free), False)] if free else []
            return [*joined, *(way for way in found if way.start or way.end)]
        case Seq(parts):
            ways = [_Way(False, EMPTY, False)]
            for more in _joined(_ways(part, source) for part in parts):
                ways = [way for one in ways for other in more for way in _after(one, other)]
                if len(ways) > MAX_WAYS:
                    raise RegexError(f"too many combinations of anchors in {source!r}")
            return ways
        case Repeat(inner, low, high):
            ways = _ways(inner, source)
            if not ways:
                return [] if low else [_Way(False, EMPTY, False)]
            if not any(way.start or way.end for way in ways):
                return [_Way(False, repeated(ways[0].body, low, high), False)]
            if high == 1 or ((low, high) == (0, None) and all(_fixed(way) for way in ways)):
                # An anchored text cannot come twice, except for the empty one.
                return [*([] if low else [_Way(False, EMPTY, False)]), *ways]
            raise RegexError(f"an anchor in a repetition cannot be enforced (in {source!r})")
        case _:
            return [_Way(False, tree, False)]


def _joined(parts: Iterable[list[_Way]]) -> Iterator[list[_Way]]:
    """Parts in a row that have no anchors as one: what is joined is looked at as a whole."""
    free: list[Regex] = []
    for ways in parts:
        if len(ways) == 1 and not ways[0].start and not ways[0].end:
            free.append(ways[0].body)
            continue
        if free:
            yield [_Way(False, sequence(*free), False)]
            free = []
        yield ways
    if free:
        yield [_Way(False, sequence(*free), False)]


def _fixed(way: _Way) -> bool:
    return way.start and way.end


def _after(one: _Way, other: _Way) -> list[_Way]:
    """One and then the other: what is before `^`, or after `$`, must be empty."""
    body, rest = one.body, other.body
    if other.start:
        if not nullable(body):
            return []
        body = EMPTY
    if one.end:
        if not nullable(rest):
            return []
        rest = EMPTY
    return [_Way(one.start or other.start, sequence(body, rest), one.end or other.end)]


def repeated(inner: Regex, low: int, high: int | None) -> Regex:
    """The same again, without repetitions that change nothing."""
    if nothing(inner):
        return EMPTY if low == 0 else Alt(())
    if high == 0 or inner == EMPTY:
        return EMPTY
    if (low, high) == (1, 1):
        return inner
    if isinstance(inner, Repeat):
        # (x{a,b}){c,d} is x{ac,bd} where the counts leave no gap.
        endless = inner.high is None or high is None
        if inner.low in (0, 1) and (endless or (low, high) == (0, 1)):
            both = None if high is None or inner.high is None else inner.high * high
            return Repeat(inner.inner, inner.low * low, both)
    return Repeat(inner, low, high)


def nullable(tree: Regex) -> bool:
    """Whether the empty text matches."""
    match tree:
        case Seq(parts):
            return all(map(nullable, parts))
        case Alt(options):
            return any(map(nullable, options))
        case Repeat(inner, low, _):
            return low == 0 or nullable(inner)
        case Edge():
            return True
    return False


def lengths(tree: Regex) -> tuple[int, int | None]:
    """The fewest and the most characters of a match; None is without end."""
    match tree:
        case Chars():
            return 1, 1
        case Seq(parts):
            found = [lengths(part) for part in parts]
            highs = [high for _, high in found]
            return sum(low for low, _ in found), _total(highs)
        case Alt(options):
            found = [lengths(option) for option in options if not nothing(option)]
            highs = [high for _, high in found]
            most = None if None in highs else max((h for h in highs if h is not None), default=0)
            return min((low for low, _ in found), default=0), most
        case Repeat(inner, low, high):
            least, most = lengths(inner)
            if most == 0:
                return 0, 0
            return least * low, None if most is None or high is None else most * high
    return 0, 0


def _total(values: list[int | None]) -> int | None:
    return None if None in values else sum(value for value in values if value is not None)


def with_lengths(tree: Regex, low: int, high: int | None) -> Regex | None:
    """The tree for matches of `low` to `high` characters; None where this cannot be written.

    It can where at most one part of a sequence varies, and that part repeats one class.
    """
    least, most = lengths(tree)
    if low <= least and (high is None or (most is not None and most <= high)):
        return tree
    if high is not None and (high < least or high < low):
        return Alt(())
    if most is not None and most < low:
        return Alt(())
    if isinstance(tree, Alt):
        options = [with_lengths(option, low, high) for option in tree.options]
        kept = [option for option in options if option is not None]
        return alternatives(*kept) if len(kept) == len(options) else None
    parts = tree.parts if isinstance(tree, Seq) else (tree,)
    varying = [index for index, part in enumerate(parts) if len(set(lengths(part))) > 1]
    if len(varying) != 1:
        return None
    (index,) = varying
    part = parts[index]
    if not isinstance(part, Repeat) or not isinstance(part.inner, Chars):
        return None
    fixed = least - lengths(part)[0]
    bottom = max(part.low, low - fixed)
    tops = [top for top in (part.high, None if high is None else high - fixed) if top is not None]
    fitted = repeated(part.inner, bottom, min(tops) if tops else None)
    return sequence(*parts[:index], fitted, *parts[index + 1 :])


def other_than(texts: Sequence[str], begun: Sequence[str] = ()) -> Regex:
    """Every text but these, and but those that begin so."""
    if "" in begun:
        return Alt(())
    follow: dict[str, tuple[list[str], list[str]]] = {}
    for some, kind in ((texts, 0), (begun, 1)):
        for text in filter(None, some):
            follow.setdefault(text[0], ([], []))[kind].append(text[1:])
    known = ranges(*((ord(first), ord(first)) for first in follow))
    return alternatives(
        *([] if "" in texts else [EMPTY]),
        sequence(Chars(inverted(known)), ANYTHING),
        *(
            sequence(Chars(ranges((ord(first), ord(first)))), other_than(*rests))
            for first, rests in follow.items()
        ),
    )


def beginning(tree: Regex) -> str:
    """What every match begins with, as far as it is plain to see."""
    found = ""
    for part in tree.parts if isinstance(tree, Seq) else (tree,):
        if not isinstance(part, Chars) or len(part.ranges) != 1:
            break
        ((low, high),) = part.ranges
        if low != high:
            break
        found += chr(low)
    return found


def texts(tree: Regex, most: int) -> list[str] | None:
    """All texts that match; None if there are more than `most`, or a very long one."""
    _, longest = lengths(tree)
    if longest is None or longest > LONGEST_LISTED:
        return None
    try:
        return _listed(tree, most)
    except _TooMany:
        return None


@lru_cache(maxsize=256)
def texts_with(
    pattern: str | None, most: int, low: int = 0, high: int | None = None
) -> tuple[str, ...] | None:
    """Texts among which are all that a pattern is found in, of `low` to `high` characters.

    None if there are more than `most`, or a very long one, or the pattern is malformed. No pattern
    is found in any text.
    """
    try:
        tree = ANYTHING if pattern is None else search_language(pattern)
    except RegexError:
        return None
    fitted = with_lengths(tree, low, high)
    found = texts(tree if fitted is None else fitted, most)
    return None if found is None else tuple(found)


class _TooMany(Exception):
    """More texts match than are listed."""


def _listed(tree: Regex, most: int) -> list[str]:
    match tree:
        case Chars(runs):
            codes = chain.from_iterable(range(low, high + 1) for low, high in runs)
            return _few(map(chr, codes), most)
        case Seq(parts):
            found = [""]
            for part in parts:
                ends = _listed(part, most)
                found = _few((start + end for start in found for end in ends), most)
            return found
        case Alt(options):
            return _few((text for option in options for text in _listed(option, most)), most)
        case Repeat(inner, low, high) if high is not None and lengths(inner)[1]:
            more = Alt((EMPTY, inner))
            return _listed(Seq((*(inner,) * low, *(more,) * (high - low))), most)
    return [""]


def _few(some: Iterable[str], most: int) -> list[str]:
    """The texts, each once. Raises `_TooMany`."""
    found: dict[str, None] = {}
    for each in some:
        found[each] = None
        if len(found) > most:
            raise _TooMany
    return list(found)
