"""The time of a step where steps are in modes: the guaranteed, that of each mode, the expected one.

The steps of a plan with modes are a max-plus automaton: a letter is a mode, and the word of all
steps' modes decides when ops start. Its worst growth over all words is the greatest ratio of time
to distance over the cycles of one larger graph, whose vertices are an op and the modes of the steps
around it (Gaubert 1995). So it is computed exactly, with a word that attains it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random

import numpy as np

from ..modes import follows, mode_costs
from ..plan import Plan, Wait
from ..planner.events import Precedence, free_edges
from ..planner.period import Delay, Scaled, delays, slowest_cycle

MAX_PAIRS = 500_000  # of windows, times delays: about two seconds; beyond, it is a bound
DRAWN = 2_000  # steps from which the expected period is estimated
SCALINGS = 10_000  # of flows between modes, of which a few are enough where they may come freely

Word = tuple[str, ...]


@dataclass(frozen=True)
class ModePeriods:
    """Times in µs a step.

    `worst_us` is the guaranteed one: no sequence of modes takes longer in the long run. `word` are
    the modes that, repeated, take as long; empty where `worst_us` is only a bound. `by_mode` has
    the period if all steps are in one mode, where that may follow itself. `one_cost_us` is what
    could be guaranteed without modes: each op always takes the longest it takes in any.
    `unconditional_us`: what could be guaranteed if all waits took place in all modes; None where
    they do. `expected_us` is an estimate for modes drawn by their shares, and `expected_least_us` a
    bound of it from below: the period of average costs. Both None where no mode has a share.
    """

    worst_us: float
    word: Word
    by_mode: Mapping[str, float]
    one_cost_us: float
    unconditional_us: float | None = None
    expected_us: float | None = None
    expected_least_us: float | None = None


def mode_periods(plan: Plan) -> ModePeriods | None:
    """None for a plan without modes."""
    if not plan.graph.modes:
        return None
    costs = mode_costs(plan.graph, plan.costs)
    names = tuple(costs)
    longest = {op: max(costs[name][op] for name in names) for op in plan.costs}
    bound = _growth(_always(_delays(plan, longest)))
    worst, word = _worst(plan, costs) or (bound, ())
    alone = [name for name in names if follows(plan.graph, name, name)]
    expected = _expected(plan, costs)
    return ModePeriods(
        float(worst),
        word,
        {name: float(word_period(plan, (name,))) for name in alone},
        float(bound),
        _unconditional(plan),
        *(expected or ()),
    )


def _unconditional(plan: Plan) -> float | None:
    if plan.always is plan:
        return None
    found = _worst(plan.in_every_mode, mode_costs(plan.graph, plan.costs))
    return None if found is None else float(found[0])


def word_period(plan: Plan, word: Word) -> Fraction:
    """The time in µs a step where the modes of steps are this word, repeated for ever; exact."""
    costs, length = mode_costs(plan.graph, plan.costs), len(word)
    found = []
    for at, mode in enumerate(word):
        for each, wait in _delays(plan, costs[mode]):
            ends = {step: word[(at + step) % length] for step in (0, each.distance)}
            if not _is_there(wait, ends):
                continue
            turns, then = divmod(at + each.distance, length)
            found.append(
                Delay(f"{each.source}/{at}", f"{each.target}/{then}", turns, each.delay_us)
            )
    return _growth(found) / length


def _delays(plan: Plan, costs: Mapping[str, float]) -> list[tuple[Delay, Wait | None]]:
    """Each delay, and the wait that it comes from; None: it is there in every mode."""
    graph = plan.graph
    free = delays(graph, free_edges(graph, plan.actors), costs)
    found: list[tuple[Delay, Wait | None]] = [(each, None) for each in free]
    for wait in plan.waits:
        edge = Precedence(wait.source, wait.target, wait.distance, "wait")
        found += [
            (each, None if wait.modes is None else wait) for each in delays(graph, [edge], costs)
        ]
    return found


def _is_there(wait: Wait | None, ends: Mapping[int, str]) -> bool:
    """Whether a wait takes place; `ends`: the modes of both of its steps, from the source's on."""
    return wait is None or wait.takes_place(0, ends.get)


def _always(found: Iterable[tuple[Delay, Wait | None]]) -> list[Delay]:
    """All of them, as if every wait took place in every mode."""
    return [each for each, _ in found]


def _growth(found: Sequence[Delay]) -> Fraction:
    """The greatest ratio of time to distance over all cycles, in µs."""
    return _slowest(found)[0]


