"""Running the programs of all ranks as they block, until the run repeats itself or sticks.

The second opinion on what ranks do to each other. It knows programs, launches, waits, meetings and
communicators, but no distance rule and no path: every actor does its next op once nothing blocks
it. A member leaves a collective when all have entered it; a communicator matches its n-th call on
one rank with the n-th on another; a device runs the comm nodes that are not concurrent one after
another, as they were launched. A step before the first is not there: nobody waits for it, and no
rank calls anybody in it.

No actor goes further ahead of the slowest than any dependence looks ahead, so the state of a run,
seen from the slowest actor, is one of finitely many; once one comes again, the run goes on for
ever. As nothing in it is a choice, one run decides for all (Manohar and Martin 1998).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..node import Node
from ..plan import Plan
from ..violation import Violation
from .reports import access_of

Instance = tuple[str, int]  # an op of a step


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a run ended: who waits for whom, in a circle; or two calls that do not match."""

    code: str
    message: str
    first: str  # an op on it

    def violation(self, plan: Plan) -> Violation:
        """As the verifier reports it."""
        return Violation(
            self.code,
            self.message,
            before=access_of(plan, self.first, "runs", self.first),
            after=access_of(plan, self.first, "runs", self.first),
            repair="compile the graph again",
        )


def run_blocking(plan: Plan) -> Blocked | None:
    """What stops the ranks of a plan, or None if nothing ever does. Raises nothing."""
    return _ends_apart(plan) or _Run(plan).outcome()


def _ends_apart(plan: Plan) -> Blocked | None:
    """A comm node that a member does not have, or of which two ends do not say the same."""
    likes: dict[str, list[Node]] = {}
    for node in plan.graph.nodes:
        if node.comm is not None:
            likes.setdefault(node.comm.name, []).append(node)
    for name, nodes in likes.items():
        op, comm = _phases(nodes[0])[0], nodes[0].comm
        assert comm is not None, "only comm nodes are asked"
        here = {node.rank for node in nodes}
        if lost := [r for r in comm.members if r in plan.graph.ranks and r not in here]:
            said = f"{op} waits for rank {lost[0]}, which never calls {name!r}"
            return Blocked("SW-MATCH", said, op)
        if odd := [node for node in nodes if node.comm != comm or node.rank not in comm.members]:
            said = f"{nodes[0].name!r} says {comm}, and {odd[0].name!r} {odd[0].comm}"
            return Blocked("SW-MATCH", said, _phases(odd[0])[0])
    return None


