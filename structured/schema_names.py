"""Names other than those of which a schema speaks, as one pattern."""

from __future__ import annotations

from collections.abc import Sequence

from .regex_language import LONGEST_EXCLUDED, beginning, other_than, search_language
from .regex_syntax import Regex, RegexError


def other_names(names: Sequence[str], patterns: Sequence[str], most: int) -> Regex | None:
    """Names that are none of these, and are under none of the patterns.

    All names that begin as those under a pattern do are left out with them; so are, of names of
    many characters, those that begin alike.

    Args:
        names: that are not to match.
        patterns: whose names are not to match. One that cannot be read is left out.
        most: characters that are looked at; what several names begin with counts once.

    Returns:
        None where names under a pattern may begin with anything.
    """
    begun = [each for each in map(_beginning, patterns) if each is not None]
    if "" in begun:
        return None
    known = [*names, *begun]
    total = length = 0
    while length < LONGEST_EXCLUDED:
        total += len({each[: length + 1] for each in known if len(each) > length})
        if total > most:
            break
        length += 1
    exact = [name for name in names if len(name) <= length]
    return other_than(exact, [*(each[:length] for each in known if len(each) > length), *begun])


def _beginning(pattern: str) -> str | None:
    try:
        return beginning(search_language(pattern))
    except RegexError:
        return None
