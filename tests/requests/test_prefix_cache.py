"""Names of blocks are those of their whole prefix; a name has one block, and a block one name."""

import random
import subprocess
import sys

import pytest

from stepweave.requests.pools import PoolError
from stepweave.requests.prefix_cache import PrefixCache, block_hash, empty_hash


def chain(tokens: list[int], size: int = 2, salt: bytes = b"") -> list[bytes]:
    names = [empty_hash(salt)]
    for start in range(0, len(tokens), size):
        names.append(block_hash(names[-1], tokens[start : start + size]))
    return names[1:]


def test_two_prefixes_have_one_name_only_if_they_are_equal() -> None:
    rnd = random.Random(0)
    known: dict[bytes, tuple[bytes, tuple[int, ...]]] = {}
    for _ in range(3000):
        salt = rnd.choice([b"a", b"b"])
        tokens = [rnd.choice([0, 1, 256, 2**20]) for _ in range(2 * rnd.randrange(1, 5))]
        for index, name in enumerate(chain(tokens, salt=salt)):
            prefix = (salt, tuple(tokens[: 2 * index + 2]))
            assert known.setdefault(name, prefix) == prefix
    assert len(set(known.values())) == len(known) > 300


def test_names_are_the_same_in_every_process() -> None:
    code = (
        "from stepweave.requests.prefix_cache import block_hash, empty_hash;"
        "print(block_hash(empty_hash(b'x'), [1, 2, 3]).hex())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert seen == {block_hash(empty_hash(b"x"), [1, 2, 3]).hex() + "\n"}


def test_a_chain_is_found_up_to_its_first_gap() -> None:
    cache = PrefixCache()
    names = chain([1, 2, 3, 4, 5, 6, 7, 8])
    for name, block in zip(names, (5, 3, 9, 4), strict=True):
        cache.enter(name, block)
    assert cache.find(names) == [5, 3, 9, 4]
    assert cache.find(chain([1, 2, 3, 4, 0, 0])) == [5, 3]
    assert cache.find(chain([3, 4])) == []
    cache.forget(3)
    assert cache.find(names) == [5]
    assert 3 not in cache
    cache.enter(names[1], 7)  # what came after is what it was
    assert cache.find(names) == [5, 7, 9, 4]


def test_the_first_block_of_a_name_stays() -> None:
    cache = PrefixCache()
    (name,) = chain([1, 2])
    cache.enter(name, 5)
    cache.enter(name, 6)
    assert cache.find([name]) == [5]
    assert 6 not in cache
    assert len(cache) == 1
    cache.forget(5)
    assert cache.find([name]) == []


def test_a_block_does_not_get_a_second_name() -> None:
    cache = PrefixCache()
    cache.enter(chain([1, 2])[0], 5)
    with pytest.raises(PoolError, match="block 5 has a name"):
        cache.enter(chain([1, 3])[0], 5)


def test_disagreement_with_the_pool_is_noticed() -> None:
    cache = PrefixCache()
    cache.enter(chain([1, 2])[0], 5)
    cache.check(held=[5], kept=[])
    cache.check(held=[4], kept=[5])
    for held, kept in (([], []), ([5], [6]), ([4], [])):
        with pytest.raises(PoolError, match="1 names for 1 blocks"):
            cache.check(held, kept)
