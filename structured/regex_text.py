r"""Trees of regular expressions as text for the grammar libraries.

Both get the same conservative form: classes of explicit characters, groups, alternatives and
counted repetitions, without anchors. XGrammar 0.2.8 is exact for this form only: it reads `?` after
a group that ends in a repetition wrong, drops anchors, and lets tokens into its masks that its
matcher refuses for `(…)*`, `(…)+` and `(…|…)` before more, but not for `(…){0,}`, `(…){1,}` and
`(…|…){1,1}`. It also takes a pattern for a string in JSON as the raw text between the quotes, so
that escapes would have to be in the pattern.
"""

from __future__ import annotations

from typing import Final

from .regex_language import alternatives, repeated, sequence
from .regex_syntax import Alt, Chars, Ranges, Regex, Repeat, Seq, common, inverted, ranges

_UNESCAPED: Final = ranges((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF))
"""What a JSON string may hold as it is."""

_NUL: Final = ranges((0, 0))
_CONTROLS: Final = ranges((0, 0x1F))
_ESCAPED: Final = ranges((0x22, 0x22), (0x5C, 0x5C))
"""The quote and the backslash, which a JSON string holds behind a backslash only."""


def json_text(tree: Regex) -> Regex | None:
    """The raw text of JSON strings whose value the tree matches, without escapes.

    A class that has characters that need no escape is narrowed to these; None where one has not.
    """
    match tree:
        case Chars(runs):
            plain = common(runs, _UNESCAPED)
            return Chars(plain) if plain or not runs else None
        case Seq(parts):
            found = [json_text(part) for part in parts]
            kept = [part for part in found if part is not None]
            return sequence(*kept) if len(kept) == len(found) else None
        case Alt(options):
            found = [json_text(option) for option in options]
            kept = [option for option in found if option is not None]
            return alternatives(*kept) if len(kept) == len(found) else None
        case Repeat(inner, low, high):
            again = json_text(inner)
            return None if again is None else repeated(again, low, high)
    raise AssertionError("anchors were resolved")


def without_misread_classes(tree: Regex) -> Regex:
    """The tree for llguidance 1.9.1 in JSON strings, narrower by NUL in some classes.

    A class of all controls without the quote or without the backslash, such as `[^"]`, is read as
    if it had both, once they are escaped. Without NUL the library reads it right.
    """
    match tree:
        case Chars(runs):
            misread = common(runs, _CONTROLS) == _CONTROLS and common(runs, _ESCAPED) != _ESCAPED
            return Chars(common(runs, inverted(_NUL))) if misread else tree
        case Seq(parts):
            return sequence(*map(without_misread_classes, parts))
        case Alt(options):
            return alternatives(*map(without_misread_classes, options))
        case Repeat(inner, low, high):
            return repeated(without_misread_classes(inner), low, high)
    raise AssertionError("anchors were resolved")


def with_copies(tree: Regex) -> Regex:
    """The tree with each repeated class as copies and what may follow them: x{2,5} as xx and then
    x{0,3}.

    After x{2,5} and a class with characters in common XGrammar 0.2.8 lets tokens into its masks
    that end the string too early, which its matcher then refuses.
    """
    match tree:
        case Seq(parts):
            return sequence(*map(with_copies, parts))
        case Alt(options):
            return alternatives(*map(with_copies, options))
        case Repeat(Chars() as inner, low, high):
            more = repeated(inner, 0, None if high is None else high - low)
            return sequence(*[inner] * low, more)
        case Repeat(inner, low, high):
            return repeated(with_copies(inner), low, high)
    return tree


def regex_text(tree: Regex) -> str:
    """The tree in the syntax that both libraries read alike."""
    match tree:
        case Chars(runs):
            assert runs, "nothing matches"
            if len(runs) == 1 and runs[0][0] == runs[0][1]:
                code = runs[0][0]
                return _character(code) if code else f"[{_NUL_TEXT}]"
            return f"[{_class(runs)}]"
        case Seq(parts):
            last = len(parts) - 1
            return "".join(
                f"({regex_text(part)}){'{1,1}' if index < last else ''}"
                if isinstance(part, Alt)
                else regex_text(part)
                for index, part in enumerate(parts)
            )
        case Alt(options):
            assert options, "nothing matches"
            return "|".join(regex_text(option) for option in options)
        case Repeat(inner, low, high):
            body, count = regex_text(inner), _count(low, high)
            if isinstance(inner, Chars):
                return body + {"{0,}": "*", "{1,}": "+"}.get(count, count)
            return f"({body}){count}"
    raise AssertionError("anchors were resolved")


def _count(low: int, high: int | None) -> str:
    if low == high:
        return f"{{{low}}}"
    return f"{{{low},{'' if high is None else high}}}"


def _class(runs: Ranges) -> str:
    """The runs, NUL and "^" behind the others: XGrammar takes a "^" in front, however it is
    written, for one that negates the class, and what follows NUL for more digits of its escape."""
    text = ""
    nul = ""
    hat = ""
    for low, high in runs:
        if low == 0:
            nul, low = _NUL_TEXT, low + 1
        if low == ord("^"):
            hat, low = _character(low), low + 1
        text += _run(low, high) if low <= high else ""
    return text + nul + hat


def _run(low: int, high: int) -> str:
    return _character(low) if low == high else f"{_character(low)}-{_character(high)}"


_SPECIAL: Final = "\\^$.|?*+()[]{}/-"
_SHORT: Final = {9: "\\t", 10: "\\n", 13: "\\r"}
_NUL_TEXT: Final = "\\x00"


def _character(code: int) -> str:
    character = chr(code)
    if (character.isascii() and character.isalnum()) or character in " _":
        return character
    if character in _SPECIAL:
        return f"\\{character}"
    return _SHORT.get(code, character)


def longest_count(tree: Regex) -> int:
    """The largest bound of a repetition in the tree."""
    match tree:
        case Seq(parts):
            return max(map(longest_count, parts), default=0)
        case Alt(options):
            return max(map(longest_count, options), default=0)
        case Repeat(inner, low, high):
            return max(longest_count(inner), low, high or 0)
    return 0
