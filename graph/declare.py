"""The Python door: step graphs from functions.

    @node(stream="compute", writes=SCALED)
    def scale(sampled: Tensor = read(SAMPLED), before: Tensor = read(SCALED, 1)) -> Tensor:
        return sampled * before

What a function reads and changes stands in its signature (`graph.parameters`); what it returns is
what it writes. No stream, event or synchronization appears: they are derived. For a quick graph
names do as well: a parameter without a default reads the value that is called like it, and
`writes="scaled"` names the value. A parameter with a plain default is a plain argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, get_args, overload

from . import arguments
from .bind import Binder, Declared, OpFunction, called, passed, write_of
from .errors import GraphError, did_you_mean, nearest
from .node import Node, Place, State, Storage, Value
from .parameters import Resources, Wanted, parameters
from .step_graph import StepGraph

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

One = Value[A, Any] | Wanted[A]
Names = str | tuple[()] | tuple[str, ...]
Writes = str | Value[Any, Any] | Wanted[Any] | tuple[str | Value[Any, Any] | Wanted[Any], ...]


@dataclass(frozen=True)
class NodeFunction(Generic[P, R]):
    """A function and what it touches. Called, it is the function; in a graph, it is a node."""

    function: Callable[P, R]
    declared: Declared

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def name(self) -> str:
        return self.declared.template.name


class Marks(TypedDict, total=False):
    """The arguments of `op` that do not change its type; see there."""

    phase: str | None
    cost_us: float | None
    agrees: bool
    decides: str


@overload
def op(function: Callable[P, R], /) -> OpFunction[P, R]: ...
@overload
def op(
    *, writes: One[A], **marks: Unpack[Marks]
) -> Callable[[Callable[P, A]], OpFunction[P, A]]: ...
@overload
def op(
    *, writes: tuple[One[A], One[B]], **marks: Unpack[Marks]
) -> Callable[[Callable[P, tuple[A, B]]], OpFunction[P, tuple[A, B]]]: ...
@overload
def op(
    *, writes: tuple[One[A], One[B], One[C]], **marks: Unpack[Marks]
) -> Callable[
    [Callable[P, tuple[A, B, C]]],
    OpFunction[P, tuple[A, B, C]],
]: ...
@overload
def op(
    *, writes: Names = (), **marks: Unpack[Marks]
) -> Callable[[Callable[P, R]], OpFunction[P, R]]: ...
def op(
    function: Callable[..., Any] | None = None,
    /,
    *,
    writes: Writes = (),
    phase: str | None = None,
    cost_us: float | None = None,
    agrees: bool = False,
    decides: str = "",
) -> Any:
    """Declare one op by a function: for nodes of several ops, and for node kinds.

    What the function returns is what it `writes`; None, of a `Value[T | None]`: nothing in this
    step. `agrees` and `decides` are for graphs that several ranks run: see `Op`. Raises
    `GraphError` for a signature that hides what it reads.
    """

    def decorate(decorated: Callable[..., Any]) -> OpFunction[..., Any]:
        _check_function(decorated, "op")
        made = _op(decorated, getattr(decorated, "__name__", "op"), writes, phase, cost_us)
        return replace(made, agrees=agrees, decides=decides)

    return decorate if function is None else decorate(function)


class Placing(TypedDict, total=False):
    """The arguments of `node` that do not change its type; see there."""

    actor: str
    stream: str | None
    launch: OpFunction[..., Any] | None
    offset: int
    cost_us: float | None
    launch_latency_us: float | None
    allow_sync: bool
    name: str | None
    agrees: bool
    decides: str


@overload
def node(function: Callable[P, R], /) -> NodeFunction[P, R]: ...
@overload
def node(
    *, writes: One[A], **placing: Unpack[Placing]
) -> Callable[[Callable[P, A]], NodeFunction[P, A]]: ...
@overload
def node(
    *, writes: tuple[One[A], One[B]], **placing: Unpack[Placing]
) -> Callable[
    [Callable[P, tuple[A, B]]],
    NodeFunction[P, tuple[A, B]],
]: ...
@overload
def node(
    *, writes: Names = (), **placing: Unpack[Placing]
) -> Callable[[Callable[P, R]], NodeFunction[P, R]]: ...
def node(
    function: Callable[..., Any] | None = None,
    /,
    *,
    writes: Writes = (),
    actor: str = "driver",
    stream: str | None = None,
    launch: OpFunction[..., Any] | None = None,
    offset: int = 0,
    cost_us: float | None = None,
    launch_latency_us: float | None = None,
    allow_sync: bool = False,
    name: str | None = None,
    agrees: bool = False,
    decides: str = "",
) -> Any:
    """Make a node of a function, to run on the host thread `actor`, or on `stream` if given.

    `launch` is an op function for the host side of a device node, if that does more than launch.
    `agrees` and `decides` are for graphs that several ranks run: see `Op`. Raises `GraphError` for
    a signature that hides what it reads, or a wrong argument.
    """

    if name is not None:
        arguments.text("node", "name", name)
    if function is not None:
        _check_function(function, "node")

    def decorate(decorated: Callable[..., Any]) -> NodeFunction[..., Any]:
        _check_function(decorated, "node")
        called = str(name or getattr(decorated, "__name__", "node"))
        where = f"node {called!r}"
        _check_placing(where, actor, stream, offset, cost_us, launch_latency_us)
        if launch is not None:
            arguments.a(where, "launch", launch, OpFunction, "a function decorated with @op")
        if launch is not None and stream is None:
            raise GraphError(
                f'node {called!r}: it has a launch but no stream. Say `stream="compute"`, or '
                "make the launch a node of its own.",
                code="SW-NO-STREAM",
            )
        body = _op(decorated, called, writes, None, cost_us)
        body = replace(body, agrees=agrees, decides=decides)
        template = Node(
            name=called,
            actor=actor,
            stream=stream,
            offset=offset,
            kind="function",
            launch_latency_us=launch_latency_us,
            allow_sync=allow_sync,
        )
        if stream is None:
            return NodeFunction(decorated, Declared(template, host=(body,)))
        launches = () if launch is None else (launch,)
        return NodeFunction(decorated, Declared(template, host=launches, device=(body,)))

    return decorate if function is None else decorate(function)


def _op(
    function: Callable[..., Any],
    called: str,
    writes: Writes,
    phase: str | None,
    cost_us: float | None,
) -> OpFunction[..., Any]:
    where = f"node {called!r}"
    single = isinstance(writes, str | Value | Wanted)
    listed: Any = (writes,) if single else writes
    if not isinstance(listed, tuple | list):
        must = "a value, or a tuple of values"
        raise arguments.wrong(where, "writes", must, writes, "SW-ARGUMENT")
    for each in listed:
        arguments.a(where, "each of writes", each, (str, Value, Wanted), "a value, or its name")
        if isinstance(each, str):
            arguments.text(where, "each of writes", each)
    if cost_us is not None:
        arguments.number(where, "cost_us", cost_us)
    written = tuple(map(write_of, listed))
    names = [each.name for each in written]
    for each in written:
        if names.count(each.name) > 1:
            said = f"{where}: it writes {each.name!r} twice. Return each value once."
            raise GraphError(said, code="SW-DUPLICATE")
    for parameter, meant in parameters(function).items():  # refuses what hides a read
        if meant and meant.role == "buffer" and meant.name not in names:
            raise GraphError(
                f"{where}: {parameter!r} is the buffer of {meant.name!r}, which it does not write"
                f"{did_you_mean(meant.name, names)}.",
                code="SW-UNKNOWN-NAME",
            )
    return OpFunction(function, called, written, single, phase, cost_us)


def _check_function(function: object, where: str) -> None:
    if not callable(function) or isinstance(function, NodeFunction | OpFunction | type):
        must = "a plain function; its options are given by name, as in @node(writes=…)"
        raise arguments.wrong(where, "the decorated object", must, function, "SW-ARGUMENT")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        kind = "async" if inspect.iscoroutinefunction(function) else "generator"
        raise arguments.wrong(where, "it", "a plain function", f"{kind} function", "SW-ARGUMENT")


def _check_placing(
    where: str,
    actor: object,
    stream: object,
    offset: object,
    cost_us: object,
    launch_latency_us: object,
) -> None:
    arguments.text(where, "actor", actor)
    if stream is not None:
        arguments.text(where, "stream", stream)
    arguments.whole(where, "offset", offset, -arguments.MAX_DISTANCE)
    for argument, us in (("cost_us", cost_us), ("launch_latency_us", launch_latency_us)):
        if us is not None:
            arguments.number(where, argument, us)


@dataclass(frozen=True)
class ValueHint:
    """What the author says of a value; where it lives is inferred from who touches it, or said."""

    of: Value
    place: Place | None
    storage: Storage | None

    @property
    def name(self) -> str:
        return self.of.name

    def value(self, inferred: Place) -> Value:
        place = self.place or inferred
        storage = self.storage or Value.default_storage(place, self.of.slots)
        return replace(self.of, place=place, storage=storage)


def value(
    name: str,
    *,
    place: Place | None = None,
    storage: Storage | None = None,
    slots: int | None = None,
    nbytes: int = 0,
    external: bool = False,
    initial: Any = None,
    allocate: Callable[[], Any] | None = None,
) -> ValueHint:
    """Declare what cannot be inferred of a value, such as its initial version or slots.

    Raises `GraphError` for an argument of a wrong type or out of range.
    """
    arguments.text("value", "its name", name)
    where = f"value {name!r}"
    if place is not None:
        arguments.one_of(where, "place", place, get_args(Place))
    if storage is not None:
        arguments.one_of(where, "storage", storage, get_args(Storage))
    if slots is not None:
        arguments.whole(where, "slots", slots, 1, code="SW-SLOTS")
    arguments.whole(where, "nbytes", nbytes, 0, 1 << 62)
    if allocate is not None and not callable(allocate):
        raise arguments.wrong(
            where, "allocate", "a function without parameters", allocate, "SW-ARGUMENT"
        )
    said = Value(
        name, slots=slots, nbytes=nbytes, external=external, initial=initial, allocate=allocate
    )
    return ValueHint(said, place, storage)


def step_graph(
    *nodes: NodeFunction[..., Any] | Declared | Node,
    values: Iterable[Value | ValueHint] = (),
    states: Iterable[str | State] = (),
    order: Literal["keep", "search"] = "search",
    name: str = "step",
    launches: Literal["apart", "together"] = "apart",
    resources: Resources | None = None,
    bodies: bool = True,
) -> StepGraph:
    """The graph of some nodes, listed in the reference order. Raises `GraphError`.

    Values that are only named are inferred: one that only host ops touch lives on the host, one
    that only device ops touch on the device, and one that crosses over in pinned memory.
    `resources` are passed to what asks for them. Without `bodies` the graph can be checked and
    drawn, but not run, and only sizes are computed. `launches`: see `planner/units.py`.
    """
    for item in nodes:
        if not isinstance(item, Node | NodeFunction | Declared):
            must = "a Node or a function decorated with @node, each an argument of its own"
            raise arguments.wrong("step_graph", "each node", must, item, "SW-ARGUMENT")
    for argument, given, kind in (("values", values, "value(…)"), ("states", states, "a name")):
        if isinstance(given, str) or not isinstance(given, Iterable):
            must = f"a list, each entry {kind}"
            raise arguments.wrong("step_graph", argument, must, given, "SW-ARGUMENT")
    values, states = list(values), list(states)
    for hint in values:
        arguments.a("step_graph", "each of values", hint, (Value, ValueHint), "made by value(…)")
    for each in states:
        arguments.a("step_graph", "each of states", each, (str, State), "a name or a State")
    arguments.one_of("step_graph", "order", order, ("keep", "search"))
    arguments.text("step_graph", "name", name)
    resources = resources or Resources()
    said = [State(each) if isinstance(each, str) else each for each in states]
    declared = [item.declared if isinstance(item, NodeFunction) else item for item in nodes]
    binder = Binder(declared, {v.name for v in values}, {s.name for s in said}, resources)
    built = binder.nodes(bodies=bodies)
    touched = said + [each for each in binder.states() if each.name not in {s.name for s in said}]
    given_values = {hint.name for hint in values}
    typed = [v for v in binder.values() if v.name not in given_values]
    places = _places(built)
    named = {*given_values, *(v.name for v in typed), *(s.name for s in touched)}
    written = {
        name for item in built for each in (*item.host, *item.device) for name in each.writes
    }
    for hint in values:
        # One of a name that is like no other may be there for later.
        if hint.name not in places and nearest(hint.name, places):
            why = f"no node reads or writes it{did_you_mean(hint.name, places)}"
            raise GraphError(f"value {hint.name!r}: {why}.", code="SW-UNKNOWN-NAME")
    inferred = [hint for hint in places if hint in written - named]
    return StepGraph.build(
        built,
        [
            *(
                hint.value(places.get(hint.name, "host")) if isinstance(hint, ValueHint) else hint
                for hint in values
            ),
            *(_sized(v, resources, binder.owner_of(v.name), bodies) for v in typed),
            *(value(name).value(places[name]) for name in inferred),
        ],
        [
            _made(each, resources, binder.owner_of(each.name)) if each.make and bodies else each
            for each in touched
        ],
        order=order,
        name=name,
        launches=launches,
    )


def _sized(found: Value, resources: Resources, owner: Declared | None, bodies: bool) -> Value:
    """The value with what its functions need passed to them."""
    if found.size is not None:
        found = replace(found, nbytes=called(resources, found.size, owner))
    if not bodies:
        return found
    if found.allocate is not None:
        found = replace(found, allocate=passed(resources, found.allocate, owner))
    if found.first is not None:
        found = replace(found, initial=called(resources, found.first, owner))
    return found


def _made(found: State, resources: Resources, owner: Declared | None) -> State:
    """The state with a `make` that finds its resources when it is called."""
    make = found.make
    assert make is not None, "only such states are made"
    return replace(found, make=lambda: called(resources, make, owner))


def _places(nodes: Iterable[Node]) -> dict[str, Place]:
    """Where each name must live to be within reach of all who touch it, in listing order."""
    sides: dict[str, set[str]] = {}
    for item in nodes:
        for side, ops in (("host", item.host), ("device", item.device)):
            for each in ops:
                for name in (*each.writes, *(read.name for read in each.reads)):
                    sides.setdefault(name, set()).add(side)
    return {
        name: "pinned" if len(found) == 2 else "device" if "device" in found else "host"
        for name, found in sides.items()
    }
