"""nodes.md: what the data that travel between nodes hold, from the comments of their fields."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from types import ModuleType

from sections.markdown import table

from stepweave.nodes import data, sizes
from stepweave.requests import limits


def described() -> str:
    """A table for each class of data: field, type, meaning; shapes are in brackets."""
    letters = (ast.get_docstring(_tree(data)[0]) or "").partition("\n\n")[2]
    parts = [f"## What the values hold\n\n{' '.join(letters.split())}", *_classes(data)]
    parts += ["## What the resources hold", *_classes(sizes), *_classes(limits)]
    return "\n\n".join(parts)


def _tree(module: ModuleType) -> tuple[ast.Module, list[str]]:
    source = inspect.getsource(module)
    return ast.parse(source), source.splitlines()


def _classes(module: ModuleType) -> Iterator[str]:
    for name, about, fields in classes(module):
        yield f"### {name}"
        yield about
        yield table(("field", "type", "what it is"), fields)


def classes(
    module: ModuleType, of: str | None = None
) -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
    """Each class of a module (with this base alone, if one is given): name, what it is, fields."""
    tree, lines = _tree(module)
    for each in tree.body:
        if isinstance(each, ast.ClassDef):
            bases = [ast.unparse(base) for base in each.bases]
            if of is None or bases == [of]:
                about = " ".join((ast.get_docstring(each) or "").split())
                yield each.name, about, [*_fields(each, lines)]


def _fields(of: ast.ClassDef, lines: list[str]) -> Iterator[tuple[str, str, str]]:
    for line, after in zip(of.body, [*of.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            comment = lines[line.lineno - 1].partition("  # ")[2]
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                comment = " ".join(str(after.value.value).split())
            meant = re.sub(r"(\[[^\]]*\])", r"`\1`", comment)
            yield f"`{line.target.id}`", f"`{ast.unparse(line.annotation)}`", meant
        elif isinstance(line, ast.FunctionDef) and _is_property(line):
            said = " ".join((ast.get_docstring(line) or "").split())
            yield f"`{line.name}`", f"`{ast.unparse(line.returns or line.args)}`", said


def _is_property(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(each) == "property" for each in function.decorator_list)
