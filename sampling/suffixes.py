"""Suffix decoding on the host: how a text may go on, from texts in which its end has stood before.

Oliaro et al. 2024 (arXiv:2411.04975) keep suffix trees of the request's own text and of earlier
outputs, find the longest suffix of the text in them, and follow what came after it most often. Here
an index has the place rather than the tree: for each short sequence of tokens, where it ends. So
what is kept is as long as the texts, an old output goes at once, and a look-up compares a bounded
number of places backwards. Nothing here needs torch: it runs beside the device.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, Protocol

Key = tuple[int, ...]


class Guide(Protocol):
    """What says which token may come next, from where a text stands: a grammar's matcher does."""

    def accept(self, token: int) -> bool:
        """Go on by a token, if it may come next; False and no change if not."""
        ...

    def rollback(self, count: int) -> None:
        """Go back by so many tokens."""
        ...


class Place(NamedTuple):
    """Where the end of a text has stood: behind the first `end` of `tokens`."""

    tokens: Sequence[int]
    end: int
    length: int  # tokens that are equal, counted backwards
    own: bool  # in the text itself


class Text:
    """A growing text, and where in it each sequence of `shortest` tokens ends."""

    def __init__(self, shortest: int) -> None:
        self.tokens: list[int] = []
        self.shortest = shortest
        self._ends: dict[Key, list[int]] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Let the text go on with `tokens`."""
        for token in tokens:
            self.tokens.append(token)
            if len(self.tokens) >= self.shortest:
                self._ends.setdefault(self.key, []).append(len(self.tokens))

    @property
    def key(self) -> Key:
        """Its last tokens."""
        return tuple(self.tokens[-self.shortest :])

    def ends(self) -> Iterator[int]:
        """Behind which tokens, the newest first, the text's last ones have stood before."""
        return islice(reversed(self._ends.get(self.key, ())), 1, None)


@dataclass(frozen=True, slots=True)
class _Output:
    tokens: tuple[int, ...]
    after: int


@dataclass
class Outputs:
    """Outputs of requests that have ended: the newest, of `most` tokens in all.

    A request is shown those that ended before it arrived. So what it is offered does not depend on
    how far ahead of each other the steps of a pipeline run.
    """

    most: int
    shortest: int
    tokens: int = 0  # kept
    _outputs: deque[_Output] = field(default_factory=deque)
    _first: int = 0  # the number of the oldest
    _ends: dict[Key, deque[tuple[int, int]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._outputs)

    def add(self, tokens: Sequence[int], after: int) -> None:
        """Keep an output, which requests with a number above `after` are shown.

        Numbers never descend. Of an output that alone is too long the end is kept.
        """
        kept = _Output(tuple(tokens)[-self.most :] if self.most else (), after)
        if len(kept.tokens) < self.shortest:
            return
        while self.tokens + len(kept.tokens) > self.most:
            self._drop_oldest()
        number = self._first + len(self._outputs)
        self._outputs.append(kept)
        self.tokens += len(kept.tokens)
        for key, end in _keys(kept.tokens, self.shortest):
            self._ends.setdefault(key, deque()).append((number, end))

    def places(self, key: Key, request: int) -> Iterator[tuple[Sequence[int], int]]:
        """Outputs that `request` is shown, and behind which of their tokens `key` stands in them:
        the newest first.
        """
        for number, end in reversed(self._ends.get(key, ())):
            output = self._outputs[number - self._first]
            if output.after < request:
                yield output.tokens, end

    def _drop_oldest(self) -> None:
        oldest = self._outputs.popleft()
        for key, _ in _keys(oldest.tokens, self.shortest):
            ends = self._ends[key]
            ends.popleft()  # in the order in which they came
            if not ends:
                del self._ends[key]
        self.tokens -= len(oldest.tokens)
        self._first += 1


def _keys(tokens: Sequence[int], shortest: int) -> Iterator[tuple[Key, int]]:
    for end in range(shortest, len(tokens) + 1):
        yield tuple(tokens[end - shortest : end]), end


@dataclass(frozen=True, slots=True)
class Search:
    """How much a look-up may look at."""

    longest: int  # tokens of a suffix that are compared
    places: int  # newest places, of the text and of the outputs each
    ways: int  # ways to go on that are offered
    length: int  # tokens of each


def ways_on(
    text: Text, outputs: Outputs, request: int, search: Search, guide: Guide | None = None
) -> list[list[int]]:
    """How `text`, which is that of `request`, may go on: the likeliest way first.

    Every way begins with another token. One is likelier that has followed a longer suffix of the
    text, then one that did so more often, then later. It goes on with what came most often in the
    places that agree with it so far, longer suffixes and later places first. There are at most
    `search.ways`, of at most `search.length` tokens. With a `guide`, which stands at the end of the
    text and does so again when this returns, tokens count only where they may come next: a way
    ends where no text goes on with one that may. Raises what the guide raises.
    """
    if len(text) < text.shortest:
        return []
    own = (Place(text.tokens, end, 0, True) for end in islice(text.ends(), search.places))
    others = islice(outputs.places(text.key, request), search.places)
    found = [*own, *(Place(tokens, end, 0, False) for tokens, end in others)]
    found = [
        each._replace(length=_equal(text.tokens, each.tokens, each.end, search.longest))
        for each in found
    ]
    found.sort(key=lambda place: -place.length)  # stable: the text's own and the newest lead
    firsts = [(each, _token_after(each, ())) for each in found]
    longest: dict[int, int] = {}
    for place, token in firsts:
        if token is not None:
            longest.setdefault(token, place.length)
    often = Counter(t for place, t in firsts if t is not None and place.length == longest[t])
    ranked = sorted(longest, key=lambda token: (-longest[token], -often[token]))
    followed = (
        _followed([place for place, first in firsts if first == token], search.length, guide)
        for token in ranked
    )
    return list(islice(filter(None, followed), search.ways))


def _equal(text: Sequence[int], tokens: Sequence[int], end: int, longest: int) -> int:
    """How many tokens before `end` of `tokens` are the last ones of `text`."""
    most = min(longest, end, len(text))
    for back in range(1, most + 1):
        if tokens[end - back] != text[-back]:
            return back - 1
    return most


def _followed(places: Sequence[Place], length: int, guide: Guide | None) -> list[int]:
    """What came most often after `places`, which all go on with one token; none where that may not
    come.
    """
    way: list[int] = []
    while places and len(way) < length:
        nexts = [(place, _token_after(place, way)) for place in places]
        counts = Counter(token for _, token in nexts if token is not None)
        # Of equals the first that was counted leads.
        ranked: Iterator[int] = (token for token, _ in counts.most_common())
        if guide is not None:
            ranked = filter(guide.accept, ranked)
        token = next(ranked, None)
        if token is None:
            break
        way.append(token)
        places = [place for place, each in nexts if each == token]
    if guide is not None:
        guide.rollback(len(way))
    return way


def _token_after(place: Place, way: Sequence[int]) -> int | None:
    """The token that came there after `way`: a text that repeats itself goes on with the way."""
    at = place.end + len(way)
    if at < len(place.tokens):
        return place.tokens[at]
    return way[at - len(place.tokens)] if place.own and way else None
