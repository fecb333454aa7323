"""Nodes and what they declare: ops, accesses, values, states.

This file owns the vocabulary. It says nothing about order: that is derived (`planner/compile.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol

from typing_extensions import TypeVar  # of the standard library from Python 3.13 on

from .pieces import Pieces

T = TypeVar("T", default=Any)
B = TypeVar("B", default=Any)

Place = Literal["host", "pinned", "device"]
Storage = Literal["slots", "fresh"]
Side = Literal["host", "device"]
Across = Literal["same", "own"]
Meeting = Literal["collective", "message"]
OWNER = "owner"  # the class of users of who does not say


class OpContext(Protocol):
    """What the executor hands to an op's `run`: exactly what the op declared, of one step."""

    @property
    def step(self) -> int: ...

    @property
    def firing(self) -> int:
        """Which firing of the node in this step it is, from 0; 0 of a node that has no `rate`."""

    @property
    def waited_s(self) -> float:
        """Seconds for which this op's own waits blocked its actor in this step; 0 without any."""

    @property
    def pieces(self) -> Pieces | None:
        """What records the op in pieces, where it runs as usual; None: nothing does."""

    def read(self, name: str) -> Any:
        """The version of a value that the op declared (its carry is already applied)."""

    def buffer(self, name: str) -> Any:
        """The buffer to fill in place and then `write`: that of this step's slot, or a fresh one.

        Raises `UndeclaredAccess` for a value that is declared without `allocate`.
        """

    def write(self, name: str, datum: Any) -> None:
        """Publish this step's version of a value.

        A value with slots and `allocate` always lies in the slot's own buffer: what lies elsewhere
        is copied there if it fits. Other data are held by reference and must not change any more.
        Raises `ContractViolation` (`SW-SHARED-MEMORY`) for memory that will be written again.
        """

    def state(self, name: str) -> Any:
        """A state object, to be read or changed in place as declared."""

    def stop(self) -> None:
        """Start no step after this one."""


Run = Callable[[OpContext], None]


@dataclass(frozen=True, slots=True)
class Firing:
    """Which run of a node with a rate an unrolled node is: the `turn`-th in step `step` of a cycle.

    Both count from 0. See `rates.py`.
    """

    node: str
    step: int
    turn: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Which versions of a value an unrolled value is: in cycle t, version `of` · t + `index`."""

    value: str
    index: int
    of: int

    def name(self, index: int) -> str:
        """The unrolled value of another index, from 0 to `of` - 1."""
        return f"{self.value}#{index}"


@dataclass(frozen=True)  # without slots: with them, `Value[int](…)` fails
class Value(Generic[T, B]):
    """A named datum of type T that one node writes anew in each step.

    `fresh` values are allocated anew each step and kept until their last reader is done;
    `slots` values live in `slots` physical copies (None: derived), version i in slot i mod K.
    `initial` is every version before step 0 (what a carried read sees at first); `allocate`
    makes the buffer B of a slot (of a fresh value: of a step), new memory in each call.

    `first` makes `initial`, `size` computes `nbytes`. They and `allocate` may have parameters:
    resources (see `graph.parameters`), which are passed when the graph is built.

    `across` ranks: `own` may differ between them, whoever writes it; `same` is promised to be
    equal, which is proved (`planner/uniform.py`). None: it follows from what its writer reads.

    `turn`: of a value that several firings of its writer write in turn, in slots that they share.
    """

    name: str
    place: Place = "host"
    storage: Storage = "fresh"
    slots: int | None = None
    nbytes: int = 0  # bytes of one slot; breaks ties between slot choices
    external: bool = False  # nobody writes it; every version is `initial`
    initial: T | None = field(default=None, compare=False)
    first: Callable[..., T] | None = field(default=None, compare=False)
    size: Callable[..., int] | None = field(default=None, compare=False)
    allocate: Callable[..., B] | None = field(default=None, compare=False)
    line: int | None = field(default=None, compare=False)
    across: Across | None = None
    turn: Turn | None = None

    def slot(self, version: int, slots: int) -> tuple[str, int]:
        """The slot of a version, and the name of the value whose slots these are."""
        if self.turn is None:
            return self.name, version % slots
        return self.turn.value, (version * self.turn.of + self.turn.index) % slots

    @staticmethod
    def default_storage(place: Place, slots: int | None) -> Storage:
        """A host value without `slots` is fresh; any other value has slots."""
        return "fresh" if place == "host" and slots is None else "slots"


@dataclass(frozen=True)  # without slots: with them, `State[int](…)` fails
class State(Generic[T]):
    """A named datum of type T changed in place across steps: request table, KV cache, matchers.

    `make` makes it from resources, its parameters. `keys` names the pool whose keys name its parts,
    such as the KV blocks: the state is *keyed*. Ops of one class of users (`Op.classes`) access it
    in the reference order; between classes a key changes hands by a lease (`planner/leases.py`).
    `leases` pins some: (from class, to class, steps at most). A state is made once for an
    engine and lives on from run to run; with `per_run` each run begins with a new one. `across`
    ranks, as of a value: that a queue of arrivals is `own`, say.
    """

    name: str
    line: int | None = field(default=None, compare=False)
    make: Callable[..., T] | None = field(default=None, compare=False)
    keys: str | None = field(default=None, compare=False)
    leases: tuple[tuple[str, str, int], ...] = field(default=(), compare=False)
    per_run: bool = field(default=False, compare=False)
    across: Across | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A read of a value's version `carry` steps back (0: this step's), or of a state.

    `firing`: of a writer that fires several times in a step, which of these versions; None: the
    newest (`rates.py`).
    """

    name: str
    carry: int = 0
    firing: int | None = None

    def __str__(self) -> str:
        which = self.name if self.firing is None else f"{self.name}#{self.firing}"
        return which if self.carry == 0 else f"{which}@-{self.carry}"


