"""Suffix decoding on the host, against a search in plain lists; and what it keeps."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from stepweave.sampling.suffixes import Outputs, Search, Text, ways_on

ALL = Search(longest=50, places=1000, ways=50, length=5)


def text_of(tokens: Sequence[int], shortest: int = 1) -> Text:
    text = Text(shortest)
    text.extend(tokens)
    return text


def searched(
    tokens: list[int], seen: Sequence[list[int]], shortest: int, search: Search
) -> list[list[int]]:
    """The ways, found by looking at every place; `seen`: outputs, the newest last."""
    found: list[tuple[int, list[int], int, bool]] = []  # equal tokens, text, its end, the own one?
    for text, last, own in (
        (tokens, len(tokens) - 1, True),
        *((each, len(each), False) for each in reversed(seen)),
    ):
        for end in range(last, 0, -1):
            length = 0
            while length < min(end, len(tokens), search.longest) and (
                text[end - 1 - length] == tokens[-1 - length]
            ):
                length += 1
            if (
                length >= min(shortest, search.longest)
                and text[:end][-shortest:] == (tokens[-shortest:])
            ):
                found.append((length, text, end, own))
    found.sort(key=lambda each: -each[0])

    def after(place: tuple[int, list[int], int, bool], way: list[int]) -> int | None:
        _, text, end, own = place
        whole = text + way if own else text
        return whole[end + len(way)] if end + len(way) < len(whole) else None

    firsts = [(each, after(each, [])) for each in found]
    best: dict[int, int] = {}
    for place, first in firsts:
        if first is not None:
            best.setdefault(first, place[0])
    count = Counter(first for place, first in firsts if first and place[0] == best[first])
    count[0] = sum(first == 0 and place[0] == best[0] for place, first in firsts)
    ways = []
    for first in sorted(best, key=lambda token: (-best[token], -count[token]))[: search.ways]:
        places = [place for place, token in firsts if token == first]
        way: list[int] = []
        while places and len(way) < search.length:
            nexts = [(place, after(place, way)) for place in places]
            known = Counter(token for _, token in nexts if token is not None)
            if not known:
                break
            way.append(known.most_common(1)[0][0])
            places = [place for place, token in nexts if token == way[-1]]
        ways.append(way)
    return ways


@pytest.mark.parametrize("seed", range(60))
def test_ways_are_what_followed_the_longest_match_most_often(seed: int) -> None:
    draw = random.Random(seed)
    letters, shortest = draw.choice([2, 3, 5]), draw.choice([1, 1, 2, 3])
    tokens = [draw.randrange(letters) for _ in range(draw.randrange(0, 25))]
    search = Search(draw.choice([1, 3, 50]), 1000, draw.choice([1, 2, 50]), draw.choice([1, 5]))
    outputs = Outputs(1000, shortest)
    seen: list[list[int]] = []
    for _ in range(draw.randrange(4)):
        seen.append([draw.randrange(letters) for _ in range(draw.randrange(1, 20))])
        outputs.add(seen[-1], after=0)
    kept = [each for each in seen if len(each) >= shortest]
    found = ways_on(text_of(tokens, shortest), outputs, 1, search)
    assert found == searched(tokens, kept, shortest, search)


def test_small_cases_by_hand() -> None:
    none = Outputs(0, 1)

    def ways(tokens: Sequence[int], search: Search = ALL) -> list[list[int]]:
        return ways_on(text_of(tokens), none, 0, search)

    assert ways([1, 2, 3, 4, 1, 2]) == [[3, 4, 1, 2, 3]], "a text that repeats goes on so"
    assert ways([7, 8, 20, 5, 8, 30, 7, 8])[:2] == [[20, 5, 8, 30, 7], [30, 7, 8, 30, 7]]
    assert ways([1, 5, 1, 6, 1, 6, 1])[0][0] == 6
    assert ways([1, 2, 3]) == []
    assert ways([]) == []
    assert ways([4, 4]) == [[4, 4, 4, 4, 4]]
    assert ways([1, 5, 2, 1, 6, 2, 1, 6, 3, 1], Search(1, 1000, 1, 2)) == [[6, 3]], "later first"


def test_a_request_is_shown_outputs_that_ended_before_it_arrived() -> None:
    outputs = Outputs(100, 1)
    outputs.add([1, 2, 3], after=4)
    outputs.add([1, 7, 8], after=6)
    text = text_of([1])
    assert ways_on(text, outputs, 4, ALL) == []
    assert ways_on(text, outputs, 5, ALL) == [[2, 3]]
    assert ways_on(text, outputs, 7, ALL) == [[7, 8], [2, 3]]


def test_the_text_itself_comes_before_outputs() -> None:
    outputs = Outputs(100, 1)
    outputs.add([1, 2], after=0)
    assert ways_on(text_of([1, 3, 1]), outputs, 1, ALL) == [[3, 1, 3, 1, 3], [2]]


def test_no_more_is_kept_than_there_is_room_for() -> None:
    draw, most = random.Random(0), 120
    outputs, added = Outputs(most, 2), []
    for number in range(300):
        tokens = [draw.randrange(6) for _ in range(draw.choice([1, 2, 9, 40, 200]))]
        outputs.add(tokens, after=number)
        if len(tokens) > 1:
            added.append(tokens[-most:])
        kept, room = 0, most
        for each in reversed(added):
            if len(each) > room:
                break
            room, kept = room - len(each), kept + 1
        assert outputs.tokens == most - room
        assert len(outputs) == kept
        places = sum(len(each) for each in outputs._ends.values())
        assert places == sum(len(each) - 1 for each in added[-kept:])
        assert all(outputs._ends.values()), "no entry is left of what is gone"
        found = {tuple(each) for each, _ in outputs.places((1, 2), number + 1)}
        assert found <= {tuple(each) for each in added[-kept:]}


def test_with_no_room_nothing_is_kept() -> None:
    outputs = Outputs(0, 1)
    outputs.add([1, 2, 3], after=0)
    assert (len(outputs), outputs.tokens) == (0, 0)


def test_where_a_likely_token_may_not_come_the_next_one_is_followed() -> None:
    class Refusing:
        """What may come: anything but these tokens, and nothing after so many."""

        def __init__(self, refused: set[int], most: int) -> None:
            self.refused, self.most, self.gone = refused, most, 0

        def accept(self, token: int) -> bool:
            goes = token not in self.refused and self.gone < self.most
            self.gone += goes
            return goes

        def rollback(self, count: int) -> None:
            self.gone -= count

    tokens = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 3, 8, 7, 1]
    text, none = text_of(tokens), Outputs(0, 1)
    search = Search(longest=50, places=50, ways=2, length=4)
    assert ways_on(text, none, 0, search) == [[2, 3, 8, 7]]
    for refused, most, expected in (
        ({8}, 9, [[2, 3, 9, 1]]),
        ({3}, 9, [[2, 4, 9, 1]]),
        ({8}, 2, [[2, 3]]),
        ({2}, 9, []),
    ):
        guide = Refusing(refused, most)
        assert ways_on(text, none, 0, search, guide) == expected
        assert guide.gone == 0, "it stands where it stood"
