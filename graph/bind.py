"""From node functions to ops: which optional accesses there are, what each body is called with.

Binding happens once, when a graph is built. An optional read is an access where some node writes
the value; a wanted write where some node reads it. What is not bound is not declared: the plan
never sees it, and the function gets None.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter, methodcaller
from typing import Any, Generic, ParamSpec, TypeVar

from .errors import GraphError, StepweaveError, did_you_mean
from .node import Node, Op, OpContext, Read, Run, State, Value
from .parameters import Parameter, Resources, Wanted, parameters
from .validate import state_at_a_carry

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Write:
    """A write of an op function. `optional`: only where somebody reads it, and `of` is read."""

    of_value: Value[Any, Any] | str
    optional: bool = False
    of: str | None = None

    @property
    def name(self) -> str:
        return self.of_value if isinstance(self.of_value, str) else self.of_value.name


@dataclass(frozen=True)
class OpFunction(Generic[P, R]):
    """A function and what it touches: the declaration of one op. Called, it is the function."""

    function: Callable[P, R]
    name: str
    writes: tuple[Write, ...]
    single: bool  # it returns the one thing it writes, not a tuple
    phase: str | None = None
    cost_us: float | None = None
    agrees: bool = False
    decides: str = ""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        return {name: each for name, each in parameters(self.function).items() if each is not None}


@dataclass(frozen=True)
class Declared:
    """A node made of functions. `template` is all of it that is not an op.

    `settings`: its options. `wiring`: by parameter, what it reads in this graph. `launch_cost_us`:
    of a host op that only launches.
    """

    template: Node
    host: tuple[OpFunction[..., Any], ...] = ()
    device: tuple[OpFunction[..., Any], ...] = ()
    settings: object = None
    wiring: Mapping[str, Read] = field(default_factory=dict)
    launch_cost_us: float | None = None


@dataclass
class _Use:
    """One op function in its node, with what is bound of it so far."""

    node: Declared
    op: OpFunction[..., Any]
    side: str
    reads: dict[str, Read] = field(default_factory=dict)  # by parameter, of values
    states: dict[str, str] = field(default_factory=dict)  # by parameter
    updates: set[str] = field(default_factory=set)  # states among them that it changes
    writes: dict[str, Write] = field(default_factory=dict)

    def touches(self) -> Iterator[str]:
        yield from (read.name for read in self.reads.values())
        yield from self.states.values()

    def sources(self) -> set[str]:
        """What its bound reads declare, whatever a pipeline has them read."""
        return {self.op.parameters[parameter].name for parameter in self.reads}


class Binder:
    """All op functions of a graph, and which of their accesses are bound."""

    def __init__(
        self,
        nodes: Sequence[Declared | Node],
        values: Collection[str],
        states: Collection[str],
        resources: Resources,
    ) -> None:
        """`values`: of those that are there whoever writes them; `states`: of states by name."""
        self._nodes = nodes
        self._outside = set(values)
        self._named_states = set(states)
        self._resources = resources
        self._uses = [use for node in nodes if isinstance(node, Declared) for use in self._of(node)]
        self._raw = [op for n in nodes if isinstance(n, Node) for op in (*n.host, *n.device)]
        self._refuse_states_as_values()
        while self._drop():
            pass

    def values(self) -> list[Value[Any, Any]]:
        """The typed values that are written or must be, in the order of the listing."""
        found: dict[str, tuple[Any, Declared]] = {}
        for use in self._uses:
            for name, write in use.writes.items():
                _same(found, name, write.of_value, use.node)
        for use in self._uses:
            for parameter, read in use.reads.items():
                declared = use.op.parameters[parameter].of
                if parameter not in use.node.wiring and isinstance(declared, Value):
                    _same(found, read.name, declared, use.node)
        return [value for value, _ in found.values()]

    def states(self) -> list[State[Any]]:
        """The typed states that are touched, in the order of the listing."""
        found: dict[str, tuple[Any, Declared]] = {}
        for use in self._uses:
            for parameter, name in use.states.items():
                declared = use.op.parameters[parameter].of
                if isinstance(declared, State):
                    _same(found, name, declared, use.node)
        return [state for state, _ in found.values()]

    def owner_of(self, name: str) -> Declared | None:
        """The node that writes the value, or reads it where nobody does; the first with the state.

        What the value or state says of itself may be made from this node's options. None for a
        state that no function touches.
        """
        for use in self._uses:
            if name in use.writes:
                return use.node
        typed = (use for use in self._uses for p, s in use.states.items() if s == name)
        declaring = (u.node for u in typed if any(self._declares(u, name)))
        return next(declaring, next((u.node for u in self._uses if name in u.touches()), None))

    @staticmethod
    def _declares(use: _Use, state: str) -> Iterator[bool]:
        """Whether a parameter has the state itself, and not only its name."""
        for parameter, name in use.states.items():
            yield name == state and isinstance(use.op.parameters[parameter].of, State)

    def nodes(self, *, bodies: bool) -> list[Node]:
        """The nodes with the ops that their functions declare; without `bodies` for a look only."""
        return [
            self._node(node, bodies) if isinstance(node, Declared) else node for node in self._nodes
        ]

    def _node(self, node: Declared, bodies: bool) -> Node:
        uses = [use for use in self._uses if use.node is node]
        host = tuple(self._op(use, bodies) for use in uses if use.side == "host") or (Op(),)
        if node.launch_cost_us is not None and node.device:
            host = tuple(_launching(op, node.launch_cost_us) for op in host)
        device = tuple(self._op(use, bodies) for use in uses if use.side == "device")
        return replace(node.template, host=host, device=device)

    def _op(self, use: _Use, bodies: bool) -> Op:
        if self._idle(use):
            return Op(phase=use.op.phase, cost_us=use.op.cost_us)
        reads = [*use.reads.values(), *map(Read, dict.fromkeys(use.states.values()))]
        updated = [state for state in dict.fromkeys(use.states.values()) if state in use.updates]
        return Op(
            reads=tuple(dict.fromkeys(reads)),
            writes=(*use.writes, *updated),
            phase=use.op.phase,
            cost_us=use.op.cost_us,
            run=_body(use, self._resources) if bodies else None,
            agrees=use.op.agrees,
            decides=use.op.decides,
            classes=tuple(
                dict.fromkeys(
                    (state, users)
                    for parameter, state in use.states.items()
                    if (users := use.op.parameters[parameter].users) is not None
                )
            ),
        )

    def _of(self, node: Declared) -> Iterator[_Use]:
        if node.wiring:
            _check_wiring(node)
        for side, ops in (("host", node.host), ("device", node.device)):
            for op in ops:
                yield self._use(node, op, side)

    def _use(self, node: Declared, op: OpFunction[..., Any], side: str) -> _Use:
        use = _Use(node, op, side, writes={write.name: write for write in op.writes})
        for name, each in op.parameters.items():
            if each.role == "read" and self._is_state(each) and name not in node.wiring:
                if each.carry:
                    raise state_at_a_carry(node.template, op.name, Read(each.name, each.carry))
                use.states[name] = each.name
            elif each.role == "read":
                use.reads[name] = node.wiring.get(name, Read(each.name, each.carry))
            elif each.role in ("state", "update") and self._asked_for(node, each):
                use.states[name] = each.name
                if each.role == "update":
                    if not each.optional:
                        self._known(node, each)
                    use.updates.add(each.name)
        return use

    def _refuse_states_as_values(self) -> None:
        """A function is given a value, and returns one: of a state it is given the thing itself."""
        states = self._named_states.union(*(use.states.values() for use in self._uses))
        for use in self._uses:
            wrong = [
                f"reads the state {read.name!r} as the value of {parameter!r}. Read a value, or "
                "declare the parameter with `state()`."
                for parameter, read in use.reads.items()
                if read.name in states
            ] + [
                f"returns {name!r}, which is a state. Change it in place, with a parameter "
                "declared with `update()`, or return a value of another name."
                for name in use.writes
                if name in states
            ]
            if wrong:
                node = use.node.template
                said = f"node {node.name!r}: {use.op.name!r} {wrong[0]}"
                raise GraphError(said, code="SW-ARGUMENT", line=node.line)

    def _is_state(self, parameter: Parameter) -> bool:
        return isinstance(parameter.of, str) and parameter.of in self._named_states

    def _known(self, node: Declared, parameter: Parameter) -> None:
        if isinstance(parameter.of, str) and parameter.of not in self._named_states:
            raise GraphError(
                f"node {node.template.name!r}: it updates {parameter.of!r}, which is no state of "
                f"the graph{did_you_mean(parameter.of, self._named_states)}. Name it in `states`.",
                code="SW-UNKNOWN-NAME",
            )

    def _asked_for(self, node: Declared, parameter: Parameter) -> bool:
        if parameter.when is None:
            return True
        return bool(called(self._resources, parameter.when, node))

    def _drop(self) -> bool:
        """Unbind what has no other side any more; whether anything was."""
        written = {name for use in self._uses for name in use.writes} | self._outside
        written |= {name for op in self._raw for name in op.writes}
        read = {name for op in self._raw for name in (each.name for each in op.reads)}
        read |= {name for use in self._uses for name in use.touches()}
        dropped = False
        for use in self._uses:
            parameters = use.op.parameters
            for name in [n for n, each in use.reads.items() if parameters[n].optional]:
                if use.reads[name].name not in written or self._made_for_nobody(use, name):
                    del use.reads[name]
                    dropped = True
            for name in [n for n in use.states if parameters[n].optional]:
                each = parameters[name]
                alone = each.role == "update" and each.when is not None
                if not alone and not self._shared(use, use.states[name], each.role):
                    use.updates.discard(use.states.pop(name))
                    dropped = True
            for name in [n for n, write in use.writes.items() if write.optional]:
                of = use.writes[name].of
                if name not in read or (of is not None and of not in use.sources()):
                    del use.writes[name]
                    dropped = True
            if self._idle(use) and (use.reads or use.states):
                use.reads, use.states, use.updates = {}, {}, set()
                dropped = True
        return dropped

    @staticmethod
    def _made_for_nobody(use: _Use, parameter: str) -> bool:
        """Whether a read serves only a wanted write that is not bound."""
        name = use.op.parameters[parameter].name
        made = [write.name for write in use.op.writes if write.of == name]
        return bool(made) and not any(each in use.writes for each in made)

    def _shared(self, mine: _Use, state: str, role: str) -> bool:
        others = [use for use in self._uses if use is not mine]
        if any(state in op.writes for op in self._raw):
            return True
        if role == "update":
            looked_at = any(state == read.name for op in self._raw for read in op.reads)
            return looked_at or any(self._asks(use, state) for use in others)
        return any(state in use.updates for use in others)

    @staticmethod
    def _asks(use: _Use, state: str) -> bool:
        """Whether the function has the state for its own sake, not to keep up what others have."""
        having = (use.op.parameters[name] for name, of in use.states.items() if of == state)
        return any(
            each.role == "state" or not each.optional or each.when is not None for each in having
        )

    @staticmethod
    def _idle(use: _Use) -> bool:
        """Whether all that the function might write is wanted by nobody."""
        return bool(use.op.writes) and not use.writes and not use.updates


def _check_wiring(node: Declared) -> None:
    """What the node is told to read must be a read of one of its functions."""
    known = {
        name
        for op in (*node.host, *node.device)
        for name, each in op.parameters.items()
        if each.role == "read"
    }
    for parameter in node.wiring:
        if parameter not in known:
            raise GraphError(
                f"node {node.template.name!r} of kind {node.template.kind!r} reads no "
                f"{parameter!r}{did_you_mean(parameter, known)}",
                code="SW-READS",
                line=node.template.line,
            )


def _same(
    found: dict[str, tuple[Any, Declared]], name: str, declared: object, node: Declared
) -> None:
    if isinstance(declared, str):
        return
    first, by = found.setdefault(name, (declared, node))
    if first is not declared:
        raise GraphError(
            f"node {node.template.name!r}: {name!r} is declared twice, by two different objects: "
            f"here and for node {by.template.name!r}. Share one, or rename one.",
            code="SW-DUPLICATE",
            line=node.template.line,
        )


def _launching(op: Op, cost_us: float) -> Op:
    """The op with that cost if it only launches and says no other."""
    bare = not op.reads and not op.writes and op.run is None and op.cost_us is None
    return replace(op, cost_us=cost_us) if bare else op


def _body(use: _Use, resources: Resources) -> Run:
    """What the executor calls: the function with its arguments, its result published."""
    function = passed(resources, use.op.function, use.node)
    bound = use.op.parameters
    fixed: dict[str, Any] = {}
    gets: list[tuple[str, Callable[[OpContext], Any]]] = []
    for name, each in bound.items():
        if name in use.reads:
            gets.append((name, methodcaller("read", str(use.reads[name]))))
        elif name in use.states:
            gets.append((name, methodcaller("state", use.states[name])))
        elif each.role == "buffer" and each.name in use.writes:
            gets.append((name, methodcaller("buffer", each.name)))
        elif each.role == "context":
            gets.append((name, lambda ctx: ctx))
        elif each.role == "pieces":
            gets.append((name, attrgetter("pieces")))
        elif each.role in ("read", "state", "update", "buffer"):
            fixed[name] = None
    publish = _publisher(use)

    def run(ctx: OpContext) -> None:
        publish(ctx, function(**fixed, **{name: get(ctx) for name, get in gets}))

    return run


def passed(
    resources: Resources, function: Callable[..., R], node: Declared | None
) -> Callable[..., R]:
    """`function` with resources and options passed; what fails in making them names the node."""
    options = None if node is None else node.settings
    return _telling(node, lambda: resources.call(function, options))


def called(resources: Resources, function: Callable[..., R], node: Declared | None) -> R:
    """What `function` returns; what fails in it, or in making its resources, names the node."""
    return _telling(node, passed(resources, function, node))


def _telling(node: Declared | None, make: Callable[[], R]) -> R:
    template = None if node is None else node.template
    line = None if template is None else template.line
    try:
        return make()
    except StepweaveError as error:
        if template is not None and not error.message.startswith("node "):
            error.message = f"node {template.name!r}: {error.message}"
            error.args = (error.message,)
        if error.line is None:
            error.line = line
        raise
    except (Exception, SystemExit) as error:  # the boundary: code that is not ours
        what = "a state that no node function touches"
        if template is not None:
            what = f"node {template.name!r}: what its kind {template.kind!r} needs"
        raise GraphError(
            f"{what} cannot be made: {type(error).__name__}: {error}", code="SW-KIND", line=line
        ) from error


def _publisher(use: _Use) -> Callable[[OpContext, Any], None]:
    written = [write.name for write in use.op.writes]
    kept = [name in use.writes for name in written]
    node = use.node.template.name

    def one(ctx: OpContext, result: Any) -> None:
        if kept[0]:
            ctx.write(written[0], result)

    def several(ctx: OpContext, result: Any) -> None:
        if result is None:  # nothing to do in this step: none of each
            result = (None,) * len(written)
        if not isinstance(result, tuple) or len(result) != len(written):
            returned = f"{len(result)} data" if isinstance(result, tuple) else "one datum"
            advice = "Name what it writes in `writes`, or return nothing."
            if written:
                advice = "Return a tuple with one datum for each, in that order."
            raise StepweaveError(
                f"node {node!r} returned {returned} but writes {len(written)}"
                f"{': ' if written else ''}{', '.join(written)}. {advice}",
                code="SW-RESULT",
            )
        for name, datum, wanted in zip(written, result, kept, strict=True):
            if wanted:
                ctx.write(name, datum)

    return one if use.op.single else several


def write_of(item: Value[Any, Any] | Wanted[Any] | str) -> Write:
    """What an entry of `writes` declares."""
    if isinstance(item, Wanted):
        return Write(item.value, optional=True, of=None if item.of is None else item.of.name)
    return Write(item)
