"""The decode step as a step graph: the nodes that are listed, for a given depth.

The listing is the plain serial program of one step, from `schedule` to `commit`. Depth D says how
far the node whose kind runs ahead (`schedule`) is ahead of the others: in each iteration it works
on the step D − 1 steps later. So D = 1 is the synchronous loop and D ≥ 2 is asynchronous
scheduling, with no second code path. An offset o means that in iteration t a node acts on step
t − o.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from ..graph.answers.delay import delayable
from ..graph.bind import Declared
from ..graph.declare import step_graph
from ..graph.errors import GraphError, did_you_mean
from ..graph.parameters import Parameter, Resources
from ..graph.plan import Plan
from ..graph.step_graph import StepGraph
from ..policies.acceptance import Acceptance
from .cache_changes import changing_kv
from .kind import NodeKind
from .node_config import NodeConfig
from .options import DrafterOptions
from .registry import kind, known_kinds
from .request_settings import RequestSetting, joined
from .sizes import Sizes
from .trees import check_trees, deepest_path
from .values import (
    ACCEPTANCE,
    BATCH,
    BLOCKS,
    DIVIDED,
    FORCED,
    FORK_COPIES,
    HOST_BLOCKS,
    HOST_SAMPLED,
    INPUTS,
    PAGES,
    REQUEST_SETTINGS,
    REQUEST_SLOTS,
    REQUESTS,
    SIZES,
    SOURCES,
)
from .wiring import check_writers


def offset(kind: NodeKind, depth: int, *, late: bool = False) -> int:
    """How many steps behind the iteration a node of `kind` acts. Raises `GraphError`.

    `late`: once more as many as are in flight.
    """
    if depth < 1:
        raise GraphError(f"depth must be at least 1, not {depth}", code="SW-DEPTH")
    return min(1, depth - 1) - (depth - 1 if kind.runs_ahead else 0) + (depth if late else 0)


def _kind_of(name: str, node: NodeConfig) -> NodeKind:
    """The kind that a node names. Raises `GraphError` with the line of the node."""
    try:
        return kind(node.kind or name)
    except GraphError as error:
        raise GraphError(error.message, code=error.code, line=node.line) from error


def request_settings(nodes: Mapping[str, NodeConfig]) -> tuple[RequestSetting, ...]:
    """The numbers that these nodes take from requests. Raises `GraphError`."""
    return joined(_kind_of(name, node).asks for name, node in nodes.items())


def decode_step(
    nodes: Mapping[str, NodeConfig],
    *,
    depth: int,
    max_rows: int = 16,
    token_budget: int = 256,
    acceptance: Acceptance,
    everywhere: Mapping[str, NodeConfig] | None = None,
    late: Collection[str] = (),
    captured: bool = False,
    divided: bool = False,
    resources: Resources | None = None,
    order: Literal["keep", "search"] = "search",
    name: str = "decode",
) -> StepGraph:
    """Build the graph of the nodes listed, in the order of the plain serial program.

    `everywhere`: the nodes of all ranks, where these are those of one; None: these are all. `late`:
    nodes that act on a step when as many others have followed as are in flight. `divided`: several
    ranks have a part of each layer. With `resources` (the target, the limits) it can run; without,
    only be checked and drawn, and nothing that needs tensors is imported. Raises `GraphError`, and
    whatever the loading of weights raises.
    """
    kinds = {name: _kind_of(name, node) for name, node in nodes.items()}
    listed, of_all = nodes, kinds
    if everywhere is not None:
        listed = everywhere
        of_all = {name: _kind_of(name, node) for name, node in listed.items()}
    check_writers(listed, of_all)
    settings = [of_all[name].settings(name, node) for name, node in listed.items()]
    most = max((each.tokens for each in settings if isinstance(each, DrafterOptions)), default=0)
    forced = any(each.writes(FORCED.name) for each in of_all.values())
    deepest = deepest_path(settings, forced=forced)
    found = Resources() if resources is None else resources
    found.bring(
        SIZES,
        Sizes(
            max_rows=max_rows,
            token_budget=token_budget,
            draft_tokens=most,
            tree_depth=deepest,
            forced=forced,
        ),
    )
    found.bring(ACCEPTANCE, acceptance)
    found.bring(DIVIDED, divided)
    found.bring(REQUEST_SETTINGS, request_settings(nodes))
    declared = [
        kinds[called].declare(
            called,
            node,
            offset=offset(kinds[called], depth, late=called in late),
            captured=captured,
        )
        for called, node in nodes.items()
    ]
    found.bring(SOURCES, _sources(declared))
    try:
        graph = step_graph(
            *declared,
            order=order,
            name=name,
            launches="together" if captured else "apart",
            resources=found,
            bodies=resources is not None,
        )
    except GraphError as error:
        if error.code == "SW-UNWRITTEN":
            _name_writers(declared)
        raise
    _check_that_requests_end(graph)
    _check_states(graph)
    if deepest:
        check_trees(graph, acceptance, listed)
    _check_forks(graph)
    return graph


def _check_forks(graph: StepGraph) -> None:
    """What copies blocks for completions comes before what reads them for these in its step."""
    first = next(iter(changing_kv(graph, INPUTS)), None)
    for copies in changing_kv(graph, FORK_COPIES):
        if first is not None and first.position < copies.position:
            raise GraphError(
                f"node {copies.node.name!r} copies blocks that {first.node.name!r} reads in the "
                f"same step: list it before {first.node.name!r}",
                code="SW-NODE",
                line=copies.node.line,
            )


def _check_that_requests_end(graph: StepGraph) -> None:
    """Without a node that settles what a step gave its requests, a run would never end."""
    changes = [vertex.op for vertex in graph.vertices.values() if REQUESTS.name in vertex.op.writes]
    if changes and all(BATCH.name in op.writes for op in changes):
        raise GraphError(
            f"no node settles what a step gives its requests, so none would ever end: list one "
            f"that changes the state {REQUESTS.name!r} after the step, as kind 'commit' does",
            code="SW-NODE",
        )


def _sources(declared: Sequence[Declared]) -> dict[tuple[str, str], str]:
    """By a node's kind and parameter: the value that is read there, and the node that writes it."""
    ops = [(node, op) for node in declared for op in (*node.host, *node.device)]
    writers = {write.name: node.template.name for node, op in ops for write in op.writes}
    return {
        (node.template.kind, name): f"{value!r} of node {writers[value]!r}"
        for node, op in ops
        for name, each in op.parameters.items()
        if each.role == "read" and (value := _read(node, name, each)) in writers
    }


