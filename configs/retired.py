"""Keys of version 1 of the format: each is refused with what to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .errors import Problem
from .yaml_source import Located

_OF_A_NODE = {
    "options": "the options of a node stand beside its other keys: write them without `options`",
    "offset": "a node's `offset` follows from `depth`: leave it out",
    "name": "the name of a node is its key in `nodes`: leave `name` out",
}


def without_retired(source: Located) -> tuple[Located, list[Problem]]:
    """The mapping of a pipeline without keys of version 1, and one problem for each of them."""
    assert isinstance(source.value, dict), "a pipeline is a mapping"
    keys = dict(source.value)
    problems: list[Problem] = []
    version = keys.get("version")
    if version is not None and version.value == 1:
        said = (
            "version 1 of this format is no longer read: a pipeline now lists the nodes of its "
            "step; write `version: 2`"
        )
        problems.append(Problem(keys.pop("version").mark, said))
    for key, advice in (("speculation", _speculation), ("structured", _structured)):
        if key in keys:
            part = keys.pop(key)
            problems.append(
                Problem(part.key or part.mark, f"`{key}` is now a node: {advice(part)}")
            )
    scheduler = keys.get("scheduler")
    if scheduler is not None and isinstance(scheduler.value, dict):
        inner = dict(scheduler.value)
        if (moved := inner.pop("admission", None)) is not None:
            said = f"`scheduler.admission` is now `policies: {{admission: {moved.value}}}`"
            problems.append(Problem(moved.key or moved.mark, said))
            keys["scheduler"] = Located(inner, scheduler.mark, scheduler.key)
    if (nodes := keys.get("nodes")) is not None:
        keys["nodes"], found = _nodes(nodes)
        problems += found
    return Located(keys, source.mark, source.key), problems


def _nodes(nodes: Located) -> tuple[Located, list[Problem]]:
    if isinstance(nodes.value, list):
        said = (
            "`nodes` is now a mapping from names to nodes, in the order of the step: write "
            f"{_entry(nodes.value)}"
        )
        return Located({}, nodes.mark, nodes.key), [Problem(nodes.key or nodes.mark, said)]
    if not isinstance(nodes.value, dict):
        return nodes, []
    problems, kept = [], {}
    for name, node in nodes.value.items():
        if not isinstance(node.value, dict):
            kept[name] = node
            continue
        for key, said in _OF_A_NODE.items():
            if (part := node.value.get(key)) is not None:
                problems.append(Problem(part.key or part.mark, f"nodes.{name}: {said}"))
        inner = {key: part for key, part in node.value.items() if key not in _OF_A_NODE}
        kept[name] = Located(inner, node.mark, node.key)
    return Located(kept, nodes.mark, nodes.key), problems


def _entry(parts: list[Located]) -> str:
    """How the first node of a list is written now."""
    first = parts[0].plain() if parts else None
    name = first.get("name") if isinstance(first, dict) else None
    if not isinstance(name, str):
        return "`draft: {stream: draft}`, not `- {name: draft, stream: draft}`"
    return f"`{name}: {{…}}`, not `- {{name: {name}, …}}`"


def _speculation(part: Located) -> str:
    if part.value is None:
        return "write `nodes: {draft: null}`"
    given = part.plain() if isinstance(part.value, dict) else {}
    keys = {"kind": given.get("method", "draft_model"), "after": "sample"}
    keys |= {key: given[key] for key in ("model", "tokens") if given.get(key) is not None}
    node = ", ".join(f"{key}: {value}" for key, value in keys.items())
    return "; ".join([f"write `nodes: {{draft: {{{node}}}}}`", *_beside(given)])


def _beside(given: Mapping[str, object]) -> Iterator[str]:
    if "acceptance" in given:
        yield f"`acceptance` is now `policies: {{acceptance: {given['acceptance']}}}`"
    if given.get("synthetic_acceptance") is not None:
        rates = given["synthetic_acceptance"]
        acceptance = f"{{kind: synthetic, rates: {rates}}}"
        yield f"`synthetic_acceptance` is now `policies: {{acceptance: {acceptance}}}`"
    if given.get("padded") is False:
        yield "`padded: false` is now the node `d2h_counts: {after: sample, stream: copy}`"


def _structured(part: Located) -> str:
    if part.value is None:
        return "write `nodes: {bitmask: null}`"
    return "write `nodes: {bitmask: {after: forward}}`, with these keys as its options"
