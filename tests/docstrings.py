"""What docstrings say of tensors and errors, read from the sources without importing them.

The shape of a tensor stands behind its name: `logits[S, W, V]`, or in a list of arguments
`logits: `[S, W, V]``; the shape of a result stands alone: `[S, V]`. `[...]` is any shape.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.installed import ROOT

MADE = ("__init__", "__post_init__", "__call__")
_NAME = re.compile(r"\w+")
_NO_ERRORS = {
    *("NotImplementedError", "AssertionError"),  # code is wrong, and no caller
    "Exit",  # how a command ends with a status
}


@dataclass(frozen=True)
class Function:
    """A public function or method of the package, as its source says."""

    where: str  # file:line
    name: str
    node: ast.FunctionDef
    owner: ast.ClassDef | None

    @property
    def own(self) -> str:
        return ast.get_docstring(self.node) or ""

    @property
    def said(self) -> str:
        """Its docstring and that of its class."""
        return f"{self.own}\n{'' if self.owner is None else ast.get_docstring(self.owner) or ''}"

    @property
    def tensors(self) -> list[str]:
        """The parameters that are tensors, or hold some; a function that takes some is none."""
        of = self.node.args
        given = [*of.posonlyargs, *of.args, of.vararg, *of.kwonlyargs]
        return [each.arg for each in given if each is not None and _holds(each.annotation)]

    @property
    def raises(self) -> set[str]:
        """The classes of errors that it raises by itself and does not catch itself."""
        return _raised(self.node.body)


def functions(source: str, where: str) -> Iterator[Function]:
    for node in ast.parse(source).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = node if isinstance(node, ast.ClassDef) else None
        for each in inner:
            hidden = owner is not None and owner.name.startswith("_")
            if isinstance(each, ast.FunctionDef) and not hidden and _public(each.name):
                name = each.name if owner is None else f"{owner.name}.{each.name}"
                yield Function(f"{where}:{each.lineno}", name, each, owner)


def package_files() -> list[Path]:
    folders = sorted({path.parent for path in ROOT.glob("*/__init__.py")} - {ROOT / "tests"})
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


@cache
def package_functions() -> list[Function]:
    return [
        function
        for path in package_files()
        for function in functions(
            path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        )
    ]


def shapeless(function: Function) -> list[str]:
    """The tensors of a function whose shapes are not said; `return` is its result."""
    missing = [name for name in function.tensors if not shapes_of(name, function.said)]
    if _holds(function.node.returns) and not result_shapes(function.own, function.tensors):
        missing.append("return")
    return missing


def untold(function: Function) -> list[str]:
    """The errors that a function raises and does not name."""
    return sorted(error for error in function.raises if f"{error}" not in function.said)


def shapes_of(name: str, said: str) -> list[str]:
    """The shapes that a docstring gives a parameter, as `S, W, V`."""
    return re.findall(rf"(?<!\w)(?:`{name}|{name}:\s+`)\s?\[([^\]]*)\]", said)


def result_shapes(said: str, parameters: list[str]) -> list[str]:
    """The shapes that stand alone, in the order of the docstring."""
    head = re.split(r"\n\s*Args:", said)[0]
    named = "|".join(map(re.escape, parameters))
    cleared = re.sub(rf"`(?:{named})\s?\[[^\]]*\]", "", head) if named else head
    return re.findall(r"`\[([^\]]*)\]", cleared)


def _public(name: str) -> bool:
    return not name.startswith("_") or name in MADE


def _holds(annotation: ast.expr | None) -> bool:
    if annotation is None or isinstance(annotation, ast.Call):  # metadata beside a type
        return False
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return "Tensor" in _NAME.findall(annotation.value)
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Callable":
        return False
    names = {annotation.id} if isinstance(annotation, ast.Name) else set()
    names |= {annotation.attr} if isinstance(annotation, ast.Attribute) else set()
    return "Tensor" in names or any(
        _holds(each) for each in ast.iter_child_nodes(annotation) if isinstance(each, ast.expr)
    )


def _raised(body: list[ast.stmt]) -> set[str]:
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.Raise) and node.exc is not None:
            found |= {_called(node.exc)} - _NO_ERRORS - {""}
        inside = _raised(
            [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
        )
        if isinstance(node, ast.Try):
            caught = {
                name
                for handler in node.handlers
                for name in _NAME.findall(ast.unparse(handler.type) if handler.type else "")
            }
            inside = (_raised(node.body) - caught) | _raised([*node.orelse, *node.finalbody])
            for handler in node.handlers:
                inside |= _raised(handler.body)
        if isinstance(node, ast.Match):
            for case in node.cases:
                inside |= _raised(case.body)
        found |= inside
    return found


def _called(made: ast.expr) -> str:
    called = made.func if isinstance(made, ast.Call) else made
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return str(name) if name[:1].isupper() else ""


# --- whether it is true


def dims(shape: str) -> list[str]:
    """The dimensions of a shape as Python: `R · q, D'` as `R * q` and `D_`."""
    found = []
    for each in shape.split(","):
        text = each.strip().replace("·", "*").replace("−", "-").replace("'", "_")
        text = re.sub(r"(?<=[a-z]) (?=[a-z])", "_", text)
        found.append(re.sub(r"(\w+) / (\w+)", r"-(-\1 // \2)", text))
    return [each for each in found if each]


def agrees(shape: str, actual: tuple[int, ...], known: dict[str, int]) -> bool:
    """Whether a tensor has the shape that is said; its dimensions are `known` from then on."""
    wanted, sizes = dims(shape), list(actual)
    if any(each.startswith("*") for each in wanted):
        return True
    if "..." in wanted:
        before, after = wanted.index("..."), len(wanted) - wanted.index("...") - 1
        sizes = sizes[:before] + sizes[len(sizes) - after :]
        wanted.remove("...")
    if len(wanted) != len(sizes):
        return False
    for text, size in zip(wanted, sizes, strict=True):
        if text.isidentifier():
            if known.setdefault(text, size) != size:
                return False
            continue
        names = {name for name in _NAME.findall(text) if not name.isdigit()}
        if names <= known.keys() and eval(text, {}, dict(known)) != size:
            return False
    return True


def tensor_fields(source: str) -> Iterator[tuple[str, bool]]:
    """Each tensor of a public class, as `Class.field`, and whether its shape is said."""
    lines = source.splitlines()
    for owner in ast.parse(source).body:
        if not isinstance(owner, ast.ClassDef) or owner.name.startswith("_"):
            continue
        for each in owner.body:
            if isinstance(each, ast.AnnAssign) and _holds(each.annotation):
                name = ast.unparse(each.target)
                comment = lines[(each.end_lineno or each.lineno) - 1].partition("#")[2]
                said = "[" in comment or shapes_of(name, ast.get_docstring(owner) or "")
                if not name.startswith("_"):
                    yield f"{owner.name}.{name}", bool(said)
