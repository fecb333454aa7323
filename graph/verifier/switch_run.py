"""The actors around a switch, run as they block, with a clock for each op.

A clock says how far every actor is known to have come when an op starts: through programs, launches
and waits, and through nothing that a plan claims of itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..step_graph import Vertex
from ..switch import Instance, Switch
from .order import arcs_of

Clock = NDArray[np.int64]


class SwitchRun:
    """A switch, from long before it to long after it.

    `stuck`: what each actor that cannot end waits before. `place`: of each instance the number of
    its actor, and its place in what that runs.
    """

    def __init__(self, switch: Switch) -> None:
        self.switch = switch
        self.chains = self._chains()
        self.actors = list(self.chains)
        self.place = {
            at: (self.actors.index(actor), number)
            for actor, ops in self.chains.items()
            for number, at in enumerate(ops)
        }
        self.awaited = self._awaited()
        self.clocks: dict[Instance, Clock] = {}
        self.stuck = self._run()

    def _chains(self) -> dict[str, list[Instance]]:
        switch = self.switch
        longest = max(len(each) for each in switch.programs.values())
        far = 4 + longest + max([0, *(lease.steps for lease in switch.leases), switch.over])
        far += abs(switch.leaves) + abs(switch.enters)  # actors may go over long before step 0
        far += max(abs(o) for plan in switch.plans for ops in plan.actors.values() for _, o in ops)
        return {
            actor: [
                *self._alone(0, actor, range(switch.leaves - far, switch.leaves + 1)),
                *switch.programs.get(actor, ()),
                *self._alone(1, actor, range(switch.enters, switch.enters + far)),
            ]
            for actor in dict.fromkeys([*switch.before.actors, *switch.after.actors])
        }

    def _alone(self, part: int, actor: str, iterations: range) -> list[Instance]:
        program = self.switch.plans[part].actors.get(actor, ())
        return [Instance(part, op, t - at) for t in iterations for op, at in program]

    def _awaited(self) -> dict[Instance, list[Instance]]:
        found: dict[Instance, list[Instance]] = defaultdict(list)
        for part, plan in enumerate(self.switch.plans):
            by_target: dict[str, list[tuple[str, int]]] = defaultdict(list)
            for u, v, d in arcs_of(plan):
                by_target[v].append((u, d))
            for at in self.place:
                if at.part == part:
                    sources = (Instance(part, u, at.step - d) for u, d in by_target[at.op])
                    found[at] += [source for source in sources if source in self.place]
        for wait in self.switch.waits:
            found[wait.target].append(wait.source)
        return found

    def _run(self) -> list[Instance]:
        """Until nobody can go on; who cannot though he has not ended."""
        at = dict.fromkeys(self.actors, 0)
        moved = True
        while moved:
            moved = False
            for number, actor in enumerate(self.actors):
                chain = self.chains[actor]
                while at[actor] < len(chain) and self._ready(chain[at[actor]], number, at[actor]):
                    at[actor] += 1
                    moved = True
        left = (self.chains[actor][at[actor] :] for actor in self.actors)
        return [ops[0] for ops in left if ops]

    def _ready(self, here: Instance, actor: int, number: int) -> bool:
        sources = self.awaited[here]
        if any(source not in self.clocks for source in sources if source != here):
            return False
        clock: Clock = np.full(len(self.actors), -1, dtype=np.int64)
        chain = self.chains[self.actors[actor]]
        for source in [*sources, *chain[max(0, number - 1) : number]]:
            if source == here:
                return False
            whose, place = self.place[source]
            clock = np.maximum(clock, self.clocks[source])
            clock[whose] = max(clock[whose], place)
        self.clocks[here] = clock
        return True

    @property
    def arcs(self) -> list[tuple[Instance, Instance]]:
        """Each op with those that must be done when it starts, by programs, launches and waits."""
        chained = [pair for ops in self.chains.values() for pair in pairwise(ops)]
        return chained + [(u, v) for v, sources in self.awaited.items() for u in sources]

    def vertex(self, at: Instance) -> Vertex:
        return self.switch.plans[at.part].graph.vertices[at.op]

    def launch(self, at: Instance) -> Instance | None:
        name = self.vertex(at).launch
        return None if name is None else Instance(at.part, name, at.step)

    def runs(self, at: Instance) -> bool:
        return at.step >= 0 if at.part else at.step < 0

    def known(self, source: Instance, target: Instance) -> bool:
        """Whether the one is done when the other starts; of host work its launch has to know."""
        if self.vertex(source).side == "host":
            target = self.launch(target) or target
        if source not in self.place or target not in self.place:
            return True  # further away than anything that can fail
        whose, place = self.place[source]
        return bool(self.clocks[target][whose] >= place)

    @cached_property
    def ranks(self) -> Mapping[Instance, tuple[int, int, int, int, int]]:
        """The place of each instance in the serial program."""
        return {at: self.rank(at) for at in self.place}

    def rank(self, at: Instance) -> tuple[int, int, int, int, int]:
        """By iteration, then by listing."""
        vertex = self.vertex(at)
        ops = vertex.node.op_names(vertex.side)
        return (
            at.step + vertex.offset + (self.switch.delay if at.part else 0),
            self.listing[vertex.node.name],
            int(vertex.side == "device"),
            ops.index(at.op),
            at.part,
        )

    @cached_property
    def listing(self) -> Mapping[str, int]:
        """The place of each node in a listing that keeps the orders of both plans."""
        first, then = ([node.name for node in plan.graph.nodes] for plan in self.switch.plans)
        listed: list[str] = []
        while first or then:
            if first and first[0] not in then:
                listed.append(first.pop(0))
            elif then and then[0] not in first:
                listed.append(then.pop(0))
            elif first[0] == then[0]:
                listed.append(first.pop(0))
                then.pop(0)
            else:  # the plans list nodes in two orders: any of them will do, if nothing conflicts
                listed.append(then.pop(0))
                first.remove(listed[-1])
        return {name: place for place, name in enumerate(listed)}
