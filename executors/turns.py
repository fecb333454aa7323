"""The slots that several firings of a node fill in turn, as one of them finds them.

Version n of the value is in slot n mod K. The firing that writes every q-th version, from version j
on, comes to K / gcd(q, K) of the slots, always in the same order: these are its own slots, and
version i of its own is in the i-th of them, modulo their number, as of any other value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..graph.node import Turn, Value


class Slots(Protocol):
    """What can be read and filled by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...
    def __setitem__(self, index: int, datum: Any, /) -> None: ...


class SlotsInTurn:
    """Those of the shared `cells` to which one firing comes."""

    def __init__(self, cells: list[Any], turn: Turn) -> None:
        number = len(cells) // math.gcd(turn.of, len(cells))
        self._cells = cells
        self._places: Sequence[int] = [
            (version * turn.of + turn.index) % len(cells) for version in range(number)
        ]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int, /) -> Any:
        return self._cells[self._places[index]]

    def __setitem__(self, index: int, datum: Any, /) -> None:
        self._cells[self._places[index]] = datum


def in_turn(values: Mapping[str, Value], sizes: Mapping[str, int]) -> dict[str, SlotsInTurn]:
    """The slots of each value that shares them."""
    shared: dict[str, list[Any]] = {}
    found = {}
    for name, value in values.items():
        if value.turn is not None and value.storage == "slots" and not value.external:
            cells = shared.setdefault(value.turn.value, [None] * sizes[name])
            found[name] = SlotsInTurn(cells, value.turn)
    return found
