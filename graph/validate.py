"""Refusing declarations that make no sense, each with its code, place and nearest right name.

Whether sensible declarations can be *ordered* is another question, answered by compiling them
(`DeadlockError`). The codes are stable, so that scripts and editors may rely on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import get_args

from .arguments import MAX_DISTANCE, number, whole
from .errors import GraphError, did_you_mean
from .modes import check_modes
from .node import Across, Node, Place, Read, State, Storage, Value
from .rates import check_rates
from .step_graph import StepGraph, Vertex
from .validate_ranks import check_ranks


def validate(graph: StepGraph) -> None:
    """Raise a `GraphError` for the first declaration that is wrong."""
    for check in _CHECKS:
        check(graph)


def check_names(nodes: Sequence[Node], values: Sequence[Value], states: Sequence[State]) -> None:
    """Refuse names declared twice, before they become the keys of mappings and vanish.

    Raises `GraphError`.
    """
    _unique("node", nodes)
    _unique("value", values)
    _unique("state", states)
    named = {value.name for value in values}
    for datum in states:
        if datum.name in named:
            raise GraphError(
                f"{datum.name!r} is declared both as a value and as a state. A value is written "
                "anew in each step, a state is changed in place: choose one, or rename one.",
                code="SW-DUPLICATE",
                line=datum.line,
            )


def unread_values(graph: StepGraph) -> tuple[str, ...]:
    """Values that nobody reads: not wrong, but work whose result is dropped."""
    read = {read.name for vertex in graph.vertices.values() for read in vertex.op.reads}
    return tuple(name for name in graph.values if name not in read)


def _unique(kind: str, declared: Iterable[Node | Value | State]) -> None:
    seen: set[str] = set()
    for item in declared:
        if item.name in seen:
            raise GraphError(
                f"{kind} {item.name!r} is declared twice. Give each {kind} a name of its own.",
                code="SW-DUPLICATE",
                line=item.line,
            )
        seen.add(item.name)


def _wrong(node: Node, code: str, problem: str, advice: str) -> GraphError:
    return GraphError(f"node {node.name!r}: {problem}. {advice}", code=code, line=node.line)


def state_at_a_carry(node: Node, op: str, read: Read) -> GraphError:
    """What is wrong with a read of a state that asks for an older version of it."""
    return _wrong(
        node,
        "SW-CARRY",
        f"{op!r} reads the state {read.name!r} at a carry of {read.carry}",
        "A state is changed in place and has no versions: read it without a carry, or make it a "
        "value.",
    )


def _check_nodes(graph: StepGraph) -> None:
    if not graph.nodes:
        raise GraphError(f"step graph {graph.name!r} has no nodes. Declare one.", code="SW-EMPTY")
    for node in graph.nodes:
        if not node.host:
            raise _wrong(
                node,
                "SW-NO-OPS",
                "it has no host op" + (" to launch its device op" if node.device else ""),
                "Give it one; it may read and write nothing.",
            )
        whole(f"node {node.name!r}", "offset", node.offset, -MAX_DISTANCE)
        _check_phases(node)
        _check_stream(node)
        if node.launch_latency_us is not None:
            number(f"node {node.name!r}", "launch_latency_us", node.launch_latency_us)
    _check_op_names(graph)


def _check_op_names(graph: StepGraph) -> None:
    """Names may have dots in them, so that ops of two nodes may come to one name."""
    known: dict[str, Node] = {}
    for node in graph.nodes:
        for name in (*node.op_names("host"), *node.op_names("device")):
            if name in known:
                other = known[name].name
                raise _wrong(
                    node,
                    "SW-DUPLICATE",
                    f"its op {name!r} has the name of an op of node {other!r}",
                    "Rename one of the nodes, or a phase.",
                )
            known[name] = node


def _check_phases(node: Node) -> None:
    for side, ops in (("host", node.host), ("device", node.device)):
        names = [op.phase for op in ops]
        if len(ops) > 1 and any(name is None for name in names):
            raise _wrong(
                node,
                "SW-PHASE",
                f"its {side} part has {len(ops)} phases, of which one has no name",
                "Name each, as in `phase: advance`.",
            )
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise _wrong(
                node,
                "SW-PHASE",
                f"its {side} part has two phases named {twice!r}",
                "Rename one.",
            )


def _check_stream(node: Node) -> None:
    if node.device and not node.stream:
        raise _wrong(
            node, "SW-NO-STREAM", "it has device ops but no stream", "Say `stream: compute`, say."
        )
    if node.stream and not node.device:
        raise _wrong(
            node,
            "SW-NO-DEVICE-OP",
            f"it names the stream {node.stream!r} but has no device op",
            "Declare what it does there, or drop the stream.",
        )


def _check_actors(graph: StepGraph) -> None:
    threads = {node.actor for node in graph.nodes}
    for node in graph.nodes:
        if node.stream in threads:
            raise _wrong(
                node,
                "SW-ACTOR",
                f"{node.stream!r} is the name of a host thread and cannot be its stream too",
                "Rename one of the two.",
            )


def _check_word(
    what: str, datum: Value | State, argument: str, given: str | None, known: tuple[str, ...]
) -> None:
    if given not in known:
        raise GraphError(
            f"{what} {datum.name!r}: {argument} must be {' or '.join(known)}, not {given!r}.",
            code="SW-ARGUMENT",
            line=datum.line,
        )


def _check_states(graph: StepGraph) -> None:
    for state in graph.states.values():
        _check_word("state", state, "across", state.across or "same", get_args(Across))


def _check_values(graph: StepGraph) -> None:
    for value in graph.values.values():
        _check_word("value", value, "place", value.place, get_args(Place))
        _check_word("value", value, "storage", value.storage, get_args(Storage))
        _check_word("value", value, "across", value.across or "same", get_args(Across))
        if value.slots is not None:
            where = f"value {value.name!r}"
            whole(where, "slots", value.slots, -MAX_DISTANCE, code="SW-SLOTS")
        problem = None
        if value.slots is not None and value.storage == "fresh":
            problem = (
                "is fresh, allocated anew in each step, and so has no slots. Drop `slots`, or say "
                "`storage: slots`"
            )
        elif value.slots is not None and value.slots < 1:
            problem = f"has {value.slots} slots. It needs one at least"
        if problem:
            raise GraphError(f"value {value.name!r} {problem}.", code="SW-SLOTS", line=value.line)


def _check_accesses(graph: StepGraph) -> None:
    known = [*graph.values, *graph.states]
    for vertex, verb, name in _accesses(graph):
        if name not in graph.values and name not in graph.states:
            raise _wrong(
                vertex.node,
                "SW-UNKNOWN-NAME",
                f"{vertex.name!r} {verb} {name!r}, which is neither a value nor a state"
                + did_you_mean(name, known),
                "Declare it, or correct the name.",
            )


def _accesses(graph: StepGraph) -> Iterator[tuple[Vertex, str, str]]:
    for vertex in graph.vertices.values():
        for read in vertex.op.reads:
            yield vertex, "reads", read.name
        for name in vertex.op.writes:
            yield vertex, "writes", name


def _check_reads(graph: StepGraph) -> None:
    for vertex in graph.vertices.values():
        for read in vertex.op.reads:
            carry = f"the carry of {read.name!r}"
            where = f"node {vertex.node.name!r}"
            whole(where, carry, read.carry, -MAX_DISTANCE, code="SW-CARRY")
            if read.carry < 0:
                raise _wrong(
                    vertex.node,
                    "SW-CARRY",
                    f"{vertex.name!r} reads {read.name!r} {-read.carry} steps ahead",
                    f"A carry counts steps back: `{read.name}@-{-read.carry}`.",
                )
            if read.carry and read.name in graph.states:
                raise state_at_a_carry(vertex.node, vertex.name, read)
        _check_repeats(vertex)


def _check_repeats(vertex: Vertex) -> None:
    for verb, names in (
        ("reads", [str(read) for read in vertex.op.reads]),
        ("writes", list(vertex.op.writes)),
    ):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            problem = f"{vertex.name!r} {verb} {twice!r} twice"
            raise _wrong(vertex.node, "SW-DUPLICATE", problem, "Once is enough.")


def _check_writers(graph: StepGraph) -> None:
    writers: dict[str, Vertex] = {}
    for vertex, verb, name in _accesses(graph):
        if verb == "reads" or name not in graph.values:
            continue
        if graph.values[name].external:
            raise _wrong(
                vertex.node,
                "SW-EXTERNAL",
                f"{vertex.name!r} writes {name!r}, which comes from outside (`initial: external`)",
                "Drop the write, or let the value start with a plain initial.",
            )
        if name in writers:
            raise _wrong(
                vertex.node,
                "SW-TWO-WRITERS",
                f"{vertex.name!r} writes {name!r}, which {writers[name].name!r} writes already",
                "A value has one writer: take one of the two nodes out, write another value, or "
                "declare it a state.",
            )
        writers[name] = vertex
    for vertex, verb, name in _accesses(graph):
        value = graph.values.get(name)
        if verb == "reads" and value and not value.external and name not in writers:
            raise _wrong(
                vertex.node,
                "SW-UNWRITTEN",
                f"{vertex.name!r} reads {name!r}, which no node writes"
                + did_you_mean(name, writers),
                "Declare its writer, or say `initial: external` if it comes from outside.",
            )


def _check_places(graph: StepGraph) -> None:
    for vertex, verb, name in _accesses(graph):
        value = graph.values.get(name)
        if value is None or value.place == "pinned":
            continue
        if vertex.side == "device" and value.place == "host":
            raise _wrong(
                vertex.node,
                "SW-PLACE",
                f"the device op {vertex.name!r} {verb} {name!r}, which lives in host memory",
                "A stream reaches pinned memory only: say `place: pinned`, or use it in a host op.",
            )
        if vertex.side == "host" and value.place == "device":
            raise _wrong(
                vertex.node,
                "SW-PLACE",
                f"the host op {vertex.name!r} {verb} {name!r}, which lives on the device",
                "Copy it to a pinned value in a device op, or use it in the device op.",
            )


def _check_costs(graph: StepGraph) -> None:
    for node in graph.nodes:
        for op in chain(node.host, node.device):
            if op.cost_us is None:
                continue
            if isinstance(op.cost_us, int | float) and op.cost_us < 0:
                raise _wrong(node, "SW-COST", f"a cost of {op.cost_us} µs", "Give µs ≥ 0.")
            number(f"node {node.name!r}", "cost_us", op.cost_us)


def _check_classes(graph: StepGraph) -> None:
    """Classes are of keyed states that their op accesses; pinned leases, of classes there are."""
    said = any(vertex.op.classes for vertex in graph.vertices.values())
    if not said and not any(state.leases for state in graph.states.values()):
        return
    classes: dict[str, dict[str, None]] = {}
    for vertex, _, name in _accesses(graph):
        if name in graph.states:
            classes.setdefault(name, {})[vertex.op.class_of(name)] = None
    touched = {(vertex.name, name) for vertex, _, name in _accesses(graph)}
    for vertex in graph.vertices.values():
        by_state = dict(vertex.op.classes)
        for name, users in vertex.op.classes:
            state, problem = graph.states.get(name), ""
            if by_state[name] != users:
                problem = f"and the class {by_state[name]!r} too: split it into phases, one of each"
                problem = f"{vertex.name!r} has the class {users!r} for {name!r}, {problem}"
                raise _wrong(vertex.node, "SW-CLASS", problem, "Keys of both would not be ordered.")
            if (vertex.name, name) not in touched or state is None:
                problem = f"which is no state that it accesses{did_you_mean(name, graph.states)}"
            elif state.keys is None:
                problem = f"which has no keys: say `keys` of {name!r}, the name of their pool"
            if problem:
                problem = f"{vertex.name!r} has the class {users!r} for {name!r}, {problem}"
                raise _wrong(vertex.node, "SW-CLASS", problem, "Or drop the class.")
    for state in graph.states.values():
        seen: set[tuple[str, str]] = set()
        for *pair, steps in state.leases:
            where = f"state {state.name!r}"
            whole(where, "a lease", steps, -MAX_DISTANCE, code="SW-LEASE")
            for users in pair:
                known = classes.get(state.name, {})
                if state.keys is None or users not in known:
                    raise GraphError(
                        f"{where}: a lease names the class {users!r}, which no op has for it"
                        f"{did_you_mean(str(users), known)}. Name it in `classes` of an op, or "
                        "drop the lease.",
                        code="SW-CLASS",
                        line=state.line,
                    )
            source, target = pair
            if (source, target) in seen:
                said_twice = f"the lease of {source!r} to {target!r} is there twice. Drop one."
                raise GraphError(f"{where}: {said_twice}", code="SW-DUPLICATE", line=state.line)
            seen.add((source, target))


_CHECKS: tuple[Callable[[StepGraph], None], ...] = (
    _check_nodes,
    _check_actors,
    _check_values,
    _check_states,
    _check_accesses,
    _check_reads,
    _check_writers,
    _check_places,
    _check_costs,
    _check_classes,
    check_ranks,
    check_rates,
    check_modes,
)
