"""The Python door: step graphs from plain functions.

    @node(stream="compute", writes="scaled")
    def scale(sampled, previous: Annotated[float, Read("scaled", 1)]):
        return sampled * previous

Parameter names are the reads, so there is one source of truth and nothing to keep in step; what
the function returns is what it writes. No stream, event or synchronization appears: they are
derived. Parameters named like a state of the graph get the state object. A parameter with a
default is a plain argument, not a read; one named `ctx` gets the `OpContext`.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, ParamSpec, TypeVar, get_args, overload

from . import arguments
from .errors import GraphError, StepweaveError, did_you_mean
from .node import Node, Op, OpContext, Place, Read, Run, State, Storage, Value
from .step_graph import StepGraph

P = ParamSpec("P")
R = TypeVar("R")

_READ = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(@-(?P<carry>\d+))?")


@dataclass(frozen=True)
class NodeFunction(Generic[P, R]):
    """A function and what it touches. Called, it is the function; in a graph, it is a node."""

    function: Callable[P, R]
    name: str
    parameters: Mapping[str, Read]  # in the order of the signature
    context: bool  # it has a parameter `ctx`
    writes: tuple[str, ...]
    single: bool  # it returns the one thing it writes, not a tuple
    updates: tuple[str, ...]
    launch: NodeFunction[..., Any] | None
    template: Node  # all that is not an op

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def node(self, states: Collection[str]) -> Node:
        """The node, once it is known which names are states."""
        op = self.op(states)
        if self.template.stream is None:
            return replace(self.template, host=(op,))
        launch = self.launch.op(states) if self.launch else Op()
        return replace(self.template, host=(launch,), device=(op,))

    def op(self, states: Collection[str]) -> Op:
        for name in self.updates:
            if name not in states:
                raise GraphError(
                    f"node {self.name!r}: it updates {name!r}, which is no state of the graph"
                    f"{did_you_mean(name, states)}. Name it in `states`.",
                    code="SW-UNKNOWN-NAME",
                )
        return Op(
            reads=tuple(self.parameters.values()),
            writes=(*self.writes, *self.updates),
            cost_us=self._cost_us,
            run=self._adapter(states),
        )

    @property
    def _cost_us(self) -> float | None:
        """The template carries it on its first host op."""
        return self.template.host[0].cost_us

    def _adapter(self, states: Collection[str]) -> Run:
        gets = [
            (parameter, read.name if read.name in states else str(read), read.name in states)
            for parameter, read in self.parameters.items()
        ]
        function: Callable[..., Any] = self.function

        def run(ctx: OpContext) -> None:
            arguments = {
                parameter: ctx.state(key) if state else ctx.read(key)
                for parameter, key, state in gets
            }
            if self.context:
                arguments["ctx"] = ctx
            self._publish(ctx, function(**arguments))

        return run

    def _publish(self, ctx: OpContext, result: Any) -> None:
        if self.single:
            ctx.write(self.writes[0], result)
            return
        if result is None:  # nothing to do in this step: none of each
            result = (None,) * len(self.writes)
        if not isinstance(result, tuple) or len(result) != len(self.writes):
            returned = f"{len(result)} data" if isinstance(result, tuple) else "one datum"
            raise StepweaveError(
                f"node {self.name!r} returned {returned} but writes {len(self.writes)}"
                f"{': ' if self.writes else ''}{', '.join(self.writes)}. "
                "Return a tuple with one datum for each, in that order.",
                code="SW-RESULT",
            )
        for name, datum in zip(self.writes, result, strict=True):
            ctx.write(name, datum)


@overload
def node(function: Callable[P, R], /) -> NodeFunction[P, R]: ...


@overload
def node(
    *,
    writes: str | tuple[str, ...] = (),
    reads: Mapping[str, str | Read] | None = None,
    updates: str | tuple[str, ...] = (),
    actor: str = "driver",
    stream: str | None = None,
    launch: NodeFunction[..., Any] | None = None,
    offset: int = 0,
    cost_us: float | None = None,
    launch_latency_us: float | None = None,
    allow_sync: bool = False,
    name: str | None = None,
) -> Callable[[Callable[P, R]], NodeFunction[P, R]]: ...


def node(
    function: Callable[..., Any] | None = None,
    /,
    *,
    writes: str | tuple[str, ...] = (),
    reads: Mapping[str, str | Read] | None = None,
    updates: str | tuple[str, ...] = (),
    actor: str = "driver",
    stream: str | None = None,
    launch: NodeFunction[..., Any] | None = None,
    offset: int = 0,
    cost_us: float | None = None,
    launch_latency_us: float | None = None,
    allow_sync: bool = False,
    name: str | None = None,
) -> Any:
    """Make a node of a function, to run on the host thread `actor`, or on `stream` if given.

    `reads` says what a parameter reads where that is not its name: `{"prev": "tokens@-1"}` (or
    annotate it, `prev: Annotated[Tensor, Read("tokens", 1)]`). `updates` names the states among
    the parameters that the function changes in place. `launch` is a node function for the host
    side of a device node, if that does more than launch.

    Raises `GraphError` for an argument that is wrong by itself, such as a state to update that no
    parameter receives.
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
        for argument, names in (("writes", writes), ("updates", updates)):
            if not isinstance(names, str):
                arguments.texts(where, argument, names)
        arguments.mapping(where, "reads", reads or {}, "parameters to values", "SW-ARGUMENT")
        if launch is not None:
            arguments.a(where, "launch", launch, NodeFunction, "a function decorated with @node")
        parameters, context = _parameters(decorated, called, reads or {})
        changed = (updates,) if isinstance(updates, str) else tuple(updates)
        for state in changed:
            if state not in {read.name for read in parameters.values()}:
                raise GraphError(
                    f"node {called!r}: it updates {state!r}, but no parameter receives it"
                    f"{did_you_mean(state, parameters)}. Add the parameter.",
                    code="SW-UNKNOWN-NAME",
                )
        if launch is not None and stream is None:
            raise GraphError(
                f'node {called!r}: it has a launch but no stream. Say `stream="compute"`, or '
                "make the launch a node of its own.",
                code="SW-NO-STREAM",
            )
        return NodeFunction(
            function=decorated,
            name=called,
            parameters=parameters,
            context=context,
            writes=(writes,) if isinstance(writes, str) else tuple(writes),
            single=isinstance(writes, str),
            updates=changed,
            launch=launch,
            template=Node(
                name=called,
                host=(Op(cost_us=cost_us),),
                actor=actor,
                stream=stream,
                offset=offset,
                kind="function",
                launch_latency_us=launch_latency_us,
                allow_sync=allow_sync,
            ),
        )

    return decorate if function is None else decorate(function)


