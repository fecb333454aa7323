"""Checking what callers of the Python door pass: one sentence that names the argument.

Types are checked as well as ranges: a string where names belong would be read letter by letter, and
`True` would count as 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from .errors import GraphError, did_you_mean

MAX_DISTANCE = 1024  # bounds carries, offsets and slots: past that a number is a typing error
MAX_COST_US = 1e12
A_PLAN = "a plan, as `compile_plan` makes of a step graph"


def wrong(where: str, argument: str, must: str, given: object, code: str) -> GraphError:
    """`compile_plan: costs must be a mapping of op names to µs, not a list.`"""
    return GraphError(f"{where}: {argument} must be {must}, not {described(given)}.", code=code)


def described(given: object) -> str:
    """A value in few words: numbers, strings and None as they are, else what it is."""
    if given is None or isinstance(given, str | int | float):
        text = repr(given)
        return text if len(text) <= 60 else f"{text[:57]}…"
    kind = type(given)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def number(
    where: str, argument: str, given: object, *, most: float = MAX_COST_US, code: str = "SW-COST"
) -> float:
    """A finite number of at least 0."""
    found: Any = given
    if isinstance(given, Real) and not isinstance(given, bool) and 0 <= found <= most:
        return float(found)
    raise wrong(where, argument, f"a number from 0 to {most:g}", given, code)


def whole(
    where: str,
    argument: str,
    given: object,
    least: int,
    most: int = MAX_DISTANCE,
    code: str = "SW-ARGUMENT",
) -> int:
    """A whole number in a range."""
    found: Any = given
    if isinstance(given, Integral) and not isinstance(given, bool) and least <= found <= most:
        return int(found)
    raise wrong(where, argument, f"a whole number from {least} to {most}", given, code)


def text(where: str, argument: str, given: object) -> str:
    if not isinstance(given, str) or not given:
        raise wrong(where, argument, "a name", given, "SW-ARGUMENT")
    return given


def texts(where: str, argument: str, given: object) -> tuple[str, ...]:
    """Several names; one string is not taken for its letters."""
    if isinstance(given, str) or not isinstance(given, Iterable) or isinstance(given, Mapping):
        advice = f"a list of names, as in [{given!r}]" if isinstance(given, str) else "names"
        raise wrong(where, argument, advice, given, "SW-ARGUMENT")
    return tuple(text(where, f"each of {argument}", each) for each in given)


def mapping(where: str, argument: str, given: object, what: str, code: str) -> Mapping[str, Any]:
    """A mapping by name; `what` says of what to what."""
    if not isinstance(given, Mapping):
        raise wrong(where, argument, f"a mapping of {what}", given, code)
    for key in given:
        if not isinstance(key, str):
            raise wrong(where, f"each key of {argument}", "a name", key, code)
    return given


def one_of(where: str, argument: str, given: object, known: Collection[str]) -> str:
    """One of the `known` texts. Raises `GraphError` naming them and the nearest."""
    if not isinstance(given, str) or given not in known:
        near = did_you_mean(given, known) if isinstance(given, str) else ""
        choices = " or ".join(map(repr, known))
        raise GraphError(
            f"{where}: {argument} must be {choices}, not {described(given)}"
            f"{near if near.startswith(' (did') else ''}.",
            code="SW-ARGUMENT",
        )
    return given


def a(where: str, argument: str, given: object, kind: type | tuple[type, ...], said: str) -> None:
    """An object of a type; `said` is what to pass, in words."""
    if not isinstance(given, kind):
        raise wrong(where, argument, said, given, "SW-ARGUMENT")