@dataclass(frozen=True, slots=True)
class Op:
    """What a node does on one actor, or one phase of it.

    A node may split its host or device part into consecutive phases, each an op of its own,
    so that an access can end, and be waited for, in the middle of the node.

    Where several ranks run the graph: what an op writes is equal on all of them if what it reads
    is, or if it `agrees` on it with them, by a broadcast, say. `decides` is what of the step's
    course it decides, in words (the rows of the batch); it must be the same decision on all ranks.

    `classes` has the class of users, by keyed state, on whose behalf it accesses that state; where
    it names none it is `OWNER`.
    """

    reads: tuple[Read, ...] = ()
    writes: tuple[str, ...] = ()
    phase: str | None = None
    cost_us: float | None = None
    run: Run | None = field(default=None, compare=False)
    agrees: bool = False
    decides: str = ""
    classes: tuple[tuple[str, str], ...] = ()

    def class_of(self, state: str) -> str:
        """The class of users for which the op accesses a keyed state."""
        if not self.classes:  # as nearly always
            return OWNER
        return next((users for name, users in self.classes if name == state), OWNER)


@dataclass(frozen=True, slots=True)
class Comm:
    """How a node meets its likes on other ranks: what all of them must say alike.

    The ops of such a node are the phases `enter` and `leave`. No member leaves a *collective*
    before all have entered it. The receiver leaves a *message* after its sender (members: sender,
    receiver) has entered it; the sender leaves that of step i + `capacity` after the receiver has
    entered that of step i. Capacity 0 is a rendezvous; None: the compiler derives it.
    """

    name: str  # the node's, without its rank
    kind: Meeting
    members: tuple[int, ...]
    communicator: str  # calls on it match by their order
    capacity: int | None = 0  # of a message
    concurrent: bool = False  # a device may run it at the same time as others
    nbytes: int = 0  # that each member contributes in a step


@dataclass(frozen=True, slots=True)
class Node:
    """A unit of work in a step.

    A host node has `host` ops only. A device node runs its `device` ops on `stream`; its
    `host` ops, on the host thread `actor`, launch them. In iteration t the node acts on step
    t − offset. In a graph of several ranks it belongs to one of them (`ranks.py`).
    """

    name: str
    host: tuple[Op, ...] = (Op(),)
    device: tuple[Op, ...] = ()
    actor: str = "driver"
    stream: str | None = None
    offset: int = 0
    kind: str = "abstract"
    launch_latency_us: float | None = None  # device may start this long after its launch began
    allow_sync: bool = False
    line: int | None = field(default=None, compare=False)
    rank: int | None = None
    comm: Comm | None = None
    rate: int = 1
    every: int = 1
    first: int = 0
    firing: Firing | None = None

    def op_names(self, side: Side) -> tuple[str, ...]:
        """`node.host`, or `node.host.phase` for each phase where there are several."""
        ops = self.host if side == "host" else self.device
        if len(ops) == 1:
            return (f"{self.name}.{side}",)
        return tuple(f"{self.name}.{side}.{op.phase}" for op in ops)
