"""When a request ends by its own conditions, or a policy's, and which of its text may be shown.

Reads settled tokens only: a draft or a placeholder must never end a request or reach its user. The
result does not depend on how the tokens were split into steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..graph.errors import told
from ..graph.raised import raised_at
from ..policies.errors import PolicyError
from ..policies.registry import called
from ..policies.stopping import OutputView, Stopping

FinishReason = Literal["stop", "length"]

DecodePiece = Callable[[Sequence[int]], str]
"""The text that these further tokens add; stateful, called once per token, in order."""


@dataclass(frozen=True)
class StopDecision:
    """What to make of the tokens of one step.

    kept: how many of them belong to the request. A stop token is the last that does; so is the
        token that completes a stop string. Tokens after it are dropped.
    text: text that may be shown now. Never contains a stop string or the text of a stop token.
    finish_reason: None while the request goes on.
    stop: what ended it: the stop token's id or the stop string; None otherwise.
    """

    kept: int
    text: str
    finish_reason: FinishReason | None
    stop: int | str | None = None


class StopChecker:
    """Follows one request's settled tokens to its end.

    The stop string that completes first in the text ends it, and of two that complete at the same
    character the longer; the text is cut before it. So the cut does not depend on how the text
    falls into tokens. Text that could still become a stop string is held back until it cannot, or
    until the request ends another way. What the decoder itself holds back to the end, as behind
    half of a character, is text like any other.

    Args:
        stop_token_ids: tokens that end the request (end of sequence included, unless ignored).
        stop_strings: texts that end the request.
        max_tokens: the request ends with this many tokens, stop token included.
        min_tokens: no stop string ends the request before it has this many tokens; text from
            before is no part of a stop string either. Stop tokens are banned before, when tokens
            are drawn; one that came all the same (a grammar allowed nothing else) ends it.
        include_stop_string: show the stop string itself too.
        policy: may end the request sooner, from `min_tokens` on. What it raises, and another answer
            than True or False, is a `PolicyError` of `push`.

    Raises:
        ValueError: an empty stop string (it would match at once), or a limit that cannot be.
    """

    def __init__(
        self,
        stop_token_ids: Iterable[int],
        stop_strings: Iterable[str],
        max_tokens: int,
        min_tokens: int = 0,
        include_stop_string: bool = False,
        policy: Stopping | None = None,
    ) -> None:
        self._stop_tokens = frozenset(stop_token_ids)
        self._stop_strings = tuple(stop_strings)
        if "" in self._stop_strings:
            raise ValueError("a stop string is empty: it would end the request at once")
        if not 0 <= min_tokens <= max_tokens or max_tokens < 1:
            raise ValueError(
                f"max_tokens is {max_tokens}, min_tokens {min_tokens}; needed is "
                "0 <= min_tokens <= max_tokens and 1 <= max_tokens"
            )
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._include = include_stop_string
        self._policy = policy if policy is not None and policy.asks else None
        self._tokens: list[int] = []  # of the request, and its text: for the policy alone
        self._text = ""
        self._count = 0
        self._held = ""
        self._finish_reason: FinishReason | None = None
        self._stop: int | str | None = None

    @property
    def count(self) -> int:
        """Settled tokens of the request so far."""
        return self._count

    @property
    def finish_reason(self) -> FinishReason | None:
        return self._finish_reason

    def push(
        self, tokens: Sequence[int], decode: DecodePiece, rest: Callable[[], str] = str
    ) -> StopDecision:
        """Take the tokens that one step settled. After the end nothing is kept or decoded.

        `rest`: the text that the decoder has held back, asked for when the tokens end the request,
        unless a stop string does.

        Raises:
            ValueError: a placeholder among them; nothing is taken then.
            PolicyError: the policy failed, or gave no answer.
        """
        if any(token < 0 for token in tokens):
            raise ValueError(f"placeholder among settled tokens: {list(tokens)}")
        shown: list[str] = []
        kept = 0
        for token in tokens:
            if self._finish_reason is not None:
                break
            kept += 1
            shown.append(self._take(token, decode, rest))
        return StopDecision(kept, "".join(shown), self._finish_reason, self._stop)

    def release(self, rest: str = "") -> str:
        """The text that is held back, for a request that ends from outside (abort, failure), and
        the `rest`, which the decoder has held back: up to a stop string in it, if there is one.
        """
        text, self._held = self._held + rest, ""
        return self._before_match(text)[0]

    def _take(self, token: int, decode: DecodePiece, rest: Callable[[], str]) -> str:
        self._count += 1
        if token in self._stop_tokens:
            self._finish_reason, self._stop = "stop", token
            return self._ended_with(self._held, rest)

        piece = decode([token])
        text = self._held + piece
        if self._policy is not None:
            self._tokens.append(token)
            self._text += piece
        if (
            not self._may_stop
        ):  # nor is it the last that there may be: `min_tokens` is no more than that
            return text
        shown, string = self._before_match(text)
        if string is not None:
            self._held = ""
            self._finish_reason, self._stop = "stop", string
            return shown
        if self._ended_by_policy() or self._finish_at_length():
            return self._ended_with(text, rest)
        keep = self._could_grow(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    @property
    def _may_stop(self) -> bool:
        return self._count >= self._min_tokens

    def _ended_with(self, text: str, rest: Callable[[], str]) -> str:
        """The last text that is shown: what the decoder has held back may complete a stop string,
        which then came before whatever has ended the request.
        """
        self._held = ""
        shown, string = self._before_match(text + rest())
        if string is not None:
            self._finish_reason, self._stop = "stop", string
        return shown

    def _before_match(self, text: str) -> tuple[str, str | None]:
        """What may be shown of a text, and the stop string in it that ends it there."""
        match = self._first_match(text) if self._may_stop else None
        if match is None:
            return text, None
        start, string = match
        return text[: start + len(string) if self._include else start], string

    def _ended_by_policy(self) -> bool:
        if self._policy is None:
            return False
        try:
            ends = self._policy.ends(OutputView(tuple(self._tokens), self._text))
        except Exception as failure:  # the boundary: code that is not ours
            said = f"`ends` raised {told(failure)}{raised_at(failure)}"
            raise PolicyError(f"{called('stopping', self._policy)}: {said}") from failure
        if not isinstance(ends, bool):
            said = f"`ends` returned {ends!r:.60}: return True or False"
            raise PolicyError(f"{called('stopping', self._policy)}: {said}")
        if ends:
            self._finish_reason = "stop"
        return ends

    def _finish_at_length(self) -> bool:
        if self._count >= self._max_tokens:
            self._finish_reason = "length"
            return True
        return False

    def _first_match(self, text: str) -> tuple[int, str] | None:
        """The start and string of the match that ends first; of those, the longest."""
        found = [
            (start + len(string), start, string)
            for string in self._stop_strings
            if (start := text.find(string)) >= 0
        ]
        if not found:
            return None
        _, start, string = min(found)
        return start, string

    def _could_grow(self, text: str) -> int:
        """Length of the longest end of `text` that is the beginning of a stop string."""
        longest = max((len(string) for string in self._stop_strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[-length:]
            if any(string.startswith(tail) for string in self._stop_strings):
                return length
        return 0
