"""Keys are granted once, come back once, and only when the plan has ordered their accesses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepweave.policies.pools import KeyPool, PoolError


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 2)), max_size=40),
)
def test_a_key_is_never_granted_before_its_last_step_is_over(
    distance: int, moves: list[tuple[bool, int, int]]
) -> None:
    pool = KeyPool(range(6), distance)
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


def test_releasing_a_key_twice_or_one_that_nobody_holds_is_an_error() -> None:
    pool = KeyPool([7, 8], 1)
    keys = pool.grant(1, 0)
    assert keys == [7]
    pool.release(keys, 0)
    with pytest.raises(PoolError, match="key 7 was released, but nobody holds it"):
        pool.release(keys, 0)
    with pytest.raises(PoolError, match="key 8"):
        pool.release([8], 0)


def test_a_lost_key_is_noticed() -> None:
    pool = KeyPool(range(3), 1)
    pool.grant(1, 0)
    pool._held.clear()
    with pytest.raises(PoolError, match="2 keys accounted for, of 3"):
        pool.check_conservation()


def test_a_distance_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        KeyPool(range(3), 0)