def _read(node: Declared, name: str, each: Parameter) -> str:
    """The value that a parameter reads in this graph."""
    return node.wiring[name].name if name in node.wiring else each.name


def _name_writers(declared: Sequence[Declared]) -> None:
    """Raise a `GraphError` that names the kinds that write what nobody writes, if there are any."""
    ops = [(node, op) for node in declared for op in (*node.host, *node.device)]
    written = {write.name for _, op in ops for write in op.writes}
    for node, op in ops:
        for name, each in op.parameters.items():
            if each.role != "read" or each.optional:
                continue
            value = _read(node, name, each)
            if value not in written and (kinds := _writers(value)):
                raise GraphError(
                    f"node {node.template.name!r} reads {value!r}, which no node writes: list a "
                    f"node of kind {' or '.join(map(repr, kinds))}",
                    code="SW-UNWRITTEN",
                    line=node.template.line,
                )


def _writers(value: str) -> list[str]:
    """The kinds that ship and write that value."""
    return [name for name in known_kinds(installed=False) if kind(name).writes(value)]


def _check_states(graph: StepGraph) -> None:
    """The engine makes each state, and orders the owners of keys that it hands out."""
    pools = (REQUEST_SLOTS, BLOCKS, HOST_BLOCKS, PAGES)
    for state in graph.states.values():
        wrong = None
        if state.make is None:
            wrong = "does not say how it is made: declare it with `make`"
        elif state.keys is not None and state.keys not in pools:
            wrong = (
                f"has keys of no pool: {state.keys!r}{did_you_mean(state.keys, pools)}. Say "
                "`keys=REQUEST_SLOTS`, `keys=BLOCKS`, `keys=HOST_BLOCKS` or `keys=PAGES`"
            )
        if wrong:
            users = (
                vertex.node
                for vertex in graph.vertices.values()
                if state.name in {read.name for read in vertex.op.reads} | set(vertex.op.writes)
            )
            node = next(users)
            raise GraphError(
                f"node {node.name!r}: the state {state.name!r} {wrong}",
                code="SW-ARGUMENT",
                line=node.line,
            )


def handed_on_after(plan: Plan) -> int:
    """After how many steps a row finds what its last step handed on: 1 unless a file says more.

    Its last token, its drafts: the values of steps before that begin with something.
    """
    return max(
        (
            read.carry
            for vertex in plan.graph.vertices.values()
            for read in vertex.op.reads
            if read.carry and plan.graph.values[read.name].first is not None
        ),
        default=1,
    )


def copies_blocks(plan: Plan) -> bool:
    """Whether a step can copy KV blocks, for completions that go on from one prompt."""
    return FORK_COPIES.name in plan.graph.values


def may_be_delayed(plan: Plan) -> bool:
    """Whether a delay of the op that publishes batches comes off the wait of the op that settles.

    See `graph.answers.delay`.
    """
    writers = [name for name, v in plan.graph.vertices.items() if BATCH.name in v.op.writes]
    waiters = [
        name
        for name, vertex in plan.graph.vertices.items()
        if vertex.side == "host" and HOST_SAMPLED.name in {r.name for r in vertex.op.reads}
    ]
    return bool(writers and waiters) and delayable(plan, writers[0], waiters[0])
