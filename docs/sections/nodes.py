"""nodes.md: what each node kind reads and writes, found by building it in every variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, product

from sections.data import described
from sections.keys import keys as keys_of
from sections.markdown import code, table

from stepweave.configs.load import load_config, shipped
from stepweave.configs.node_keys import node_model
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.node import Node, Value
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.nodes.kind import NodeKind
from stepweave.nodes.options import DrafterOptions
from stepweave.nodes.registry import kind, known_kinds
from stepweave.serving.pipeline import step_graph

INTRODUCTION = """\
# Node kinds

Every kind of node that ships, with what it reads and writes. This page is written from the
declarations by `docs/make_reference.py`: each kind is built in every variant of the decode step,
and an access that only some variants have is listed with the settings that add it.

(h) is host, (p) pinned and (d) device memory, (s) a state. `@-1` is the version of the step before.
Ops without accesses are left out: the host op of a node that only launches. Nodes between the
[stages of a model](../decode-step.md#a-model-in-stages), which no file lists, are left out too.
What the nodes are for, and how they work together, is in [The decode step](../decode-step.md); how
to make one in [Write a node kind](../how-to/write-a-node-kind.md).
"""
FEATURES = {
    "bitmask": "`bitmask`",
    "draft": "a drafter",
    "jump_forward": "`jump_forward`",
    "suffix": "`suffix`",
    "head": "a drafter that reads hidden states",
    "draws": "`acceptance: rejection` (except `ngram` and `suffix`)",
    "d2h_counts": "`d2h_counts`",
    "d2h_tokens": "`d2h_tokens` and `draft_mask`",
    "allowed": "`propose: allowed`",
    "swap": "`swap`",
    "encode": "`encode`",
    "keep_path": "`keep_path`",
    "fork": "`fork`",
    "cached": "a drafter with a model",
}
Settings = frozenset[str]  # the FEATURES that a variant has


@dataclass
class Seen:
    """A kind over all variants: where it stands, and which of them have which access."""

    kind: NodeKind
    nodes: dict[Settings, Node] = field(default_factory=dict)
    accesses: dict[tuple[str, str, str], set[Settings]] = field(default_factory=dict)


@cache
def variants() -> Mapping[Settings, StepGraph]:
    """The decode step with every combination of settings that changes what nodes declare."""
    found: dict[Settings, StepGraph] = {}
    choices = [("none", "coupled", False)]
    heads, looking = ("eagle", "eagle3", "mtp", "medusa"), ("ngram", "suffix")
    choices += product(("draft_model", *heads, *looking), ("coupled", "rejection"), (False, True))
    choices += product((f"{each} tree" for each in heads), ("coupled",), (False,))
    masked = ((False, False, False), (True, False, False), (True, True, False), (True, False, True))
    for copier, (masks, jumps, heeded), (drafter, acceptance, counts) in product(
        (None, "swap", "fork", "encode"), masked, choices
    ):
        if heeded and (drafter == "none" or (acceptance, counts) != ("coupled", False)):
            continue  # what is drafted depends on nothing else
        if copier and (jumps or heeded or (acceptance, counts) != ("coupled", False)):
            continue  # it copies the caches, whoever writes them, or looks at none
        drafter, _, tree = drafter.partition(" ")
        if tree and (copier or jumps or heeded):
            continue  # it copies what the others do, and has no place for what is forced
        if drafter in looking and (acceptance, counts) != ("coupled", False):
            continue  # it draws nothing, and computes no batches that could be padded
        if drafter == "medusa" and counts:
            continue  # it computes no such batches
        changed = {"policies.acceptance": acceptance}
        has = set()
        if copier:
            changed[f"nodes.{copier}.after"] = "schedule"
            has |= {copier}
        if masks:
            changed["nodes.bitmask.after"] = "forward"
            has |= {"bitmask"}
        if jumps:
            changed["nodes.jump_forward.after"] = "bitmask"
            has |= {"jump_forward"}
        if drafter != "none":
            changed["nodes.draft"] = f"{{kind: {drafter}, before: d2h_copy}}"
            has |= {"draft", drafter}
        if tree:
            changed["nodes.draft"] = f"{{kind: {drafter}, before: d2h_copy, tree: [[0], [1]]}}"
            changed["nodes.keep_path.after"] = "sample"
            has |= {"keep_path"}
        if drafter != "none":
            has |= {"cached"} if drafter not in (*looking, "medusa") else set()
            has |= {"head"} if drafter in heads else set()
            has |= {"draws"} if acceptance == "rejection" else set()
        if heeded and drafter == "suffix":
            changed["nodes.draft"] = "{kind: suffix, before: d2h_copy, propose: allowed}"
            has |= {"allowed"}
        elif heeded:
            changed["nodes.d2h_tokens.after"] = "sample"
            changed["nodes.draft_mask.after"] = "d2h_tokens"
            has |= {"d2h_tokens"}
        if counts:
            changed["nodes.d2h_counts.after"] = "sample"
            has |= {"d2h_counts"}
        config = load_config("base", changed)
        assert isinstance(config, PipelineConfig)
        found[frozenset(has)] = step_graph(config)
    return found


@cache
def seen() -> Mapping[str, Seen]:
    """Every built-in kind that some variant has, by name."""
    ours = known_kinds(installed=False)
    found = {name: Seen(kind(name)) for name in ours}
    for settings, graph in variants().items():
        for node in graph.nodes:
            about = found[node.kind]
            about.nodes[settings] = node
            for op, verb, name in _accesses(node):
                about.accesses.setdefault((op, verb, name), set()).add(settings)
    return found


def _accesses(node: Node) -> Iterator[tuple[str, str, str]]:
    for side, ops in (("host", node.host), ("device", node.device)):
        for op in ops:
            part = f"{side}, {op.phase}" if op.phase else side
            for read in op.reads:
                yield part, "reads", str(read)
            for written in op.writes:
                yield part, "writes", written


def condition(has: set[Settings], among: set[Settings]) -> str:
    """The fewest settings that tell the variants in `has` from the others in `among`, in words."""
    if has == among:
        return ""
    for count in range(1, len(FEATURES) + 1):
        for wanted in combinations(FEATURES, count):
            if {settings for settings in among if settings >= set(wanted)} == has:
                return " with ".join(FEATURES[each] for each in wanted)
    raise AssertionError("an access that no conjunction of settings explains")


def page() -> str:
    """The whole page."""
    built = (
        *(*_kinds(), "## Values and states", _values(), _states()),
        *(described(), *_derived()),
    )
    return "\n".join([INTRODUCTION, *(f"{part}\n" for part in built)])


def step(pipeline: str) -> str:
    """The nodes of a shipped pipeline in reference order, with all that they touch."""
    config = load_config(pipeline)
    assert isinstance(config, PipelineConfig)
    rows = []
    for node in step_graph(config).nodes:
        touched = [
            ", ".join(
                dict.fromkeys(
                    f"`{name}`" + _place(name.partition("@")[0])
                    for _, what, name in _accesses(node)
                    if what == verb
                )
            )
            for verb in ("reads", "writes")
        ]
        runs_on = f"{node.actor}, then {node.stream}" if node.stream else node.actor
        rows.append((f"`{node.name}`", runs_on, *touched))
    return table(("node", "runs on", "reads", "writes"), rows)


def _kinds() -> Iterator[str]:
    for name, about in seen().items():
        node = next(iter(about.nodes.values()))
        yield f"## {name}"
        yield f"{about.kind.summary[0].upper()}{about.kind.summary[1:]}.{_where(about, node)}"
        if about.kind.options.model_fields:
            yield keys_of(node_model(about.kind).__name__, about.kind.options.model_fields)
        rows = []
        parts = dict.fromkeys(op for op, _, _ in about.accesses)
        for part in sorted(parts, key=lambda op: op.startswith("device")):
            cells = [_listed(about, part, verb) for verb in ("reads", "writes")]
            rows.append((part, *cells))
        yield table(("op", "reads", "writes"), rows)


def _where(about: Seen, node: Node) -> str:
    runs = f" Runs on `{node.actor}`" + (f", then on `{node.stream}`." if node.stream else ".")
    drafts = issubclass(about.kind.options, DrafterOptions)
    drafter = " A drafter." if drafts else ""
    only = "" if drafts else condition(set(about.nodes), set(variants()))
    own = only == f"`{about.kind.name}`"  # a pipeline has it where it lists it
    return runs + drafter + (f" In pipelines with {only}." if only and not own else "")


def _listed(about: Seen, part: str, verb: str) -> str:
    said = []
    for (op, what, name), has in about.accesses.items():
        if (op, what) == (part, verb):
            only = condition(has, set(about.nodes))
            mark = f"`{name}`" + _place(name.partition("@")[0])
            said.append(f"{mark} *if {only}*" if only else mark)
    return "; ".join(said)


def _place(name: str) -> str:
    for graph in variants().values():
        if name in graph.states:
            return " (s)"
        if name in graph.values:
            return f" ({graph.values[name].place[0]})"
    raise AssertionError(name)


def _owned() -> dict[str, tuple[Value, set[str], set[str]]]:
    """By value: its declaration, who writes it, who reads it."""
    found: dict[str, tuple[Value, set[str], set[str]]] = {}
    for graph in variants().values():
        for name, value in graph.values.items():
            found.setdefault(name, (value, set(), set()))
    for about in seen().values():
        for _, verb, text in about.accesses:
            name, at, carry = text.partition("@")
            if name in found:
                by = about.kind.name + (f" {at}{carry}" if at else "")
                found[name][1 if verb == "writes" else 2].add(by)
    return found


def _values() -> str:
    rows = [
        (f"`{name}`", value.place, value.storage, code(*sorted(writers)), code(*sorted(readers)))
        for name, (value, writers, readers) in sorted(_owned().items())
    ]
    return table(("value", "place", "storage", "written by", "read by"), rows)


def _states() -> str:
    states = sorted({name for graph in variants().values() for name in graph.states})
    rows = []
    for state in states:
        who = {"reads": set[str](), "writes": set[str]()}
        for about in seen().values():
            for _, verb, name in about.accesses:
                if name == state:
                    who[verb].add(about.kind.name)
        rows.append((f"`{state}`", code(*sorted(who["reads"])), code(*sorted(who["writes"]))))
    return table(("state", "read by", "changed by"), rows)


def _derived() -> Iterator[str]:
    yield "## What is derived from them"
    yield (
        "For each pipeline that ships, compiled as the file says. Values that are not listed are "
        "fresh or have one slot."
    )
    rows = []
    for name in shipped():
        config = load_config(name)
        if not isinstance(config, PipelineConfig):
            continue
        graph = step_graph(config)
        plan = compile_plan(graph, costs=config.costs, slots=config.slots, order=config.order)
        many = [f"{value} {count}" for value, count in plan.slots.items() if (count or 0) > 1]
        rows.append(
            (
                f"`{name}`",
                str(config.depth),
                str(len(graph.nodes)),
                str(len(plan.edges)),
                "; ".join(
                    f"`{wait.source}` → `{wait.target}` {wait.distance:+d}" for wait in plan.waits
                ),
                ", ".join(many),
            )
        )
    yield table(("pipeline", "depth", "nodes", "requirements", "waits", "slots"), rows)
