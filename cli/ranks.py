"""Pipelines on several ranks: the command starts itself once for each, and all but one follow."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..configs.errors import ConfigError, Mark
from ..configs.stages import for_stages
from .importing import importing
from .loading import loaded

if TYPE_CHECKING:
    from ..configs.schema import PipelineConfig


def with_ranks(settings: Mapping[str, str], tp: int | None, pp: int | None) -> dict[str, Any]:
    """The settings, and what `--tp` and `--pp` say. Raises `ConfigError` where both say it."""
    found: dict[str, Any] = dict(settings)
    for option, key, count in (("--tp", "tensor", tp), ("--pp", "pipeline", pp)):
        if count is not None and f"model.parallel.{key}" in found:
            raise ConfigError.at(Mark(option), f"and --set model.parallel.{key}: give one of them")
    if tp is not None:
        found["model.parallel.tensor"] = f"{tp}"
    return found if pp is None else found | for_stages(pp, found)


def as_ranks(config: PipelineConfig) -> int | None:
    """Do what this process has to do for the ranks of `config`; None: it leads them, or is alone.

    A command that nobody has started as a rank starts itself as all of them; its status is the
    result. A rank that follows serves until rank 0 ends. Raises as `loaded`, and `GroupError`.
    """
    if config.ranks == 1:
        return None
    from ..distributed.ranks import ranks_of, started_as_rank

    if not started_as_rank():
        with importing():
            from ..distributed.launch import launch
        return launch(config.ranks, sys.argv[1:])
    if ranks_of(config.ranks).leads:
        return None
    return _followed(config)


def _followed(config: PipelineConfig) -> int:
    """Follow rank 0. What ends the group is said by rank 0, to which it has been told."""
    from ..distributed.errors import GroupEnded

    try:
        with loaded(config) as llm:
            llm.follow()
    except GroupEnded:
        return 1
    return 0
