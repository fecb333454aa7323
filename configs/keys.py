"""The keys that a pipeline file and `--set` know, by their dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from ..nodes.options import DrafterOptions
from ..nodes.registry import kind, known_kinds
from ..policies.registry import loadable
from .node_keys import node_model
from .schema import PipelineConfig, PolicyConfig


@dataclass(frozen=True, slots=True)
class Key:
    """A key as `--set` names it; `choices` are its values where it takes one of a few words."""

    name: str
    description: str
    choices: tuple[str, ...] = ()


DRAFTER = "draft"
"""The name under which shipped pipelines list their drafter, of whatever kind."""


def keys(config: PipelineConfig | None = None) -> tuple[Key, ...]:
    """Every key outside of lists, in the order of the reference.

    The nodes are those of `config`. Without one, every kind stands under its own name, and the
    drafters under `draft`; kinds of other packages are left out.
    """
    return tuple(_keys(PipelineConfig, "", _nodes() if config is None else _nodes_of(config)))


def _nodes_of(config: PipelineConfig) -> Mapping[str, Key]:
    found = [
        key for name, node in config.nodes.items() for key in _keys(type(node), f"nodes.{name}.")
    ]
    return {key.name: key for key in found}


def _nodes() -> Mapping[str, Key]:
    found: dict[str, Key] = {}
    for name in known_kinds(installed=False):
        shipped = kind(name)
        node = DRAFTER if issubclass(shipped.options, DrafterOptions) else name
        for key in _keys(node_model(shipped), f"nodes.{node}."):
            found.setdefault(key.name, key)
    return found


def _keys(
    model: type[BaseModel], prefix: str, nodes: Mapping[str, Key] | None = None
) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        kinds = list(_alternatives(field.annotation))
        words = [
            word
            for each in kinds
            if get_origin(each) is Literal
            for word in get_args(each)
            if isinstance(word, str)
        ]
        if callable(field.json_schema_extra):  # names of what is installed
            named: dict[str, Any] = {}
            field.json_schema_extra(named)
            words += named.get("enum", ())
        if PolicyConfig in kinds:
            words += _that_need_no_options(name)
        yield Key(f"{prefix}{name}", field.description or "", tuple(words))
        if nodes is not None and name == "nodes":
            yield from nodes.values()
        for each in kinds:
            if isinstance(each, type) and issubclass(each, BaseModel) and each is not PolicyConfig:
                yield from _keys(each, f"{prefix}{name}.")


def _that_need_no_options(decision: str) -> Iterator[str]:
    """The policies that a name alone chooses."""
    for name, policy in loadable(decision).items():
        if not any(option.is_required() for option in policy.model_fields.values()):
            yield name


def _alternatives(kind: Any) -> Iterator[Any]:
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif origin in (Union, UnionType):
        for each in get_args(kind):
            yield from _alternatives(each)
    else:
        yield kind
