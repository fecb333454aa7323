"""On what terms the plans of a run have their steps captured, and in which memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from .places import Places
from .pools import Pools


@dataclass(frozen=True)
class Terms:
    """The same for all of its plans. `usual`: so many steps of a signature, or of a size, run as
    usual before one is captured. `largest`: tokens of the largest step that ops may have recorded
    in pieces. `plans`: among so many is divided what may be kept.
    """

    usual: int = 1
    largest: int = 0
    plans: int = 1
    where: Places = field(default_factory=Places)
    pools: Pools = field(default_factory=Pools)

    def share(self, limit: int) -> int:
        """Of one plan."""
        return max(1, limit // self.plans)
