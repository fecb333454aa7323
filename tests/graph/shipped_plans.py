"""The plans of everything that is shipped, compiled once for all tests."""

from __future__ import annotations

from functools import cache

from stepweave.cli.planned import planned
from stepweave.configs.load import shipped, shipped_file
from stepweave.graph.plan import Plan
from tests.shares import one_in

GRAPHS = tuple(name for name in shipped() if shipped_file(name).parent.name == "graphs")
EXTENDED = ("draft_passes", "grammar_in_turns", "prefill_decode", "seldom_statistics")
"""With rates, or with modes."""
RATED = ("draft_passes", "seldom_statistics")  # whose runs have a multiple of some steps
ONCE = tuple(name for name in shipped() if name not in RATED)
SHIPPED = (
    *((name, None) for name in GRAPHS),
    *one_in(3, [name for name in shipped() if name not in GRAPHS], (1, 2, 3)),
)
"""Of each pipeline one depth by day."""


@cache
def shipped_plan(name: str, depth: int | None = None) -> Plan:
    """The plan of a shipped config, at a depth if it has one."""
    return planned(name, {} if depth is None else {"depth": str(depth)})