def _check_function(function: object, where: str) -> None:
    if not callable(function) or isinstance(function, NodeFunction | type):
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
    """What the author says of a value; the rest is inferred from who touches it."""

    name: str
    place: Place | None
    storage: Storage | None
    slots: int | None
    nbytes: int
    external: bool
    initial: Any
    allocate: Callable[[], Any] | None

    def value(self, inferred: Place) -> Value:
        place = self.place or inferred
        return Value(
            self.name,
            place=place,
            storage=self.storage or Value.default_storage(place, self.slots),
            slots=self.slots,
            nbytes=self.nbytes,
            external=self.external,
            initial=self.initial,
            allocate=self.allocate,
        )


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
    return ValueHint(name, place, storage, slots, nbytes, external, initial, allocate)


def step_graph(
    *nodes: NodeFunction[..., Any] | Node,
    values: Iterable[Value | ValueHint] = (),
    states: Iterable[str | State] = (),
    order: Literal["keep", "search"] = "search",
    name: str = "step",
) -> StepGraph:
    """The graph of some nodes, listed in the reference order. Raises `GraphError`.

    Values are inferred: one that only host ops touch lives on the host, one that only device ops
    touch on the device, and one that crosses over in pinned memory.
    """
    for item in nodes:
        if not isinstance(item, Node | NodeFunction):
            must = "a Node or a function decorated with @node, each an argument of its own"
            raise arguments.wrong("step_graph", "each node", must, item, "SW-ARGUMENT")
    for argument, given, kind in (("values", values, "value(…)"), ("states", states, "a name")):
        if isinstance(given, str) or not isinstance(given, Iterable):
            must = f"a list, each entry {kind}"
            raise arguments.wrong("step_graph", argument, must, given, "SW-ARGUMENT")
    values, states = list(values), list(states)
    for hint in values:
        arguments.a("step_graph", "each of values", hint, (Value, ValueHint), "made by value(…)")
    for state in states:
        arguments.a("step_graph", "each of states", state, (str, State), "a name or a State")
    arguments.one_of("step_graph", "order", order, ("keep", "search"))
    arguments.text("step_graph", "name", name)
    kinds = [State(state) if isinstance(state, str) else state for state in states]
    names = {state.name for state in kinds}
    built = [item if isinstance(item, Node) else item.node(names) for item in nodes]
    said = list(values)
    places = _places(built)
    given = {hint.name for hint in said}
    written = {name for item in built for op in (*item.host, *item.device) for name in op.writes}
    inferred = [hint for hint in places if hint in written - names - given]
    return StepGraph.build(
        built,
        [
            *(
                hint.value(places.get(hint.name, "host")) if isinstance(hint, ValueHint) else hint
                for hint in said
            ),
            *(value(name).value(places[name]) for name in inferred),
        ],
        kinds,
        order=order,
        name=name,
    )


