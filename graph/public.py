"""The public names: a few packages, each with one list in its `__init__`, loaded when first used.

The list is what a package imports for type checkers. So a name stands in one place, and a type
checker sees what a program gets.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

from .collector import collector_paused

PACKAGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "stepweave": "For everybody: graphs from functions, plans, runs, and the decode engine.",
        "stepweave.nodes": "For authors of nodes: what a package with a kind of node is made of.",
        "stepweave.policies": "For authors of policies: by decision a protocol, the views that its "
        "policies get, and those that ship.",
        "stepweave.sampling": "For authors of acceptance rules: draft windows, and how they are "
        "verified.",
        "stepweave.backends": "For authors of devices: what a package with a kind of device is "
        "made of.",
        "stepweave.testing": "For those who test nodes and plans: checking mode, interleavings, "
        "faults on purpose, devices that are not there, and small random models.",
    }
)
"""The public packages, and whom each is for."""


@cache
def names(package: str) -> Mapping[str, tuple[str, str]]:
    """The public names of a package that is imported: the module of each, and its name there."""
    spec = sys.modules[package].__spec__
    loader: Any = None if spec is None else spec.loader
    tree = ast.parse(loader.get_source(package))
    return MappingProxyType(
        {
            each.asname: ("." * line.level + f"{line.module}", each.name)
            for line in ast.walk(tree)
            if isinstance(line, ast.ImportFrom) and line.level
            for each in line.names
            if each.asname is not None  # `import name as name` is what makes it public
        }
    )


def load(package: str, name: str) -> object:
    """What a public name stands for; `__all__` is the list of them. Raises `AttributeError`."""
    known = names(package)
    if name == "__all__":
        return sorted(known)
    if name not in known:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module, attribute = known[name]
    with collector_paused():
        return getattr(import_module(module, package), attribute)


def door(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package whose public names load when first used."""
    return (
        lambda name: load(package, name),
        lambda: sorted({*vars(sys.modules[package]), *names(package)}),
    )


def doc(package: str, name: str) -> str:
    """What a public name promises: its docstring, or the text below it where it is a constant."""
    thing = load(package, name)
    if isinstance(thing, type) or inspect.isroutine(thing):
        return inspect.getdoc(thing) or ""
    module, attribute = names(package)[name]
    tree = ast.parse(inspect.getsource(import_module(module, package)))
    for line, below in pairwise(tree.body):
        targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
        named = any(isinstance(each, ast.Name) and each.id == attribute for each in targets)
        if named and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            return inspect.cleandoc(str(below.value.value))
    return inspect.getdoc(thing) or ""
