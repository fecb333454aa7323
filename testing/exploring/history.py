"""Ops that record their history, on physical cells, compared with the serial program op by op.

A value with K slots has K cells, a fresh one a cell per version; a state is a log of those who
changed it. What an op makes of its inputs is a term: its name, its step, and what it saw. An op
looks at its inputs when it begins and again when it ends; in between, the cells that it writes hold
nothing that anybody may look at. The phases of a node continue each other.

The serial program is the meaning by definition: values by who wrote the version that is read,
states by the reference order. No hazard, distance or slot formula is used: a wrong interleaving is
one in which some op sees another term than in the serial program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ...graph.plan import Plan
from ...graph.step_graph import StepGraph
from .interleaving import Instance


class StepAccess(NamedTuple):
    """One access of a failure: who touched what, in which step, in which slot."""

    node: str
    op: str
    step: int
    verb: str  # reads, writes, runs
    value: str
    slot: int | None

    def __str__(self) -> str:
        place = "" if self.slot is None else f" (slot {self.slot})"
        who = f"node {self.node!r}, op {self.op!r} of step {self.step}"
        return f"{who} {self.verb} {self.value}{place}"


class Diverged(Exception):
    """An op saw something else than in the serial program: `first` should have come first."""

    def __init__(self, hazard: str, first: StepAccess, second: StepAccess, what: str) -> None:
        super().__init__(what)
        self.hazard = hazard
        self.first = first
        self.second = second
        self.what = what


class Look(NamedTuple):
    """One thing that an op looks at."""

    name: str
    carry: int
    writes: bool  # a state that the op changes: it sees what was there before


class Meaning:
    """What each op of each step sees in the serial program, as interned terms.

    `word`: the modes of the steps, where a value tells them: ops touch what their mode has.
    """

    def __init__(self, graph: StepGraph, steps: int, word: Sequence[str] = ()) -> None:
        self.graph, self.steps, self.word = graph, steps, word
        ops = graph.vertices
        self.writer = {
            name: v.name for v in ops.values() for name in v.op.writes if name in graph.values
        }
        self.looks = {name: tuple(self._looks(name)) for name in ops}
        self.phases = phases_before(graph)
        self._terms: dict[tuple[object, ...], int] = {}
        serial = sorted(
            (Instance(name, step) for name in ops for step in range(steps)),
            key=lambda at: (at.step + ops[at.op].offset, ops[at.op].position),
        )
        self.place = {at: number for number, at in enumerate(serial)}
        self.logs: dict[str, list[Instance]] = {
            state: [at for at in serial if state in self.writes_of(at)] for state in graph.states
        }
        self.seen: dict[Instance, tuple[int, ...]] = {}
        changed = {state: self.initial(state) for state in graph.states}
        states_seen: dict[tuple[Instance, str], int] = {}
        for at in serial:
            for look in self.looks_of(at):
                if look.name in changed:
                    states_seen[at, look.name] = changed[look.name]
            for state in self.writes_of(at):
                if state in changed:
                    changed[state] = self.changed(state, changed[state], at)
        self._states_seen = states_seen
        for at in serial:
            self._see(at)

    def _looks(self, op: str) -> Iterator[Look]:
        declared = self.graph.vertices[op].op
        for read in dict.fromkeys(declared.reads):
            if read.name in self.graph.states:
                if read.name not in declared.writes:
                    yield Look(read.name, 0, False)
            elif read.name in self.writer:
                yield Look(read.name, read.carry, False)
        for name in declared.writes:
            if name in self.graph.states:
                yield Look(name, 0, True)

    def looks_of(self, at: Instance) -> Sequence[Look]:
        """What an op looks at in a step of its mode."""
        looks = self.looks[at.op]
        if not self.word:
            return looks
        return [look for look in looks if self._touches(at, look.name)]

    def writes_of(self, at: Instance) -> Sequence[str]:
        """What it writes: its values in every mode, be it nothing, and the states of its mode."""
        writes = self.graph.vertices[at.op].op.writes
        if not self.word:
            return writes
        return [n for n in writes if n not in self.graph.states or self._touches(at, n)]

    def _touches(self, at: Instance, name: str) -> bool:
        mode = next(mode for mode in self.graph.modes if mode.name == self.word[at.step])
        return mode.touches(self.graph.vertices[at.op], name, self.graph.told_by)

    def _see(self, start: Instance) -> None:
        """Depth first, without recursion: a listing may read what is written below it."""
        pending = [start]
        while pending:
            at = pending[-1]
            missing = [
                source
                for look in self.looks_of(at)
                if look.name in self.writer and 0 <= at.step - look.carry < self.steps
                for source in (Instance(self.writer[look.name], at.step - look.carry),)
                if source not in self.seen and source not in pending
            ]
            if missing:
                pending += missing
                continue
            pending.pop()
            self.seen[at] = tuple(
                self._states_seen[at, look.name]
                if look.name in self.logs
                else self._version(look, at)
                for look in self.looks_of(at)
            )

    def _version(self, look: Look, at: Instance) -> int:
        if not 0 <= at.step - look.carry < self.steps:
            return self.initial(look.name)
        source = Instance(self.writer[look.name], at.step - look.carry)
        return self.wrote(source, look.name, self.seen.get(source, ()))

    def initial(self, name: str) -> int:
        return self._number("initial", name)

    def wrote(self, by: Instance, name: str, seen: tuple[int, ...]) -> int:
        return self._number("wrote", name, by, seen)

    def changed(self, state: str, before: int, by: Instance) -> int:
        return self._number("changed", state, before, by)

    def _number(self, *term: object) -> int:
        return self._terms.setdefault(term, len(self._terms))


@dataclass(slots=True)
class Cell:
    """One physical copy: what it holds, who wrote that, and who is writing now."""

    term: int
    by: Instance | None = None
    busy: Instance | None = None


class History:
    """The data of one run. Raises `Diverged` at the first event that sees a wrong term."""

    def __init__(self, meaning: Meaning, slots: Mapping[str, int | None]) -> None:
        self.meaning = meaning
        self.graph = meaning.graph
        self.slots = slots
        self.cells: dict[tuple[str, int], Cell] = {}
        self.logs: dict[str, list[Instance]] = {state: [] for state in self.graph.states}
        self.ended: dict[str, int] = {}

    @staticmethod
    def of(plan: Plan, steps: int) -> History:
        return History(Meaning(plan.graph, steps), plan.slots)

    def begin(self, op: str, step: int) -> None:
        at = Instance(op, step)
        before = self.meaning.phases.get(op)
        if before is not None and self.ended.get(before, -1) < step:
            raise Diverged(
                "PHASE",
                self._touch(Instance(before, step), "runs", "its phase", None),
                self._touch(at, "runs", "its phase", None),
                f"{at} begins before {before}, the phase before it, is done",
            )
        self._look(at, ending=False)
        for name in self.meaning.writes_of(at):
            cell = self._cell(name, step)
            if cell.busy is not None:
                raise self._clash(at, name, cell)
            cell.busy = at

    def end(self, op: str, step: int) -> None:
        at = Instance(op, step)
        seen = self._look(at, ending=True)
        for name in self.meaning.writes_of(at):
            cell = self._cell(name, step)
            if name in self.logs:
                cell.term = self.meaning.changed(name, cell.term, at)
                self.logs[name].append(at)
            else:
                cell.term = self.meaning.wrote(at, name, seen)
            cell.by, cell.busy = at, None
        self.ended[op] = step

    def finish(self) -> None:
        """After the last event: every state holds the log of the serial program."""
        for state, log in self.logs.items():
            meant = self.meaning.logs[state]
            if log != meant:
                wrong = next(i for i, at in enumerate(meant) if i >= len(log) or log[i] != at)
                now = log[wrong] if wrong < len(log) else meant[wrong]
                raise Diverged(
                    "WAW",
                    self._touch(meant[wrong], "writes", state, None),
                    self._touch(now, "writes", state, None),
                    f"state {state!r} ends as another than in the serial program",
                )

    def _look(self, at: Instance, *, ending: bool) -> tuple[int, ...]:
        meant = self.meaning.seen[at]
        seen = []
        for look, term in zip(self.meaning.looks_of(at), meant, strict=True):
            if look.name not in self.logs and at.step < look.carry:
                seen.append(term)
                continue
            cell = self._cell(look.name, at.step - look.carry)
            mine = look.writes and cell.busy == at
            if (cell.busy is not None and not mine) or cell.term != term:
                raise self._wrong(at, look, cell, ending)
            seen.append(cell.term)
        return tuple(seen)

    def _cell(self, name: str, version: int) -> Cell:
        key = self._slot(name, version)
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell(self.meaning.initial(name))
        return cell

    def _slot(self, name: str, version: int) -> tuple[str, int]:
        """Where a version lies, or the state: whose slots these are, and which of them."""
        copies = None if name in self.logs else self.slots.get(name)
        if copies is None:
            return name, 0 if name in self.logs else version
        return self.graph.values[name].slot(version, copies)

    # --- telling what went wrong ---------------------------------------------------------------

    def _touch(self, at: Instance, verb: str, value: str, version: int | None) -> StepAccess:
        slot = None
        if version is not None and self.slots.get(value) is not None:
            _, slot = self._slot(value, version)
        return StepAccess(self.graph.vertices[at.op].node.name, at.op, at.step, verb, value, slot)

    def _clash(self, at: Instance, name: str, cell: Cell) -> Diverged:
        other = cell.busy
        assert other is not None, "only a cell that is being written clashes"
        first, second = sorted((at, other), key=lambda each: self.meaning.place[each])
        return Diverged(
            "WAW",
            self._touch(first, "writes", name, first.step),
            self._touch(second, "writes", name, second.step),
            f"{at} begins to write {name} while {other} is writing it",
        )

    def _wrong(self, at: Instance, look: Look, cell: Cell, ending: bool) -> Diverged:
        """Which of two accesses came too early: a writer that `at` needs, or one after it."""
        name, version = look.name, at.step - look.carry
        verb, letter = ("writes", "W") if look.writes else ("reads", "R")
        me = self._touch(at, verb, name, version)
        when = "when it ends" if ending else "when it begins"
        other = cell.busy or cell.by
        found = "nothing that was ever written" if other is None else f"the data of {other}"
        if cell.busy is not None:
            found = f"what {other} is writing"
        if name in self.logs:
            meant, log = self._meant_log(at, name), set(self.logs[name])
            missing = next((each for each in meant if each not in log), None)
        else:
            needed = Instance(self.meaning.writer[name], version)
            missing = None if other is not None and self._later(other, needed) else needed
        if missing is not None:
            first = self._touch(missing, "writes", name, version)
            said = f"{at} finds, {when}, {found} in {name}: {missing} has not written it yet"
            return Diverged(f"{letter}AW", first, me, said)
        if name in self.logs and cell.busy is None:
            other = next(each for each in self.logs[name] if each not in meant)
        assert other is not None, "somebody wrote what should not be there yet"
        second = self._touch(other, "writes", name, other.step)
        said = f"{at} finds, {when}, {found} in {name}, which {other} should write after it"
        return Diverged(f"WA{letter}", me, second, said)

    def _later(self, wrote: Instance, needed: Instance) -> bool:
        """Whether it is a later version that was written, maybe by another firing of the node."""
        if wrote.op == needed.op:
            return wrote.step > needed.step
        one, other = (self.graph.vertices[at.op].node.firing for at in (wrote, needed))
        if one is None or other is None or one.node != other.node:
            return False
        return self.meaning.place[wrote] > self.meaning.place[needed]

    def _meant_log(self, at: Instance, state: str) -> list[Instance]:
        mine = self.meaning.place[at]
        return [each for each in self.meaning.logs[state] if self.meaning.place[each] < mine]

    # --- for a search over all interleavings ---------------------------------------------------

    def copy(self) -> History:
        other = History(self.meaning, self.slots)
        other.cells = {key: Cell(c.term, c.by, c.busy) for key, c in self.cells.items()}
        other.logs = {state: list(log) for state, log in self.logs.items()}
        other.ended = dict(self.ended)
        return other

    def key(self) -> tuple[object, ...]:
        return tuple(
            sorted((name, slot, cell.term, cell.busy) for (name, slot), cell in self.cells.items())
        )


def phases_before(graph: StepGraph) -> dict[str, str]:
    """The phase that each phase of a node continues."""
    return {
        after: before
        for node in graph.nodes
        for names in (node.op_names("host"), node.op_names("device") if node.device else ())
        for before, after in pairwise(names)
    }
