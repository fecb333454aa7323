"""JSON that a request brings along: read, and refused where it is none or nests too deep."""

from __future__ import annotations

import json
import re
from math import isinf
from typing import Final, cast

MAX_DEPTH: Final = 64
"""Deepest nesting of a schema's JSON or of brackets in a regex or EBNF source.

Compile time grows faster than the square of the depth, and public servers were blocked for minutes
by one deeply nested schema. An object inside an object costs two levels.
"""


class GrammarError(ValueError):
    """A grammar that is malformed, impossible, unsupported, or not followed by committed tokens."""


def load_json(source: str, kind: str) -> object:
    """Parse JSON of a request. Raises `GrammarError`: no JSON, NaN or infinity, too deep."""
    try:
        return cast(
            object, json.loads(source, parse_constant=_refuse_constant, parse_float=_finite)
        )
    except RecursionError:
        # `from None`: the traceback of a recursion error is a thousand equal lines.
        raise GrammarError(f"{kind}: nested too deep to read, more than {MAX_DEPTH}") from None
    except ValueError as error:
        raise GrammarError(f"{kind}: not JSON: {error}") from error


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def dump_json(value: object) -> str:
    """A value as compact JSON text that UTF-8 has: lone surrogates alone are escaped.

    Raises:
        TypeError: it has something that is no JSON.
        ValueError: it has NaN or infinity, or has itself in it.
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def json_depth(value: object) -> int:
    """How deep lists and objects nest in parsed JSON. Iterative: the input is not trusted."""
    deepest = 0
    open_values: list[tuple[object, int]] = [(value, 1)]
    while open_values:
        current, depth = open_values.pop()
        if isinstance(current, dict):
            children = list(current.values())
        elif isinstance(current, list):
            children = current
        else:
            continue
        deepest = max(deepest, depth)
        open_values.extend((child, depth + 1) for child in children)
    return deepest


def nesting_error(value: object, kind: str) -> None:
    """Raises `GrammarError` if parsed JSON nests deeper than `MAX_DEPTH`."""
    depth = json_depth(value)
    if depth > MAX_DEPTH:
        raise GrammarError(f"{kind}: nested {depth} deep, more than {MAX_DEPTH}")


def _finite(digits: str) -> float:
    found = float(digits)
    if isinf(found):
        raise ValueError(f"{digits[:40]} is larger than any number")
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
