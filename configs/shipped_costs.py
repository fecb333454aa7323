"""The costs files that come with the package, by name; reading one is up to `costs.py`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

SHIPPED = Path(__file__).parent / "costs"


@cache
def shipped_costs() -> tuple[str, ...]:
    """Names of the costs files that come with the package."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))
