"""Which KV block holds which tokens, so that a prompt's known beginning is not computed again.

A full block's contents are a function of its own tokens and all tokens before them. So its name
is a hash chained over the blocks of the prefix (Zheng et al. 2024, arXiv:2312.07104, keep a tree
of prefixes; a chain of hashes finds the same blocks with one look-up each). 128 bits of BLAKE2b:
two prefixes with one name are not to be expected, and cannot be had by trying.

This is a map and nothing more: who holds a block is the pool's business, when its tokens are
settled and computed is that of the owner of the blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from .pools import PoolError

DIGEST_BYTES = 16


def empty_hash(salt: bytes) -> bytes:
    """The name of the empty prefix. `salt`: what blocks depend on beside their tokens."""
    return blake2b(salt, digest_size=DIGEST_BYTES).digest()


def block_hash(parent: bytes, tokens: Sequence[int], content: bytes = b"") -> bytes:
    """The name of the block that holds `tokens` after the prefix named `parent`.

    `content`: what tokens of it stand for, where they are placeholders.
    """
    held = array("q", tokens).tobytes() + content
    return blake2b(parent + held, digest_size=DIGEST_BYTES).digest()


class PrefixCache:
    """Named blocks: at most one block for a name, and one name for a block."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, block: object) -> bool:
        return block in self._names

    def find(self, names: Iterable[bytes]) -> list[int]:
        """The blocks of the longest chain of `names`, from the first on, that is there."""
        found: list[int] = []
        for name in names:
            block = self._blocks.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def enter(self, name: bytes, block: int) -> None:
        """Name a block, unless another has that name: the first one entered stays.

        Raises `PoolError` for a block that holds something else already.
        """
        if name not in self._blocks:
            if block in self._names:
                raise PoolError(f"block {block} has a name already")
            self._blocks[name] = block
            self._names[block] = name

    def forget(self, block: int) -> None:
        """The block is granted anew: what it held is gone."""
        del self._blocks[self._names.pop(block)]

    def check(self, held: Iterable[int], kept: Iterable[int]) -> None:
        """Every named block is held or kept, and every kept one is named. Raises `PoolError`."""
        held, kept = set(held), set(kept)
        names = {block: name for name, block in self._blocks.items()}
        if names != self._names or not kept <= names.keys() <= kept | held:
            raise PoolError(
                f"{len(self._blocks)} names for {len(self._names)} blocks; kept: {sorted(kept)}"
            )
