"""What a server's counters say of speculative decoding during a load."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Whoever serves puts a name of its own before the colon; the rest of the name is the same.
_LINE = re.compile(
    r"^(\w+):spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)"
    r"(?:_total)?(\{[^\n]*\})?\s+(\S+)",
    re.MULTILINE,
)
_POSITION = re.compile(r'\bposition="(\d+)"')


@dataclass(frozen=True)
class Counts:
    """Counters since the server began; `by_position` counts accepted drafts by their place."""

    drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    by_position: tuple[float, ...] = ()

    @classmethod
    def read(cls, page: str | None) -> Counts | None:
        """From a page in the format of Prometheus; None where it has no such counters.

        A page may have them twice, under two names before the colon: the first ones count.
        """
        found: dict[str, float] = {}
        positions: dict[int, float] = {}
        lines = _LINE.findall(page or "")
        for whose, name, labels, written in lines:
            if whose != lines[0][0]:
                continue
            try:
                value = float(written)
            except ValueError:
                continue
            if name != "accepted_tokens_per_pos":
                found[name] = found.get(name, 0.0) + value
            elif place := _POSITION.search(labels):
                positions[int(place[1])] = positions.get(int(place[1]), 0.0) + value
        if "drafts" not in found:
            return None
        width = max(positions, default=-1) + 1
        return cls(
            found["drafts"],
            found.get("draft_tokens", 0.0),
            found.get("accepted_tokens", 0.0),
            tuple(positions.get(place, 0.0) for place in range(min(width, 64))),
        )

    def since(self, before: Counts) -> Counts:
        """What came on top."""
        past = (*before.by_position, *([0.0] * len(self.by_position)))
        return Counts(
            self.drafts - before.drafts,
            self.drafted - before.drafted,
            self.accepted - before.accepted,
            tuple(now - was for now, was in zip(self.by_position, past, strict=False)),
        )

    @property
    def rate(self) -> float:
        """The share of drafted tokens that were accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def length(self) -> float:
        """Tokens that a step with drafts settles, the one that the model adds included."""
        return 1 + self.accepted / self.drafts if self.drafts else 0.0

    @property
    def rates_by_position(self) -> tuple[float, ...]:
        """The share of drafts of which the token at that place was accepted."""
        return tuple(each / self.drafts for each in self.by_position) if self.drafts else ()

    def to_json(self) -> Mapping[str, Any]:
        return {
            "spec_decode_acceptance_rate": 100 * self.rate,
            "spec_decode_acceptance_length": self.length,
            "spec_decode_num_drafts": int(self.drafts),
            "spec_decode_draft_tokens": int(self.drafted),
            "spec_decode_accepted_tokens": int(self.accepted),
            "spec_decode_per_position_acceptance_rates": list(self.rates_by_position),
        }
