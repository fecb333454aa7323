"""Where a request goes: by what a replica knows of its prompt, and by what it has to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from hypothesis import given, settings
from hypothesis import strategies as st

from stepweave.replicas.fleet import Routed
from stepweave.replicas.routing import BLOCK, DOUBT_S, REMEMBERED, Known, Router, blocks_of, choose
from stepweave.replicas.work import TAKEN, Message, Work
from stepweave.requests.params import SamplingParams

NAMES = ("a", "b", "c")
counts = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 40), min_size=1)


def prompt(start: int, blocks: int) -> list[int]:
    return [start + each for each in range(blocks * BLOCK)]


def test_with_equal_loads_the_longest_known_prefix_decides() -> None:
    assert choose({"a": 3, "b": 3, "c": 3}, {"b": 64, "c": 96}, 128) == ["c", "b", "a"]


def test_with_nothing_known_the_smallest_load_decides() -> None:
    assert choose({"a": 2, "b": 1, "c": 4}, {}, 100) == ["b", "a", "c"]


def test_a_known_prefix_is_worth_as_much_load_as_computing_it_takes() -> None:
    assert choose({"a": 2, "b": 0}, {"a": 600}, 640, request_tokens=256)[0] == "a"
    assert choose({"a": 3, "b": 0}, {"a": 600}, 640, request_tokens=256)[0] == "b"


@settings(max_examples=60)
@given(loads=counts, cached=counts, prompt_tokens=st.integers(1, 5000))
def test_the_chosen_one_never_has_much_more_to_do(
    loads: dict[str, int], cached: dict[str, int], prompt_tokens: int
) -> None:
    known = {name: min(each * BLOCK, prompt_tokens) for name, each in cached.items()}
    order = choose(loads, known, prompt_tokens, request_tokens=100)
    assert sorted(order) == sorted(loads)
    assert loads[order[0]] - min(loads.values()) <= prompt_tokens / 100


@settings(max_examples=100)
@given(loads=counts, doubted=st.sets(st.sampled_from(NAMES)))
def test_a_replica_that_is_doubted_gets_what_nobody_else_can_take(
    loads: dict[str, int], doubted: set[str]
) -> None:
    order = choose(loads, {name: 10_000 for name in doubted}, 10_000, doubted=doubted)
    assert sorted(order) == sorted(loads)
    assert [name in doubted for name in order] == sorted(name in doubted for name in order)


def test_a_doubt_ends_with_an_answer_and_with_time() -> None:
    now = 0.0
    router = Router(clock=lambda: now)
    router.keep(("a", "b"))
    router.begun("b", ())
    router.doubt("a")
    router.doubt("gone")
    assert (router.choose((), 10), router.doubted) == (["b", "a"], {"a"})
    router.trust("a")
    assert (router.choose((), 10), router.doubted) == (["a", "b"], set())
    router.doubt("a")
    now = DOUBT_S
    assert router.choose((), 10) == ["a", "b"]


def test_there_is_room_where_a_replica_that_is_not_doubted_has_what_it_takes() -> None:
    router = Router()
    router.keep(("a", "b"))
    assert router.has_room(0)
    router.begun("a", ())
    assert router.has_room(0)
    router.doubt("b")
    assert not router.has_room(0)
    assert router.has_room(1)
    router.doubt("a")
    assert not router.has_room(1)


def test_a_block_stands_for_all_tokens_before_its_end() -> None:
    long = prompt(0, 3)
    assert blocks_of(long) == blocks_of([*long, 7])
    assert blocks_of(long[: 2 * BLOCK]) == blocks_of(long)[:2]
    other = [*long]
    other[0] = 99
    assert not set(blocks_of(other)) & set(blocks_of(long))
    assert not set(blocks_of(long, b"mine")) & set(blocks_of(long, b"yours"))
    assert blocks_of(long[: BLOCK - 1]) == []


def test_requests_that_begin_alike_go_to_one_replica_and_others_spread() -> None:
    router = Router()
    router.keep(NAMES)
    chosen = []
    for start in (0, 1000, 2000):
        for turn in range(3):
            asked = prompt(start, 8) + [turn] * BLOCK
            blocks = blocks_of(asked)
            name = router.choose(blocks, len(asked))[0]
            router.begun(name, blocks)
            chosen.append(name)
            router.ended(name)
    # One after the other: nobody has anything to do, so only what is known can tell them apart.
    assert [len({*chosen[at : at + 3]}) for at in (0, 3, 6)] == [1, 1, 1]


def test_under_load_requests_that_begin_alike_spread_all_the_same() -> None:
    router = Router()
    router.keep(("a", "b"))
    asked = prompt(0, 8)
    blocks = blocks_of(asked)
    for _ in range(20):
        router.begun(router.choose(blocks, len(asked))[0], blocks)
    assert abs(router.load("a") - router.load("b")) <= 1


def test_what_has_gone_is_forgotten_and_what_is_new_knows_nothing() -> None:
    router = Router()
    router.keep(("a", "b"))
    asked = prompt(0, 4)
    blocks = blocks_of(asked)
    router.begun("b", blocks)
    router.ended("b")
    assert router.choose(blocks, len(asked))[0] == "b"
    router.keep(("a",))
    router.ended("b")  # of a request that it had: nothing to do
    router.keep(("a", "b"))
    assert router.choose(blocks, len(asked))[0] == "a"
    assert router.load("b") == 0


def test_the_oldest_blocks_are_forgotten_and_the_first_of_a_prompt_last() -> None:
    known = Known()
    known.note(range(REMEMBERED))
    known.note(range(REMEMBERED, REMEMBERED + 10))
    assert len(known.blocks) == REMEMBERED
    assert known.cached(range(REMEMBERED - 1)) == (REMEMBERED - 10) * BLOCK


class Ready:
    """A replica that takes everything."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def generate(self, work: Message) -> AsyncGenerator[Message]:
        yield TAKEN


def test_a_work_waits_for_a_replica_that_stays_when_one_comes_and_goes_at_once() -> None:
    async def waited() -> list[Message]:
        fleet = Routed()

        async def served() -> list[Message]:
            return [each async for each in fleet.generate(Work("a", 0, (1,), SamplingParams()))]

        asked = asyncio.create_task(served())
        await asyncio.sleep(0)
        fleet.add(Ready("a"))
        fleet.drop("a")
        await asyncio.sleep(0)
        fleet.add(Ready("b"))
        return await asyncio.wait_for(asked, 60)

    assert asyncio.run(waited()) == [TAKEN]
