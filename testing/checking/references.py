"""Built-in containers of states that the function of an op refers to.

A list or a dict that is a state cannot tell who reads it. So it is looked for in what the functions
of an op refer to: variables that they close over, globals that they name, defaults, the arguments
of a `partial`, and the object of a method; also through functions of the same module.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple


class Reference(NamedTuple):
    """A variable of a function, and what it stands for."""

    variable: str
    datum: Any
    file: str
    line: int  # where the function begins


def references(run: object) -> Iterator[Reference]:
    """All of an op's function, itself and those that it refers to."""
    seen: set[int] = set()
    left: list[Any] = [run]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, partial):
            given = {**{f"argument {n}": a for n, a in enumerate(each.args)}, **each.keywords}
            code = getattr(each.func, "__code__", None)
            at = ("", 0) if code is None else (code.co_filename, code.co_firstlineno)
            yield from (Reference(name, datum, *at) for name, datum in given.items())
            left += [each.func, *filter(_is_function, given.values())]
        elif isinstance(each, MethodType):
            left += [each.__func__]
            yield from _of_object(each.__self__, each.__func__)
        elif isinstance(each, FunctionType):
            for found in _of_function(each):
                yield found
                if _is_function(found.datum):
                    left.append(found.datum)


def _is_function(datum: object) -> bool:
    return isinstance(datum, FunctionType | MethodType | partial)


def _of_object(owner: Any, function: Any) -> Iterator[Reference]:
    code = getattr(function, "__code__", None)
    if code is not None:
        for name, datum in getattr(owner, "__dict__", {}).items():
            yield Reference(f"self.{name}", datum, code.co_filename, code.co_firstlineno)


def _of_function(function: FunctionType) -> Iterator[Reference]:
    code = function.__code__
    at = (code.co_filename, code.co_firstlineno)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Reference(name, cell.cell_contents, *at)
        except ValueError:  # not bound yet
            continue
    for number, default in enumerate(function.__defaults__ or ()):
        yield Reference(f"default {number}", default, *at)
    for name, default in (function.__kwdefaults__ or {}).items():
        yield Reference(name, default, *at)
    for name in _names(code):
        if name in function.__globals__:
            datum = function.__globals__[name]
            elsewhere = isinstance(datum, FunctionType) and datum.__module__ != function.__module__
            if not elsewhere:
                yield Reference(name, datum, *at)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
