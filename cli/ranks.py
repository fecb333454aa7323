"""Pipelines on several ranks: the command starts itself once for each, and all but one follow.

Rank 0 speaks for all: it prints what there is to print, and decides when the group ends. So a rank
that follows says nothing unless rank 0 is gone, and leaves signals to it.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from .importing import importing
from .loading import loaded
from .reporting import UNSOUND, say

if TYPE_CHECKING:
    from ..configs.schema import PipelineConfig


def as_ranks(config: PipelineConfig, grace_s: float | None = None) -> int | None:
    """Do what this process has to do for the ranks of `config`; None: it leads them, or is alone.

    A command that nobody has started as a rank starts itself as all of them; its status is the
    result. `grace_s`: how long rank 0 may take to end when it is told to. A rank that follows
    serves until rank 0 ends. Raises as `loaded`, and `GroupError`.
    """
    if config.ranks == 1:
        return None
    from ..distributed.meeting import end_with_starter
    from ..distributed.ranks import ranks_of, started_as_rank

    if not started_as_rank():
        return _launched(config, grace_s)
    end_with_starter()
    if ranks_of(config.ranks).leads:
        return None
    return _followed(config)


def _launched(config: PipelineConfig, grace_s: float | None) -> int:
    with importing():
        from ..distributed.launch import GRACE_S, launch
    again = (sys.executable, "-u", "-m", "stepweave", *sys.argv[1:])
    ended = launch(config.ranks, again, GRACE_S if grace_s is None else grace_s)
    if ended.killed is not None:
        rank, by = ended.killed
        say(f"error: rank {rank} of {config.ranks} was ended by {by}")
    return ended.status


def _followed(config: PipelineConfig) -> int:
    """Follow rank 0. What ends the group is said by rank 0, to which it has been told."""
    from ..distributed.errors import GroupEnded

    try:
        with loaded(config) as llm:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            llm.follow()
    except GroupEnded as failure:
        if failure.gone == 0:
            say(f"error: {failure.message}")
        return UNSOUND
    return 0
