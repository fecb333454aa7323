"""What windows come to, by the number of their drafts.

How many drafts are kept of a long window tells too little of a short one: a window begins where the
last one ended, often at a token that is hard to guess, and short ones begin more often in between.
So what each number of drafts came to is counted by itself. A window of a text that had ended while
it was in flight came to nothing, and took its time: the wider windows are, the larger a share of a
text's steps these are.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..policies.estimates import Unsure
from .relative_times import RelativeTimes

TOGETHER = 32
"""Windows whose mean is noted."""

TOLD = 8
"""Means after which what is known is told anew: telling takes longer than noting."""

NOISE = 0.15**2
"""How far such a mean is off, at least: variance of its logarithm. It is 0.06 to 0.08
by chance; means that follow each other are of the same texts, so several are hardly better than
one."""

DRIFT = 0.005**2
"""How far texts become easier or harder from one mean to the next, at least. Seldom: what a kind of
text has more of than another comes and goes."""

WANDERS = 0.0005**2
"""How far one number of drafts does against the others."""


REMEMBERED = 8192
"""Windows of one number of drafts after which those before count half as much: texts may become
longer or shorter, and so may the share of windows that their ends waste."""


class WindowGains:
    """Fed by the thread that settles windows; any may read."""

    def __init__(self) -> None:
        self._counted: dict[int, tuple[int, int]] = {}  # windows and tokens that are not noted yet
        # By drafts: windows, and those of them that came to nothing. They come all at once where
        # texts end together, so they are no part of the means, which would be far off then.
        self._windows: dict[int, tuple[float, float]] = {}
        self._noted, self._number = RelativeTimes(NOISE, DRIFT, WANDERS), 0
        self._now: Mapping[int, float] = {}
        self._unsure: Unsure = {}

    def note(self, drafts: int, tokens: int) -> None:
        """A window of so many drafts came to so many tokens; none, if its text had ended."""
        every, wasted = self._windows.get(drafts, (0.0, 0.0))
        every, wasted = every + 1, wasted + (not tokens)
        if every > REMEMBERED:
            every, wasted = every / 2, wasted / 2
        self._windows[drafts] = every, wasted
        if not tokens:
            return
        windows, before = self._counted.get(drafts, (0, 0))
        windows, tokens = windows + 1, before + tokens
        if windows >= TOGETHER:
            self._noted.note(drafts, tokens / windows)
            self._number += 1
            if drafts not in self._now or self._number % TOLD == 0:
                self._tell()
            windows = tokens = 0
        self._counted[drafts] = windows, tokens

    def _tell(self) -> None:
        self._unsure = self._noted.unsure()
        self._now = {
            drafts: tokens * (1 - self._windows[drafts][1] / self._windows[drafts][0])
            for drafts, tokens in self._noted.now().items()
        }

    def now(self) -> Mapping[int, float]:
        """Tokens of a window, by its drafts, where enough came up; as if all had just now."""
        return self._now

    def unsure(self) -> Unsure:
        """By what share these may be off against each other, as of `RelativeTimes`."""
        return self._unsure