def _slowest(found: Sequence[Delay]) -> tuple[Fraction, list[Delay]]:
    names = dict.fromkeys(name for each in found for name in (each.source, each.target))
    scaled = Scaled.of({name: number for number, name in enumerate(names)}, found)
    cycle = [found[edge] for edge in slowest_cycle(scaled).edges]
    steps = sum(each.distance for each in cycle)
    return sum((Fraction(each.delay_us) for each in cycle), Fraction(0)) / steps, cycle


# --- the larger graph ---------------------------------------------------------------------------


def _worst(plan: Plan, costs: Mapping[str, Mapping[str, float]]) -> tuple[Fraction, Word] | None:
    """The greatest growth of any word, and one that attains it; None if the graph is too large.

    Ops are shifted by whole steps until no distance is negative: at stage t, op u is at step
    t - shift[u]. A window has the modes of the steps of a stage, from the latest shift on.
    """
    shift = _shifts(plan)
    reach = max(shift.values())
    windows = _windows(plan, tuple(costs), reach)
    by_mode = {mode: _delays(plan, own) for mode, own in costs.items()}
    if len(windows) ** 2 * len(next(iter(by_mode.values()))) > MAX_PAIRS:
        return None
    after = _transitions(plan, windows)
    found: list[Delay] = []
    ends: dict[tuple[str, str], tuple[int, int]] = {}
    for number, window in enumerate(windows):
        for place, (plain, wait) in enumerate(next(iter(by_mode.values()))):
            mode = window[reach - shift[plain.source]]
            stages = plain.distance + shift[plain.target] - shift[plain.source]
            delay = by_mode[mode][place][0].delay_us
            for then in np.flatnonzero(after(stages)[number]).tolist():
                ends_of = {0: mode, plain.distance: windows[then][reach - shift[plain.target]]}
                if not _is_there(wait, ends_of):
                    continue
                source, target = f"{plain.source}/{number}", f"{plain.target}/{then}"
                found.append(Delay(source, target, stages, delay))
                ends[source, target] = (number, then)
    growth, cycle = _slowest(found)
    return growth, _word(windows, after, cycle, ends)


def _shifts(plan: Plan) -> dict[str, int]:
    """The least shifts from 0 on at which no edge leads back by a stage (Bellman-Ford)."""
    shift = dict.fromkeys(plan.graph.vertices, 0)
    edges = [(e.source, e.target, e.distance) for e in _always(_delays(plan, plan.costs))]
    for _ in shift:
        before = dict(shift)
        for u, v, d in edges:
            shift[v] = max(shift[v], shift[u] - d)
        if shift == before:
            break
    return shift


def _windows(plan: Plan, names: Word, reach: int) -> list[Word]:
    """All modes of `reach` + 1 steps in a row."""
    found: list[Word] = [(name,) for name in names]
    for _ in range(reach):
        found = [
            (*word, name) for word in found for name in names if follows(plan.graph, word[-1], name)
        ]
        if len(found) ** 2 > MAX_PAIRS:
            break
    return found


