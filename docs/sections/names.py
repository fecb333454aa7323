"""python.md: the public names with their signatures, and the classes of errors."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import EnumType
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from sections.markdown import first_sentence, table

import stepweave
from stepweave.graph.public import PACKAGES

WIDTH = 88


def names(listed: str) -> str:
    """The public names that are listed, each with its signature and what it is."""
    return "\n\n".join(_name(name) for name in listed.split())


def _name(name: str) -> str:
    thing = next(
        getattr(package, name)
        for package in map(import_module, PACKAGES)
        if name in package.__all__
    )
    parts = [
        f"### {name}",
        first_sentence(inspect.getdoc(thing)),
        f"```text\n{_shape(name, thing)}\n```",
    ]
    described = list(_described_fields(thing))
    if described:
        parts.append(table(("field", "what it is"), described))
    methods = list(_methods(thing))
    if methods:
        parts.append(table(("has", "what it is"), methods))
    return "\n\n".join(parts)


def _described_fields(thing: Any) -> Iterator[tuple[str, str]]:
    """The fields of a dataclass that its docstring describes, each in a paragraph `name: …`."""
    if not (isinstance(thing, type) and dataclasses.is_dataclass(thing)):
        return
    fields = {field.name for field in dataclasses.fields(thing)}
    for part in re.split(r"\n(?=\w+: )", inspect.getdoc(thing) or ""):
        name, colon, said = part.partition(": ")
        if colon and name in fields:
            yield f"`{name}`", " ".join(said.partition("\n\n")[0].split())


def _shape(name: str, thing: Any) -> str:
    if isinstance(thing, EnumType):
        return "\n".join(f"{name}.{member.name}" for member in thing)
    if hasattr(thing, "model_fields"):
        return f"class {name}  # has the keys of a file"
    if getattr(thing, "_is_protocol", False):
        return f"class {name}  # made by executors"
    return _call(name, thing)


def _call(name: str, thing: Any) -> str:
    """`name(a, b=1) → C`, on several lines where one is too short for it."""
    signature = inspect.signature(thing)
    given: list[str] = []
    kinds = [each.kind for each in signature.parameters.values()]
    for place, each in enumerate(signature.parameters.values()):
        stars = {each.KEYWORD_ONLY, each.VAR_POSITIONAL}
        if each.kind is each.KEYWORD_ONLY and stars.isdisjoint(kinds[:place]):
            given.append("*")
        given.append(_parameter(each))
        if each.kind is each.POSITIONAL_ONLY and kinds[place + 1 : place + 2] != [each.kind]:
            given.append("/")
    result = signature.return_annotation
    gives = "" if isinstance(thing, type) else f" -> {_annotation(result)}"
    line = f"{name}({', '.join(given)}){gives}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in given) + f"){gives}"


def _parameter(each: inspect.Parameter) -> str:
    stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    text = stars + each.name
    if each.annotation is not each.empty:
        text += f": {_annotation(each.annotation)}"
    if each.default is each.empty:
        return text
    default = re.sub(r"^<.*>$|^mappingproxy\(\{\}\)$", "…", repr(each.default))
    return f"{text} = {default if len(default) < 24 else '…'}"


def _annotation(annotation: Any) -> str:
    return (
        annotation
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", str(annotation))
    )


def _methods(thing: Any) -> Iterator[tuple[str, str]]:
    """The methods and properties that a class itself documents."""
    if not isinstance(thing, type) or hasattr(thing, "model_fields"):
        return
    fields = (
        {field.name for field in dataclasses.fields(thing)}
        if dataclasses.is_dataclass(thing)
        else set()
    )
    for name, member in vars(thing).items():
        if name.startswith("_") or name in fields:
            continue
        inner = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if isinstance(inner, (property, cached_property)):
            yield f"`{name}`", first_sentence(inspect.getdoc(inner))
        elif inspect.isfunction(inner):
            parameters = [
                each for each in inspect.signature(inner).parameters if each not in ("self", "cls")
            ]
            yield f"`{name}({', '.join(parameters)})`", first_sentence(inspect.getdoc(inner))


@dataclass(frozen=True)
class _Class:
    """A class as its file has it; nothing is imported to know it."""

    name: str
    module: str
    bases: tuple[str, ...]
    code: str | None
    doc: str


def errors() -> str:
    """Every class of errors: its default code, where it is, what it says."""
    classes = {each.name: each for each in _classes()}
    rows = [
        (code, f"`{each.module}.{each.name}`", each.doc)
        for each in classes.values()
        if (code := _code(each.name, classes)) is not None
    ]
    return table(("code, if it has no other", "class", "what it is"), sorted(rows))


def _classes() -> Iterator[_Class]:
    root = Path(stepweave.__path__[0])
    for folder in sorted(init.parent for init in root.glob("*/__init__.py")):
        for path in sorted(folder.rglob("*.py")):
            module = ".".join(("stepweave", *path.relative_to(root).with_suffix("").parts))
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
                    doc = first_sentence(ast.get_docstring(node))
                    yield _Class(node.name, module, bases, _own_code(node), doc)


def _own_code(node: ast.ClassDef) -> str | None:
    for line in node.body:
        match line:
            case ast.Assign([ast.Name("code")], ast.Constant(str(code))) | ast.AnnAssign(
                ast.Name("code"), _, ast.Constant(str(code))
            ) if code.startswith("SW-"):
                return code
    return None


def _code(name: str, classes: Mapping[str, _Class]) -> str | None:
    """The code of a class or of what it is made from; None for what is no error of ours."""
    known = classes.get(name)
    if known is None:
        return None
    if known.code is not None:
        return f"`{known.code}`"
    return next((code for base in known.bases if (code := _code(base, classes))), None)
