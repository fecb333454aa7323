"""The source of the decode step as a type checker sees it: who refers to which declaration.

A reference is a name that a module imported, or declares itself. Nothing here runs node code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from stepweave.graph.bind import OpFunction
from stepweave.graph.node import State, Value
from stepweave.nodes import values
from stepweave.nodes.options import DrafterOptions
from stepweave.nodes.registry import kind, known_kinds
from tests.installed import ROOT

READS = ("read", "optional")
DECLARERS = ("Value", "State", "Resource", "NodeKind", "Drafter")
"""Whose first argument is a name: the declaration of it."""


@cache
def names_of_the_step() -> dict[str, str]:
    """Names of values, states, node kinds, phases and drafters, and what each is."""
    found = {
        each.name: "value" if isinstance(each, Value) else "state"
        for each in vars(values).values()
        if isinstance(each, Value | State)
    }
    for name in known_kinds(installed=False):
        drafts = issubclass(kind(name).options, DrafterOptions)
        found[name] = "drafter" if drafts else "node"
        for op in (*kind(name).host, *kind(name).device):
            if op.phase is not None:
                found[op.phase] = "phase"
            found.update(_states(op))
    return found | {"draft": "node"}


def _states(op: OpFunction[..., object]) -> dict[str, str]:
    touched = (each for each in op.parameters.values() if each.role in ("state", "update"))
    return {each.name: "state" for each in touched}


@dataclass(frozen=True)
class Said:
    """A string constant that names something of the step."""

    path: str
    line: int
    text: str


def modules(*folders: str) -> dict[str, ast.Module]:
    """The parsed modules of these folders, or files, by path."""
    found: dict[str, ast.Module] = {}
    for folder in folders:
        at = ROOT / folder
        for path in sorted(at.rglob("*.py")) if at.is_dir() else [at]:
            text = path.read_text(encoding="utf-8")
            found[path.relative_to(ROOT).as_posix()] = ast.parse(text)
    return found


def said(path: str, module: ast.Module) -> Iterator[Said]:
    """String constants of a module that name a value, state, node, phase or drafter.

    `"sampled"`, `"sampled@-1"`, `"sample.sampled"` and `"commit.host.advance"` do; what declares
    the name does not count.
    """
    declared = {id(each) for node in ast.walk(module) for each in _declares(node)}
    for node in ast.walk(module):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) not in declared and names_a_part(node.value):
            yield Said(path, node.lineno, node.value)


def names_a_part(text: str) -> bool:
    known = names_of_the_step()
    first, _, rest = text.partition("@")[0].partition(".")
    return first in known and (not rest or rest.split(".")[0] in {"host", "device", *known})


def _declares(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in DECLARERS and node.args:
            yield node.args[0]
        elif node.func.id == "op":
            yield from (each.value for each in node.keywords if each.arg == "phase")


@dataclass(frozen=True)
class Declared:
    """A node function, by the declarations that its source refers to: their names in `values`."""

    path: str
    function: str
    reads: tuple[tuple[str, int], ...]  # with the carry
    writes: tuple[str, ...]


@cache
def functions() -> tuple[Declared, ...]:
    """Every function in `nodes/` that reads a value or writes one, from its source alone."""
    return tuple(each for path, tree in modules("nodes").items() for each in declared(path, tree))


def declared(path: str, module: ast.Module) -> Iterator[Declared]:
    """The node functions of a module, nested ones too."""
    known = imported(module)
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            reads = tuple(_reads(node, known))
            writes = tuple(_writes(node, module, known))
            if reads or writes:
                yield Declared(path, node.name, reads, writes)


def imported(module: ast.Module) -> dict[str, str]:
    """By the name that it has in the module: the declaration of `nodes/values.py` it refers to."""
    return {
        alias.asname or alias.name: alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] == "values"
        for alias in node.names
    }


def _reads(node: ast.FunctionDef, known: dict[str, str]) -> Iterator[tuple[str, int]]:
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if not isinstance(default, ast.Call) or not isinstance(default.func, ast.Name):
            continue
        of = default.args[0] if default.args else None
        if default.func.id in READS and isinstance(of, ast.Name) and of.id in known:
            carry = default.args[1] if len(default.args) > 1 else ast.Constant(0)
            yield known[of.id], int(ast.literal_eval(carry))


def _writes(node: ast.FunctionDef, module: ast.Module, known: dict[str, str]) -> Iterator[str]:
    """What `writes=` of the decorator names, or of a call `op(writes=…)(function)`."""
    calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
    for call in ast.walk(module):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Call):
            wrapped = [each.id for each in call.args if isinstance(each, ast.Name)]
            if node.name in wrapped and _inside(node, module, call):
                calls.append(call.func)
    for keyword in (keyword for call in calls for keyword in call.keywords):
        if keyword.arg == "writes":
            yield from _values_in(keyword.value, known)


def _values_in(expression: ast.expr, known: dict[str, str]) -> Iterator[str]:
    """`VALUE`, `(VALUE, …)` and `wanted(VALUE, …)`; what a write is made from is no write."""
    if isinstance(expression, ast.Name) and expression.id in known:
        yield known[expression.id]
    elif isinstance(expression, ast.Tuple):
        for each in expression.elts:
            yield from _values_in(each, known)
    elif isinstance(expression, ast.Call) and expression.args:
        yield from _values_in(expression.args[0], known)


def _inside(node: ast.FunctionDef, module: ast.Module, call: ast.Call) -> bool:
    """Whether the call stands in the function in which `node` is defined."""
    return any(
        isinstance(outer, ast.FunctionDef) and node in outer.body and call in ast.walk(outer)
        for outer in ast.walk(module)
    )