class _Transitions:
    """Which windows may be how many stages after which."""

    def __init__(self, one: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> None:
        self._powers = [np.eye(len(one), dtype=bool), one]

    def __call__(self, stages: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        while len(self._powers) <= stages:
            self._powers.append(self._powers[-1] @ self._powers[1])
        return self._powers[stages]

    def path(self, first: int, last: int, stages: int) -> Iterator[int]:
        """The windows from after `first` to `last`, that many stages on."""
        at = first
        for left in range(stages - 1, -1, -1):
            at = int(np.flatnonzero(self(1)[at] & self(left)[:, last])[0])
            yield at


def _transitions(plan: Plan, windows: Sequence[Word]) -> _Transitions:
    one = np.array(
        [[a[1:] == b[:-1] and follows(plan.graph, a[-1], b[-1]) for b in windows] for a in windows],
        dtype=bool,
    )
    return _Transitions(one)


def _word(
    windows: Sequence[Word],
    after: _Transitions,
    cycle: Sequence[Delay],
    ends: Mapping[tuple[str, str], tuple[int, int]],
) -> Word:
    """The modes along a cycle, without repeating themselves."""
    word: list[str] = []
    for each in cycle:
        first, last = ends[each.source, each.target]
        word += [windows[at][-1] for at in after.path(first, last, each.distance)]
    for length in range(1, len(word) + 1):
        if len(word) % length == 0 and word == word[:length] * (len(word) // length):
            return tuple(word[:length])
    return tuple(word)


# --- the expected period ------------------------------------------------------------------------


def _expected(plan: Plan, costs: Mapping[str, Mapping[str, float]]) -> tuple[float, float] | None:
    """An estimate from drawn modes, and the period of the average costs of these steps."""
    shares = {mode.name: mode.share for mode in plan.graph.modes if mode.share}
    if not shares:
        return None
    word = _word_of_shares(plan, shares)
    if any(mode.share is None for mode in plan.graph.modes):
        shares = {mode: number / DRAWN for mode, number in Counter(word[DRAWN:]).items()}
    average = {
        op: sum(costs[mode][op] * share for mode, share in shares.items()) for op in plan.costs
    }
    least = float(_growth(_always(_delays(plan.always, average))))
    # Of so many steps a little less may come out by chance.
    return max(_drawn(plan, costs, word), least), least


def _word_of_shares(plan: Plan, shares: Mapping[str, float]) -> list[str]:
    """Modes of `2 * DRAWN` steps, each in its share of them, none where it may not follow.

    Drawn from the Markov chain of these shares that is nearest to modes that know nothing of each
    other: the flows from mode to mode come of these by scaling rows and columns in turn (R.
    Sinkhorn, 1967). Where other modes, whose share is unknown, have to come in between, what may
    follow is drawn by the shares.
    """
    random = Random(0)
    flows = _flows(plan, shares)
    every = [mode.name for mode in plan.graph.modes]
    word = random.choices([*shares], [*shares.values()])
    while len(word) < 2 * DRAWN:
        last = word[-1]
        if flows is not None:
            may, weights = [*shares], [*flows[last]]
        else:
            may = [name for name in shares if follows(plan.graph, last, name)]
            may = may or [name for name in every if follows(plan.graph, last, name)]
            weights = [shares.get(name, 1.0) for name in may]
        word += random.choices(may, weights)
    return word


def _flows(plan: Plan, shares: Mapping[str, float]) -> Mapping[str, Sequence[float]] | None:
    """By mode: how often each mode comes next. None where only modes of other shares may."""
    part = np.array([*shares.values()]) / sum(shares.values())
    flows = np.array([[follows(plan.graph, a, b) for b in shares] for a in shares]) * np.outer(
        part, part
    )
    for _ in range(SCALINGS):
        for sums, turned in ((flows.sum(axis=1), False), (flows.sum(axis=0), True)):
            if not sums.all():
                return None
            scale = part / sums
            flows = flows * scale if turned else flows * scale[:, None]
        if (off := np.abs(flows.sum(axis=1) - part).max()) < 1e-9:
            break
    # A flow that must vanish does so slowly; what is far off has no flows of these shares.
    return dict(zip(shares, flows.tolist(), strict=True)) if off < 1e-3 else None


def _drawn(plan: Plan, costs: Mapping[str, Mapping[str, float]], word: Sequence[str]) -> float:
    """The time of a step in the second half of a word, all ops as early as they may start."""
    by_mode = {mode: _delays(plan, own) for mode, own in costs.items()}
    shift = _shifts(plan)
    edges = list(enumerate(next(iter(by_mode.values()))))
    into: dict[str, list[tuple[int, Delay, Wait | None]]] = {op: [] for op in plan.graph.vertices}
    for place, (each, wait) in edges:
        into[each.target].append((place, each, wait))
    order = _within_a_stage(plan, shift, [each for _, (each, _) in edges])

    def mode_of(step: int) -> str | None:
        return word[step] if 0 <= step < len(word) else None

    starts: dict[str, list[float]] = {op: [0.0] * len(word) for op in into}
    for stage in range(len(word) + max(shift.values())):
        for op in order:
            step = stage - shift[op]
            if 0 <= step < len(word):
                starts[op][step] = max(
                    (
                        starts[each.source][before] + by_mode[word[before]][place][0].delay_us
                        for place, each, wait in into[op]
                        if 0 <= (before := step - each.distance) < len(word)
                        and (wait is None or wait.takes_place(before, mode_of))
                    ),
                    default=0.0,
                )
    half = len(word) // 2
    return max(times[-1] - times[half - 1] for times in starts.values()) / (len(word) - half)


def _within_a_stage(plan: Plan, shift: Mapping[str, int], edges: Sequence[Delay]) -> list[str]:
    """The ops so that those of one stage come after all that they wait for in it."""
    level = dict.fromkeys(plan.graph.vertices, 0)
    now = [(e.source, e.target) for e in edges if e.distance + shift[e.target] == shift[e.source]]
    for _ in level:
        before = dict(level)
        for u, v in now:
            level[v] = max(level[v], level[u] + 1)
        if level == before:
            break
    return sorted(level, key=level.__getitem__)
