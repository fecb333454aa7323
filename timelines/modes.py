"""Steps in modes, on the virtual clock and in real runs: what each mode takes, and should take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import NamedTuple

from ..graph.answers.modes import Word, mode_periods
from ..graph.modes import mode_costs
from ..graph.plan import Plan
from .analysis import lengths_by_step, op_costs, paced_by
from .profile import op_times
from .simulated import Turn, simulate
from .timeline import Timeline


def simulate_word(plan: Plan, word: Sequence[str], *, steps: int) -> Timeline:
    """Simulate `steps` steps whose modes are those of `word`, over and over.

    The period is that of whole words, where steady state lasts for one. Raises `GraphError` if
    `plan` is not a plan, or `steps` no number of steps.
    """
    costs = mode_costs(plan.graph, plan.costs)

    def takes(turn: Turn) -> float:
        return costs[mode_of(turn.step)][turn.op]

    def mode_of(step: int) -> str:
        return word[step % len(word)]

    found = simulate(plan, steps=steps, takes=takes, mode_of=mode_of)
    return replace(found, period_us=_over_words(found, len(word)))


def _over_words(run: Timeline, length: int) -> float:
    """Time per step of the slowest op, over the last whole words of steady state, half of it."""
    last = max(run.steady, default=0)
    steps = max(length, len(run.steady) // 2 // length * length)
    first = last - steps
    if first not in run.steady:
        return run.period_us
    starts = {(span.op, span.step): span.start_us for span in run.events}
    return max(us - starts[op, first] for (op, step), us in starts.items() if step == last) / steps


class WordTime(NamedTuple):
    """What a step takes where the modes of steps are a word, repeated."""

    word: Word
    simulated_us: float
    predicted_us: float


def simulated_words(plan: Plan, *, steps: int) -> list[WordTime]:
    """Each mode by itself, and the sequence that takes longest; none for a plan without modes."""
    if (periods := mode_periods(plan)) is None:
        return []
    words: list[tuple[Word, float]] = [((name,), us) for name, us in periods.by_mode.items()]
    if len(periods.word) > 1:
        words.append((periods.word, periods.worst_us))
    return [
        WordTime(word, simulate_word(plan, word, steps=steps).period_us, us) for word, us in words
    ]


class ModeTime(NamedTuple):
    """Steps of a run that were in one mode; times in µs a step.

    `predicted_us`: of these steps, where all steps come as in the run and each op takes its median
    of the step's mode. `alone_us`: the period if all steps were in this mode.
    """

    mode: str
    steps: int
    measured_us: float
    predicted_us: float
    alone_us: float


@dataclass(frozen=True)
class ByMode:
    """A run's steady steps by mode, the most frequent first, and the mean over all of them.

    `one_cost_us`: the prediction of that mean without modes, each op at one median for all steps.
    """

    modes: tuple[ModeTime, ...]
    measured_us: float
    predicted_us: float
    one_cost_us: float


def by_mode(
    plan: Plan, run: Timeline, modes: Mapping[int, str], *, serial: bool = False
) -> ByMode | None:
    """Measured against predicted by mode. `modes`: of each step that has one.

    None where no steady step has a mode.
    """
    lengths = lengths_by_step(run)
    counted: dict[str, list[int]] = {}
    for step in lengths:
        if step in modes:
            counted.setdefault(modes[step], []).append(step)
    if not counted:
        return None
    plain = op_costs(run)
    costs = {mode: {**plain, **_medians(plan, run, modes, mode)} for mode in counted}

    def takes(turn: Turn) -> float:
        return costs.get(modes.get(turn.step, ""), plain).get(turn.op, 0.0)

    op = paced_by(run)
    as_ran = simulate(plan, steps=run.steps, takes=takes, serial=serial, mode_of=modes.get)
    again = lengths_by_step(as_ran, op)
    once = lengths_by_step(simulate(plan, steps=run.steps, costs=plain, serial=serial), op)
    found = [
        ModeTime(
            mode,
            len(steps),
            fmean(lengths[step] for step in steps),
            fmean(again[step] for step in steps),
            simulate(
                plan,
                steps=run.steps,
                costs=costs[mode],
                serial=serial,
                mode_of=dict.fromkeys(range(run.steps), mode).get,
            ).period_us,
        )
        for mode, steps in counted.items()
    ]
    whole = [step for steps in counted.values() for step in steps]
    return ByMode(
        tuple(sorted(found, key=lambda each: (-each.steps, each.mode))),
        *(fmean(each[step] for step in whole) for each in (lengths, again, once)),
    )


def _medians(plan: Plan, run: Timeline, modes: Mapping[int, str], mode: str) -> Mapping[str, float]:
    """Of each op in the run's steps of a mode, the first and the last ones too."""
    times = op_times(run.events, {step for step, found in modes.items() if found == mode})
    return {op: median(each) for op, each in times.items() if op in plan.graph.vertices}
