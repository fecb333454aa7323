"""What is known of a version of a value, or of what a state reaches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .memory import Block
from .owners import Entry


@dataclass(frozen=True, slots=True)
class Published:
    """One version of a value, or what a state reaches now: its memory, all of it and the owned."""

    datum: Any
    blocks: tuple[Block, ...]
    entries: frozenset[Entry]


NOTHING = Published(None, (), frozenset())
