"""What follows from a number of stages, unless somebody says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def for_stages(stages: int, said: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a pipeline whose model has so many stages, but for those that are `said`.

    One step more than stages is in flight: each stage has one to work on, and one is on its way.
    """
    depth = said.get("depth", stages + 1)
    groups = int(depth) if isinstance(depth, str) and depth.isdecimal() else depth
    found: dict[str, Any] = {"model.parallel.pipeline": stages}
    if stages > 1:
        found |= {"depth": depth, "policies.scheduling": {"kind": "groups", "groups": groups}}
    return {key: value for key, value in found.items() if key not in said}