@dataclass
class _Run:
    """All actors at work. `done`: how many ops each has done, over all iterations."""

    plan: Plan
    done: dict[str, int] = field(default_factory=dict)
    # By communicator and two ranks: the calls of each that the other has not made yet.
    calls: dict[tuple[str, int, int], deque[Instance]] = field(default_factory=dict)
    launched: dict[int, deque[Instance]] = field(default_factory=dict)  # by rank, not yet left

    def __post_init__(self) -> None:
        plan = self.plan
        runs = [at for program in plan.actors.values() for _, at in program]
        self.first, self.last = min(0, *runs), max(0, *runs)  # iterations that have a step 0
        self.done = {actor: self.first * len(program) for actor, program in plan.actors.items()}
        self.place = {
            op: (actor, place, at)
            for actor, program in plan.actors.items()
            for place, (op, at) in enumerate(program)
        }
        self.nodes = {op: vertex.node for op, vertex in plan.graph.vertices.items()}
        self.likes: dict[str, list[Node]] = {}
        for node in plan.graph.nodes:
            if node.comm is not None:
                self.likes.setdefault(node.comm.name, []).append(node)
        self.before = {op: tuple(self._dependences(op)) for op in self.place}
        self.ahead = 2 + sum(
            max(0, -self._lag(op, *dep)) for op in self.place for dep in self.before[op]
        )

    def _dependences(self, op: str) -> Iterator[tuple[str, int]]:
        """What must be over before an op starts: another op, and of how many steps ago."""
        vertex = self.plan.graph.vertices[op]
        if vertex.launch is not None:
            yield vertex.launch, 0
        for wait in self.plan.waits:
            if wait.target == op:
                yield wait.source, wait.distance
        comm = vertex.node.comm
        if comm is None or op != _phases(vertex.node)[-1]:
            return
        for other in self.likes[comm.name]:
            if other.rank == vertex.node.rank:
                continue
            sends = comm.kind == "message" and vertex.node.rank == comm.members[0]
            if not sends:
                yield _phases(other)[0], 0
            elif comm.capacity is not None:
                yield _phases(other)[0], comm.capacity

    def _lag(self, op: str, source: str, steps: int) -> int:
        """How many iterations ago the source ran, for the op's actor."""
        return steps - self.place[source][2] + self.place[op][2]

    def outcome(self) -> Blocked | None:
        seen: set[object] = set()
        while True:
            moved = False
            for actor in self.plan.actors:
                for _ in self.plan.actors[actor]:  # an actor alone would never be held up
                    if not self._can(actor):
                        break
                    moved = True
                    if (wrong := self._do(actor)) is not None:
                        return wrong
            if not moved:
                return self._stuck()
            if (state := self._state()) is not None:
                if state in seen:
                    return None
                seen.add(state)

    def _next(self, actor: str) -> Instance:
        """The op that an actor does next, and of which step."""
        turn, place = divmod(self.done[actor], len(self.plan.actors[actor]))
        op, at = self.plan.actors[actor][place]
        return op, turn - at

    def _slowest(self) -> int:
        return min(self.done[a] // len(program) for a, program in self.plan.actors.items())

    def _can(self, actor: str) -> bool:
        turn = self.done[actor] // len(self.plan.actors[actor])
        if turn > self._slowest() + self.ahead:
            return False
        return next(self._blockers(self._next(actor)), None) is None

    def _blockers(self, at: Instance) -> Iterator[Instance]:
        """What an op of a step still waits for."""
        op, step = at
        for source, steps in self.before[op]:
            if not self._over(source, step - steps):
                yield source, step - steps
        node = self.nodes[op]
        if node.rank is not None and self._serial(node) and op == _phases(node)[0] and step >= 0:
            launched = self.launched.get(node.rank)
            if launched and launched[0] != at:
                yield _phases(self.nodes[launched[0][0]])[-1], launched[0][1]

    def _over(self, op: str, step: int) -> bool:
        actor, place, at = self.place[op]
        turn = step + at
        if turn < self.first or (step < 0 and self.nodes[op].comm is not None):
            return True
        return self.done[actor] > turn * len(self.plan.actors[actor]) + place

    @staticmethod
    def _serial(node: Node) -> bool:
        return node.comm is not None and bool(node.device) and not node.comm.concurrent

    def _do(self, actor: str) -> Blocked | None:
        """Do the next op of an actor; what two calls that do not match come to."""
        op, step = self._next(actor)
        self.done[actor] += 1
        node = self.nodes[op]
        if node.comm is None or node.rank is None or step < 0:
            return None
        called = node.op_names("host")[-1] if node.device else _phases(node)[0]
        if op == called:
            if self._serial(node):
                entry = (_phases(node)[0], step)
                self.launched.setdefault(node.rank, deque()).append(entry)
            return self._called(node, op, step)
        if op == _phases(node)[-1] and self._serial(node):
            self.launched[node.rank].popleft()
        return None

    def _called(self, node: Node, op: str, step: int) -> Blocked | None:
        """Match a call with what each other member has called in its turn."""
        assert node.comm is not None, "only comm nodes call"
        assert node.rank is not None, "and each on its rank"
        for other in node.comm.members:
            if other == node.rank or other not in self.plan.graph.ranks:
                continue
            mine = self.calls.setdefault((node.comm.communicator, node.rank, other), deque())
            theirs = self.calls.setdefault((node.comm.communicator, other, node.rank), deque())
            mine.append((op, step))
            if theirs:
                (u, i), (v, j) = mine.popleft(), theirs.popleft()
                if self.nodes[u].comm != self.nodes[v].comm or i != j:
                    return Blocked(
                        "SW-MATCH",
                        f"communicator {node.comm.communicator!r} would take {u} of step {i} and "
                        f"{v} of step {j} for one call: they are in the same place on two ranks",
                        u,
                    )
        return None

    def _state(self) -> object | None:
        """What the run looks like from the slowest actor; None while the first steps are near."""
        base = self._slowest()
        if base <= self.ahead + self.last:
            return None
        return (
            tuple(self.done[a] - base * len(program) for a, program in self.plan.actors.items()),
            tuple((k, tuple((op, i - base) for op, i in q)) for k, q in self.calls.items() if q),
            tuple((k, tuple((op, i - base) for op, i in q)) for k, q in self.launched.items()),
        )

    def _stuck(self) -> Blocked:
        """Who waits for whom, around the circle."""
        at = self._next(
            min(self.plan.actors, key=lambda a: self.done[a] // len(self.plan.actors[a]))
        )
        path: list[Instance] = []
        while at not in path:
            path.append(at)
            cause = next(self._blockers(at), None)
            if cause is None:  # an actor that may not go further ahead: it waits for the slowest
                break
            at = self._next(self.place[cause[0]][0])
        circle = path[path.index(at) :] if at in path else path
        lines = [
            f"  {self._where(op)}{op} of step {step} waits for "
            + " and ".join(f"{u} of step {i}" for u, i in self._blockers((op, step)))
            for op, step in circle
        ]
        return Blocked(
            "SW-DEADLOCK", "\n".join(["running the programs sticks:", *lines]), circle[0][0]
        )

    def _where(self, op: str) -> str:
        rank = self.nodes[op].rank
        return "" if rank is None else f"rank {rank}: "


def _phases(node: Node) -> Sequence[str]:
    """The ops in which a node meets the others."""
    return node.op_names("device" if node.device else "host")
