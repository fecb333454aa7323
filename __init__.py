"""Decode steps as declared dataflow. The public names; each is loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

_HOME: dict[str, str] = {}
__all__: list[str] = []


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
