"""Keys are granted once, come back once, and only when the plan has ordered their accesses."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepweave.graph.node import OWNER
from stepweave.requests.pools import KeyPool, PoolError, one_class
from stepweave.requests.swap import SWAP, SwapSpace


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 2)), max_size=40),
)
def test_a_key_is_never_granted_before_its_last_step_is_over(
    distance: int, moves: list[tuple[bool, int, int]]
) -> None:
    pool = KeyPool(range(6), one_class(distance))
    held: list[int] = []
    ready: dict[int, int] = {}  # key -> first step at which it may be granted again
    for step, (grants, count, late) in enumerate(moves):
        if grants:
            keys = pool.grant(count, step)
            if keys is None:
                free = [k for k in range(6) if k not in held and ready.get(k, 0) <= step]
                assert len(free) < count
            else:
                assert len(set(keys)) == count
                assert not set(keys) & set(held)
                assert all(ready.get(key, 0) <= step for key in keys)
                held += keys
        elif held:
            key = held.pop(0)
            last = step + late  # a step that is scheduled but has not run
            pool.release([key], last)
            ready[key] = last + distance
        pool.check_conservation()
        assert pool.held == frozenset(held)


@pytest.mark.parametrize("seed", range(30))
def test_shared_and_kept_keys_obey_the_last_step_of_any_user(seed: int) -> None:
    rnd = random.Random(seed)
    distance = rnd.randrange(1, 4)
    evicted: list[int] = []
    pool = KeyPool(range(8), one_class(distance), evicted=evicted.append)
    users: dict[int, int] = {}
    ready: dict[int, int] = {}
    kept: set[int] = set()
    for step in range(150):
        move = rnd.random()
        if move < 0.4:
            count = rnd.randrange(1, 4)
            ripe = {k for k in range(8) if k not in users and ready.get(k, 0) <= step}
            assert pool.available(step) == len(ripe)
            assert pool.resting() == 8 - len(users) - len(ripe)
            without = rnd.sample(range(8), 3)
            assert pool.available(step, without=without) >= len(ripe - set(without))
            evicted.clear()
            keys = pool.grant(count, step)
            assert (keys is None) == (len(ripe) < count)
            if keys is not None:
                assert set(keys) <= ripe
                assert set(evicted) == set(keys) & kept
                assert not evicted or not ripe - kept - set(keys), "evicted while others were free"
                kept -= set(keys)
                users.update((key, 1) for key in keys)
        elif move < 0.6 and (users or kept):
            key = rnd.choice([*users, *sorted(kept)])
            pool.share([key])
            kept.discard(key)
            users[key] = users.get(key, 0) + 1
        elif users:
            key = rnd.choice(list(users))
            last = step - 1 + rnd.randrange(3)
            keep = rnd.random() < 0.5
            pool.release([key], last, keep={key} if keep else ())
            ready[key] = max(ready.get(key, 0), last + distance)
            users[key] -= 1
            if not users[key]:
                del users[key]
                kept |= {key} if keep else set()
        pool.check_conservation()
        assert pool.held == users.keys()
        assert pool.kept == kept
        assert all(pool.users(key) == users.get(key, 0) for key in range(8))


def test_an_early_user_that_was_scheduled_last_delays_the_grant() -> None:
    pool = KeyPool([0], one_class(2))
    pool.grant(1, 0)
    pool.share([0])
    pool.release([0], 7)
    pool.release([0], 3)
    assert pool.grant(1, 8) is None
    assert pool.grant(1, 9) == [0]


def test_what_was_released_first_is_evicted_first_unless_it_was_used_again() -> None:
    pool = KeyPool(range(3), one_class(1))
    pool.grant(3, 0)
    for key in (2, 0, 1):
        pool.release([key], 0, keep={key})
    assert pool.available(1) == 3
    pool.share([2])
    pool.release([2], 1, keep={2})
    assert [pool.grant(1, 2) for _ in range(3)] == [[0], [1], [2]]


def test_a_key_that_nobody_holds_or_keeps_cannot_be_shared() -> None:
    pool = KeyPool(range(2), one_class(2))
    with pytest.raises(PoolError, match="key 0 cannot be shared"):
        pool.share([0])
    pool.grant(1, 0)
    pool.release([0], 0)  # in quarantine, and not kept
    with pytest.raises(PoolError, match="key 0 cannot be shared"):
        pool.share([0])


def test_releasing_a_key_twice_or_one_that_nobody_holds_is_an_error() -> None:
    pool = KeyPool([7, 8], one_class(1))
    keys = pool.grant(1, 0)
    assert keys == [7]
    pool.release(keys, 0)
    with pytest.raises(PoolError, match="key 7 was released, but no request holds it"):
        pool.release(keys, 0)
    with pytest.raises(PoolError, match="key 8"):
        pool.release([8], 0)


def test_a_lost_key_is_noticed() -> None:
    pool = KeyPool(range(3), one_class(1))
    pool.grant(1, 0)
    pool._users.clear()
    with pytest.raises(PoolError, match="2 keys accounted for, of 3"):
        pool.check_conservation()


def test_a_distance_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        KeyPool(range(3), one_class(0))


def test_blocks_that_another_has_just_used_are_copied_out_when_they_may_be() -> None:
    """Whoever leaves shared a block until a moment ago with one that ran later."""
    leases = {(OWNER, OWNER): 1, (OWNER, SWAP): 2, (SWAP, OWNER): 0}
    pool = KeyPool(range(8), leases)
    space = SwapSpace(4, pool, leases, {(SWAP, SWAP): 1})
    blocks = pool.grant(2, 0)
    assert blocks is not None
    pool.share(blocks[:1])
    pool.release(blocks[:1], 5)
    space.leave(1, blocks, 3, 6)
    assert space.take() is None
    space.begin(6)
    assert space.is_leaving(1)
    space.begin(7)
    swaps = space.take()
    assert swaps is not None
    assert [block for block, _ in swaps.out] == blocks
    space.check_conservation()
