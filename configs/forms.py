"""The two forms of a file, a pipeline and an abstract graph, told apart by their keys.

A key that only the other form has is refused where it is said, before either form is read: read as
the wrong one, every other key of the file would be blamed.
"""

from __future__ import annotations

from collections.abc import Mapping

from .abstract import AbstractGraph
from .errors import ConfigError, Mark, Problem
from .yaml_source import Located

OF_BOTH = frozenset(("version", "nodes", "actors", "streams", "order"))
_OF_GRAPHS = AbstractGraph.model_fields.keys() - OF_BOTH
TELL_A_GRAPH = frozenset(("values", "states", "ranks"))
TELL_A_PIPELINE = frozenset(("model", "scheduler", "policies", "depth", "executor", "prompts"))
_IN_A_PIPELINE = {
    "values": "the kinds declare their values",
    "states": "the kinds declare their states",
    "ranks": "`model.parallel` says how many there are",
}


def is_abstract(source: Located) -> bool:
    """Abstract graphs declare values, or what their nodes' ops touch; pipelines never do."""
    keys = _keys(source)
    nodes = keys["nodes"].value if "nodes" in keys else None
    second = "version" in keys and keys["version"].value == 2
    of_a_pipeline = bool(keys.keys() & TELL_A_PIPELINE)
    if keys.keys() & TELL_A_GRAPH:
        return not (isinstance(nodes, dict) and (second or of_a_pipeline))
    if of_a_pipeline or not isinstance(nodes, list):
        return False
    first = "version" in keys and keys["version"].value == 1
    return first or any(_has_ops(node) for node in nodes)


def refuse_keys_of_another_form(source: Located, over: Located | None = None) -> None:
    """Keys of `over`, or of `source` itself, that the form of `source` does not have.

    Raises `ConfigError` with each place once: one option may stand for several keys.
    """
    keys, graph = _keys(source if over is None else over), is_abstract(source)
    if graph:
        foreign = _of_pipelines(keys)
    elif keys.keys() & _OF_GRAPHS and _is_pipeline(source):
        foreign = [key for key in keys if key in _OF_GRAPHS]
    else:
        return
    said: dict[Mark, str] = {}
    for key in foreign:
        said.setdefault(keys[key].key or keys[key].mark, _in_a_graph(key) if graph else _why(key))
    if said:
        raise ConfigError(*(Problem(mark, message) for mark, message in said.items()))


def _is_pipeline(source: Located) -> bool:
    """Whether it says so already: a file that others extend may say too little to tell."""
    keys = _keys(source)
    named = "nodes" in keys and isinstance(keys["nodes"].value, dict)
    return not is_abstract(source) and (named or bool(keys.keys() & TELL_A_PIPELINE))


def _of_pipelines(keys: Mapping[str, Located]) -> list[str]:
    rest = [key for key in keys if key not in OF_BOTH and key not in _OF_GRAPHS]
    if not rest:
        return []
    from .schema import PipelineConfig  # only here: an abstract graph is read without it

    return [key for key in rest if key in PipelineConfig.model_fields]


def _in_a_graph(key: str) -> str:
    return f"`{key}` is of a pipeline, and this is an abstract graph: it has no model"


def _why(key: str) -> str:
    instead = f"; in a pipeline {_IN_A_PIPELINE[key]}" if key in _IN_A_PIPELINE else ""
    return f"`{key}` is of an abstract graph, which has no code{instead}"


def _has_ops(node: Located) -> bool:
    keys = _keys(node)
    kind = keys["kind"].value if "kind" in keys else None
    return bool(keys.keys() & {"host", "device"}) or kind == "abstract"


def _keys(part: Located) -> Mapping[str, Located]:
    return part.value if isinstance(part.value, dict) else {}
