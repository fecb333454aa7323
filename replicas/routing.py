"""Which replica a request goes to: one that knows its prompt, unless others have less to do.

The decision is a pure function of what was sent where. It asks no replica anything, so it takes
microseconds, and a test can state what it decides.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic

BLOCK = 32
"""Tokens by which prompts are compared: what two have in common counts in whole blocks."""

REMEMBERED = 1 << 16
"""Blocks that are remembered of a replica: of 32 tokens each, 2 million tokens."""

REQUEST_TOKENS = 256
"""A running request counts as so many prompt tokens to compute: it slows down all beside it."""


DOUBT_S = 60.0
"""How long a replica that has failed is doubted, unless it is heard from."""


def cost(load: int, cached: int, prompt: int, request_tokens: int = REQUEST_TOKENS) -> int:
    """What sending a prompt to a replica costs, in tokens: its own that are not cached there, and
    the load that it joins.
    """
    return prompt - cached + load * request_tokens


def choose(
    loads: Mapping[str, int],
    cached: Mapping[str, int],
    prompt: int,
    request_tokens: int = REQUEST_TOKENS,
    doubted: Collection[str] = (),
) -> list[str]:
    """The replicas, the best first: by cost, then by load, then by name; doubted ones come last.

    `loads` has the requests under way of each, `cached` the tokens of the prompt that it is thought
    to know, and `prompt` is the number of all its tokens. So with equal loads the longest known
    prefix decides, and with nothing known the smallest load. The first never has more than
    `prompt / request_tokens` requests more than any other that is not doubted.
    """
    return sorted(
        loads,
        key=lambda name: (
            name in doubted,
            cost(loads[name], cached.get(name, 0), prompt, request_tokens),
            loads[name],
            name,
        ),
    )


def blocks_of(prompt_ids: Sequence[int], cache_salt: bytes = b"") -> list[int]:
    """A name for each whole block of a prompt, which stands for all tokens up to its end.

    Prompts of different salts have no block in common, as they have none in a prefix cache.
    """
    found, name = [], hash(cache_salt)
    for end in range(BLOCK, len(prompt_ids) + 1, BLOCK):
        name = hash((name, tuple(prompt_ids[end - BLOCK : end])))
        found.append(name)
    return found


@dataclass
class Known:
    """What one replica is thought to know, and what it has to do."""

    load: int = 0  # requests under way
    doubted_until_s: float = -inf  # by the router's clock
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)  # the latest used last

    def cached(self, blocks: Sequence[int]) -> int:
        """Tokens of a prompt that are known here."""
        count = 0
        for each in blocks:
            if each not in self.blocks:
                break
            count += BLOCK
        return count

    def note(self, blocks: Sequence[int]) -> None:
        """A prompt was sent here: its blocks are the last to be forgotten, the first of all."""
        for each in reversed(blocks):
            self.blocks[each] = None
            self.blocks.move_to_end(each)
        while len(self.blocks) > REMEMBERED:
            self.blocks.popitem(last=False)


class Router:
    """Chooses, and remembers what was sent where. For one thread.

    What a replica really has in its prefix cache may be less: then a prompt is computed that was
    thought to be known, and nothing is wrong.
    """

    def __init__(
        self, request_tokens: int = REQUEST_TOKENS, clock: Callable[[], float] = monotonic
    ) -> None:
        self._request_tokens = request_tokens
        self._clock = clock
        self._known: dict[str, Known] = {}

    def keep(self, names: Sequence[str]) -> None:
        """These are the replicas: others are forgotten, and new ones know nothing."""
        self._known = {name: self._known.get(name) or Known() for name in names}

    def choose(self, blocks: Sequence[int], prompt: int) -> list[str]:
        """The replicas for a prompt of so many tokens, the best first."""
        return choose(
            {name: each.load for name, each in self._known.items()},
            {name: each.cached(blocks) for name, each in self._known.items()},
            prompt,
            self._request_tokens,
            self.doubted,
        )

    def doubt(self, name: str) -> None:
        """It has not answered, or serves no more: for a time it gets what nobody else can take.

        Without it, one that fails at once would have the least to do, and so get everything.
        """
        if (known := self._known.get(name)) is not None:
            known.doubted_until_s = self._clock() + DOUBT_S

    def trust(self, name: str) -> None:
        """It has answered."""
        if (known := self._known.get(name)) is not None:
            known.doubted_until_s = -inf

    @property
    def doubted(self) -> set[str]:
        """The replicas that are doubted now."""
        now = self._clock()
        return {name for name, each in self._known.items() if now < each.doubted_until_s}

    def has_room(self, most: int) -> bool:
        """Whether a replica that is not doubted has no more than `most` requests under way."""
        doubted = self.doubted
        return any(each.load <= most for name, each in self._known.items() if name not in doubted)

    def begun(self, name: str, blocks: Sequence[int]) -> None:
        """A request was sent to this replica."""
        if (known := self._known.get(name)) is not None:
            known.load += 1
            known.note(blocks)

    def ended(self, name: str) -> None:
        """A request that was sent there is over, however."""
        if (known := self._known.get(name)) is not None:
            known.load = max(known.load - 1, 0)

    def load(self, name: str) -> int:
        """Requests under way there."""
        return self._known[name].load