def _places(nodes: Iterable[Node]) -> dict[str, Place]:
    """Where each name must live to be within reach of all who touch it, in listing order."""
    sides: dict[str, set[str]] = {}
    for item in nodes:
        for side, ops in (("host", item.host), ("device", item.device)):
            for op in ops:
                for name in (*op.writes, *(read.name for read in op.reads)):
                    sides.setdefault(name, set()).add(side)
    return {
        name: "pinned" if len(found) == 2 else "device" if "device" in found else "host"
        for name, found in sides.items()
    }


def _parameters(
    function: Callable[..., Any], called: str, reads: Mapping[str, str | Read]
) -> tuple[dict[str, Read], bool]:
    """What each parameter reads, and whether the function wants the context."""
    signature = inspect.signature(function).parameters
    for name in reads:
        if name not in signature:
            raise GraphError(
                f"node {called!r}: `reads` names {name!r}, which is no parameter of its function"
                f"{did_you_mean(name, signature)}.",
                code="SW-UNKNOWN-NAME",
            )
    annotated = _annotated(function, called)
    found: dict[str, Read] = {}
    for name, parameter in signature.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise GraphError(
                f"node {called!r}: the parameter *{name} hides what it reads. Name each read.",
                code="SW-SIGNATURE",
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise GraphError(
                f"node {called!r}: the parameter {name!r} is positional only, but reads are passed "
                "by name. Drop the `/`.",
                code="SW-SIGNATURE",
            )
        if name in reads:
            found[name] = _read(reads[name], called)
        elif name in annotated:
            found[name] = annotated[name]
        elif name != "ctx" and parameter.default is parameter.empty:
            found[name] = Read(name)
    return found, "ctx" in signature and "ctx" not in found


def _annotated(function: Callable[..., Any], called: str) -> dict[str, Read]:
    """Reads given as `Annotated[type, Read("tokens", 1)]`."""
    raw = getattr(function, "__annotations__", {})
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):  # names of a type checker only, or of an enclosing function
        lost = [name for name, hint in raw.items() if isinstance(hint, str) and "Read(" in hint]
        if lost:
            raise GraphError(
                f"node {called!r}: the annotation of {lost[0]!r} cannot be evaluated here. "
                f'Say `reads={{{lost[0]!r}: "name@-1"}}` instead.',
                code="SW-SIGNATURE",
            ) from None
        hints = {name: hint for name, hint in raw.items() if not isinstance(hint, str)}
    return {
        name: read
        for name, hint in hints.items()
        for read in getattr(hint, "__metadata__", ())
        if isinstance(read, Read)
    }


def _read(text: str | Read, called: str) -> Read:
    """`tokens` or `tokens@-1`."""
    if isinstance(text, Read):
        return text
    match = _READ.fullmatch(text)
    if match is None:
        raise GraphError(
            f"node {called!r}: {text!r} is not a read. Write `tokens` for this step's version, "
            "`tokens@-1` for that of the step before.",
            code="SW-CARRY",
        )
    return Read(match["name"], int(match["carry"] or 0))
