"""Modes: what differs between steps of one graph, such as prefill and decode.

Each step is in one *mode*. A mode says what ops take in its steps, which nodes have nothing to do
there, and what ops do not touch. Orders and slots are those of the graph in all modes. So are
waits, and one proof covers every sequence of modes; what depends on the sequence is the time, and
`answers/modes.py` computes it. Only where a value tells the mode (`StepGraph.told_by`) may a wait
be left out in modes that do not need it: `planner/conditional.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from .arguments import number
from .errors import GraphError, did_you_mean

if TYPE_CHECKING:
    from .step_graph import StepGraph, Vertex

MAX_MODES = 8

SLACK = 1e-6
"""By so much shares may be off, written as decimals."""


@dataclass(frozen=True)
class Mode:
    """What a step in this mode takes: `costs` in µs by op, where they are not those of the graph.

    The nodes in `skips` do nothing and take no time: they read nothing but the mode, access no
    state, and publish nothing. `untouched` has, by op, other values that it does not read and
    states that it does not access. It may follow the modes in `after`; None: any. `share` is the
    part of all steps that are in it, where that is known.
    """

    name: str
    costs: Mapping[str, float] = field(default_factory=dict)
    skips: tuple[str, ...] = ()
    after: tuple[str, ...] | None = None
    share: float | None = None
    untouched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    line: int | None = field(default=None, compare=False, repr=False)

    def touches(self, vertex: Vertex, name: str, told_by: str | None) -> bool:
        """Whether an op reads a value, or accesses a state, in this mode."""
        if name == told_by:
            return True
        return vertex.node.name not in self.skips and name not in self.untouched.get(
            vertex.name, ()
        )


def check_modes(graph: StepGraph) -> None:
    """Raise a `GraphError` for the first mode that makes no sense."""
    names = [mode.name for mode in graph.modes]
    nodes = [node.name for node in graph.nodes]
    if len(names) > MAX_MODES:
        raise _wrong(f"{len(names)} modes; at most {MAX_MODES} are compared")
    for mode in graph.modes:
        where = f"mode {mode.name!r}"
        for op, us in mode.costs.items():
            number(where, f"the cost of {op!r}", us)
        for kind, said, known in (
            ("costs name the op", mode.costs, graph.vertices),
            ("skips name the node", mode.skips, nodes),
            ("untouched names the op", mode.untouched, graph.vertices),
            ("after names the mode", mode.after or (), names),
        ):
            for name in said:
                if name not in known:
                    problem = f"{where}: {kind} {name!r}, which there is not"
                    raise _wrong(problem + did_you_mean(name, known), mode)
        if mode.share is not None:
            number(where, "share", mode.share, most=1, code="SW-MODE")
        _check_untouched(graph, mode)
        if mode.after == ():
            raise _wrong(f"{where} may follow no mode, so no step is ever in it", mode)
    _check_told(graph)
    _check_shares(graph)
    if len(set(names)) < len(names):
        raise _wrong(f"two modes of one name: {', '.join(sorted(names))}")
    if graph.modes and any(node.rate > 1 or node.every > 1 for node in graph.nodes):
        raise _wrong("a graph whose nodes have rates cannot have modes yet")
    for mode in graph.modes:
        if not any(follows(graph, mode.name, other) for other in names):
            raise _wrong(f"no mode may follow {mode.name!r}, so a run would end in it", mode)


def _check_shares(graph: StepGraph) -> None:
    """Together they are all steps, and steps before a mode are as many as its own.

    Raises `GraphError` for others, where every mode says its share.
    """
    shares = {mode.name: mode.share for mode in graph.modes if mode.share is not None}
    total = sum(shares.values())
    if total > 1 + SLACK or (len(shares) == len(graph.modes) > 0 and total < 1 - SLACK):
        last = [mode for mode in graph.modes if mode.share is not None][-1]
        raise _wrong(f"shares are parts of all steps, but their sum is {total:.4g}", last)
    if len(shares) < len(graph.modes):
        return
    for count in range(1, len(shares)):
        for some in combinations(shares, count):
            before = [each for each in shares if any(follows(graph, each, name) for name in some)]
            wanted, there = (sum(shares[each] for each in group) for group in (some, before))
            if wanted > there + SLACK:
                raise _wrong(
                    f"{_listed(some)} cannot be in {wanted:.4g} of all steps: the modes that may "
                    f"come before, {_listed(before)}, are in {there:.4g}"
                )


def _listed(names: Iterable[str]) -> str:
    return " and ".join(map(repr, names))


def _check_untouched(graph: StepGraph, mode: Mode) -> None:
    for op, names in mode.untouched.items():
        declared = graph.vertices[op].op
        states = [name for name in declared.writes if name in graph.states]
        known = [name for name in (*(read.name for read in declared.reads), *states)]
        for name in names:
            if name not in known or name == graph.told_by:
                what = "tells the mode" if name == graph.told_by else "it never touches"
                problem = f"mode {mode.name!r}: untouched of {op!r} names {name!r}, which {what}"
                raise _wrong(problem + did_you_mean(name, known), mode)


def _check_told(graph: StepGraph) -> None:
    """What tells the mode is a value that a host op writes before anybody could ask."""
    told = graph.told_by
    if told is None:
        return
    if told not in graph.values:
        raise _wrong(f"told by {told!r}, which is no value{did_you_mean(told, graph.values)}")
    value, writer = graph.values[told], mode_writer(graph)
    if not graph.modes:
        raise _wrong(f"{told!r} tells the mode, but there are no modes")
    if graph.ranks:
        raise _wrong("of several ranks cannot be told by a value yet: leave told_by out")
    fresh = value.place == "host" and value.storage == "fresh"
    if not fresh or writer is None or graph.vertices[writer].side != "host":
        raise _wrong(f"told by {told!r}, which must be a fresh host value that a host op writes")


def mode_writer(graph: StepGraph) -> str | None:
    """The op that writes the value which tells the mode."""
    writers = (name for name, v in graph.vertices.items() if graph.told_by in v.op.writes)
    return next(writers, None)


def _wrong(problem: str, mode: Mode | None = None) -> GraphError:
    line = None if mode is None else mode.line
    return GraphError(f"modes: {problem}.", code="SW-MODE", line=line)


def follows(graph: StepGraph, first: str, then: str) -> bool:
    """Whether a step in mode `then` may come directly after one in mode `first`."""
    mode = next(mode for mode in graph.modes if mode.name == then)
    return mode.after is None or first in mode.after


def mode_costs(graph: StepGraph, costs: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The duration of every op in µs by mode, where `costs` are those of the graph itself."""
    found = {}
    for mode in graph.modes:
        mine = {**costs, **mode.costs}
        for name, vertex in graph.vertices.items():
            if vertex.node.name in mode.skips:
                mine[name] = 0.0
        found[mode.name] = mine
    return found
