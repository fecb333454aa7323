"""What windows come to, by the number of their drafts.

How many drafts are kept of a long window tells too little of a short one: a window begins where the
last one ended, often at a token that is hard to guess, and short ones begin more often in between.
So what each number of drafts came to is counted by itself. A window of a text that had ended while
it was in flight came to nothing, and took its time: the wider windows are, the larger a share of a
text's steps these are.
"""

from __future__ import annotations

from collections.abc import Mapping

from .relative_times import RelativeTimes

TOGETHER = 32
"""Windows whose mean is noted."""

TOLD = 8
"""Means after which what is known is told anew: telling takes longer than noting."""

NOISE = 0.15**2
"""How far such a mean is off: variance of its logarithm. It is 0.06 to 0.08 by chance; means that
follow each other are of the same texts, so several are hardly better than one."""

DRIFT = 0.005**2
"""How far texts become easier or harder from one mean to the next. Seldom: what a kind of text has
more of than another comes and goes."""

WANDERS = 0.001**2
"""How far one number of drafts does against the others."""


class WindowGains:
    """Fed by the thread that settles windows; any may read."""

    def __init__(self) -> None:
        self._counted: dict[int, tuple[int, int]] = {}  # windows and tokens that are not noted yet
        self._noted, self._number = RelativeTimes(NOISE, DRIFT, WANDERS), 0
        self._now: Mapping[int, float] = {}
        self._unsure: Mapping[int, Mapping[int, float]] = {}

    def note(self, drafts: int, tokens: int) -> None:
        """A window of so many drafts came to so many tokens; none, if its text had ended."""
        windows, before = self._counted.get(drafts, (0, 0))
        windows, tokens = windows + 1, before + tokens
        if windows >= TOGETHER and tokens:
            self._noted.note(drafts, tokens / windows)
            self._number += 1
            if drafts not in self._now or self._number % TOLD == 0:
                self._now, self._unsure = self._noted.now(), self._noted.unsure()
            windows = tokens = 0
        self._counted[drafts] = windows, tokens

    def now(self) -> Mapping[int, float]:
        """Tokens of a window, by its drafts, where enough came up; as if all had just now."""
        return self._now

    def unsure(self) -> Mapping[int, Mapping[int, float]]:
        """By what share these may be off against each other, as of `RelativeTimes`."""
        return self._unsure
