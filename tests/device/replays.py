"""What is asked of runs whose steps are replayed, on a GPU as on tapes."""

from __future__ import annotations

from collections.abc import Sequence

from stepweave.configs.schema import PipelineConfig
from stepweave.executors.capture import Captures
from stepweave.executors.captured_segment import IDLE
from stepweave.executors.counts import Counts
from stepweave.executors.course import Course, Goal
from stepweave.nodes.suffix import SuffixOptions
from stepweave.requests.request import RequestOutput
from stepweave.serving.plans import Load

FRESH = "is fresh in each step"
LEG = 9  # steps from a switch to the next


def in_turn(course: Course, step: int, load: Load) -> Goal:
    """To the next plan after so many steps of a run, where there are several."""
    names = [*course.plans]
    due = step >= LEG * (len(course.turned) + 1)
    return Goal(names[(names.index(course.at) + due) % len(names)])


def compared(config: PipelineConfig, outputs: Sequence[RequestOutput]) -> list[tuple[object, ...]]:
    """Of each request what may not depend on which steps are replayed.

    Tokens always; counts of drafts too, unless when a step is done decides about them: a plan
    without the drafter drafts nothing, and suffixes are looked up in what was settled before.
    """
    by_time = any(form.drafter is None for form in config.forms.values())
    by_time = by_time or isinstance(config.drafter, SuffixOptions)
    counts = [() if by_time else (out.drafted, out.accepted) for out in outputs]
    told = [(out.token_ids, out.finish_reason, out.error) for out in outputs]
    return [(*each, *count) for each, count in zip(told, counts, strict=True)]


def why_too_little(config: PipelineConfig, captures: Captures) -> str | None:
    """What should have been replayed and was not; None where all is well.

    A segment that has something to do in one step at the most is not looked at: in the tests none
    swaps, forks or reads images. Nor is one of which the plan says that it is in no graph, since
    what it writes is fresh in each step. A plan of several is not on for long enough to have all of
    it captured.
    """
    every = captures.counts
    busy = [name for name, each in every.items() if _busy(each)]
    idle = [str(name) for name in busy if not every[name].replayed]
    if len(idle) == len(busy) or (idle and not config.plans):
        return f"{idle or 'nothing'} was not replayed: {captures.notes()}"
    if not config.plans and not captures.pieces["forward.device"].replayed:
        return f"no step with prompts was replayed in pieces: {captures.notes()}"
    return None


def _busy(counts: Counts) -> bool:
    left_out = [n for why, n in counts.eager.items() if why == IDLE or why.endswith(FRESH)]
    return counts.steps - sum(left_out) > 1
