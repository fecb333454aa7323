"""The list of nodes of a file, laid over that of the file it extends.

A listing is an ordered mapping from names to nodes. A file that extends another changes nodes by
name, takes them out with null, and says of a new one where it stands. `after` and `before` are
spent here: what comes out is the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..graph.errors import did_you_mean
from .errors import ConfigError, Problem
from .node_keys import PLACEMENT
from .yaml_source import Located

ANCHORS = ("after", "before")

Over = Callable[[Located, Located], Located]  # one mapping over another


def first_listing(nodes: Located) -> Located:
    """The nodes of a file that extends nothing: their order is that of the file.

    Raises `ConfigError` for keys that only a file that extends another may have.
    """
    assert isinstance(nodes.value, dict), "a listing is a mapping"
    problems = []
    for name, node in nodes.value.items():
        if node.value is None:
            said = f"nodes.{name} is null, which takes a node out of a file that is extended"
            problems.append(Problem(node.key or node.mark, f"{said}; write `{name}: {{}}`"))
        for key, _ in _anchors(node):
            said = f"nodes.{name}: `{key}` is for a file that extends another; here the order is "
            where = node.at((key,))
            problems.append(Problem(where.key or where.mark, said + "that of the list"))
    if problems:
        raise ConfigError(*problems)
    return nodes


def listing_over(parent: Located, child: Located, over: Over) -> Located:
    """The listing `parent` with what `child` says of it. Raises `ConfigError`."""
    assert isinstance(parent.value, dict), "a listing is a mapping"
    assert isinstance(child.value, dict), "a listing is a mapping"
    order = _Order(dict(parent.value))
    for name, node in child.value.items():
        order.change(name, node, over)
    order.place()
    if order.problems:
        raise ConfigError(*order.problems)
    return Located(order.nodes, child.mark, child.key)


@dataclass(frozen=True)
class _Anchor:
    """Where a node is to stand: beside `name`; `mark` is the place that says so."""

    key: str  # after or before
    name: str
    part: Located


class _Order:
    """A listing while a file changes it."""

    def __init__(self, nodes: dict[str, Located]) -> None:
        self.nodes = nodes
        self.problems: list[Problem] = []
        self._moving: dict[str, tuple[Located, _Anchor]] = {}
        self._known = list(nodes)

    def change(self, name: str, node: Located, over: Over) -> None:
        """One entry of the child; what is to stand elsewhere waits for `place`."""
        there = self.nodes.get(name)
        if node.value is None:
            if there is None:
                said = f"nodes.{name}: there is no node {name!r} to take out"
                near = did_you_mean(name, self._known)
                self.problems.append(Problem(node.key or node.mark, said + near, "SW-NODE"))
            else:
                del self.nodes[name]
            return
        for key, part in _anchors(node):
            if isinstance(part.value, dict | list):
                said = f"nodes.{name}.{key} must be the name of one node, as in `{key}: forward`"
                self.problems.append(Problem(part.mark, said))
                return
        anchors = [_Anchor(key, str(part.value), part) for key, part in _anchors(node)]
        if isinstance(node.value, dict):
            inner = {key: part for key, part in node.value.items() if key not in ANCHORS}
            node = Located(inner, node.mark, node.key)
        if there is not None:
            merged = over(_of_another_kind(there, node), node)
            in_a_file = node.mark.line is not None  # not a setting: the node stays where it stands
            place = node if in_a_file else there
            node = Located(merged.value, place.mark, place.key)
        if len(anchors) > 1:
            said = f"nodes.{name}: `after` and `before` are both given; leave one out"
            self.problems.append(Problem(anchors[1].part.key or anchors[1].part.mark, said))
        elif anchors:
            self.nodes.pop(name, None)
            self._moving[name] = (node, anchors[0])
        elif there is not None:
            self.nodes[name] = node
        else:
            said = (
                f"node {name!r} is not one of the extended file's"
                + did_you_mean(name, self._known)
                + "; a new node says where it stands: `after: forward`"
            )
            self.problems.append(Problem(node.key or node.mark, said, "SW-NODE"))

    def place(self) -> None:
        """Put every moving node beside its anchor; of one anchor, in the order of the file."""
        last: dict[str, str] = {}  # by anchor the last node that was put after it
        while self._moving:
            ready = [name for name, (_, at) in self._moving.items() if at.name in self.nodes]
            if not ready:
                self.problems += self._lost()
                return
            node, at = self._moving.pop(ready[0])
            beside = last.get(at.name, at.name) if at.key == "after" else at.name
            position = list(self.nodes).index(beside) + (at.key == "after")
            if at.key == "after":
                last[at.name] = ready[0]
            entries = list(self.nodes.items())
            self.nodes = dict([*entries[:position], (ready[0], node), *entries[position:]])

    def _lost(self) -> Iterator[Problem]:
        for name, (_, at) in self._moving.items():
            if at.name in self._moving:
                said = f"which itself stands {self._moving[at.name][1].key} another new node"
            else:
                said = f"which is not in the pipeline{did_you_mean(at.name, self.nodes)}"
            yield Problem(
                at.part.mark,
                f"node {name!r} is to stand {at.key} {at.name!r}, {said} ({', '.join(self.nodes)})",
                "SW-NODE",
            )


def _anchors(node: Located) -> list[tuple[str, Located]]:
    if not isinstance(node.value, dict):
        return []
    return [(key, node.value[key]) for key in ANCHORS if key in node.value]


def _of_another_kind(there: Located, node: Located) -> Located:
    """The node as it was, without the options of its kind where `node` gives it another one."""
    if not isinstance(node.value, dict) or not isinstance(there.value, dict):
        return there
    if "kind" not in node.value or _kind(node.value) == _kind(there.value):
        return there
    kept = {key: part for key, part in there.value.items() if key in PLACEMENT}
    return Located(kept, there.mark, there.key)


def _kind(node: Mapping[str, Located]) -> object:
    return node["kind"].value if "kind" in node else None
