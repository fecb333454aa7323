"""The keys that a pipeline file and `--set` know, by their dotted names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from .schema import PipelineConfig


@dataclass(frozen=True, slots=True)
class Key:
    """A key as `--set` names it; `choices` are its values where it takes one of a few words."""

    name: str
    description: str
    choices: tuple[str, ...] = ()


def keys() -> tuple[Key, ...]:
    """Every key outside of lists, in the order of the reference."""
    return tuple(_keys(PipelineConfig, ""))


def _keys(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        kinds = list(_alternatives(field.annotation))
        words = [
            word
            for kind in kinds
            if get_origin(kind) is Literal
            for word in get_args(kind)
            if isinstance(word, str)
        ]
        yield Key(f"{prefix}{name}", field.description or "", tuple(words))
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _keys(kind, f"{prefix}{name}.")


def _alternatives(kind: Any) -> Iterator[Any]:
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif origin in (Union, UnionType):
        for each in get_args(kind):
            yield from _alternatives(each)
    else:
        yield kind
