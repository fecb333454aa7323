"""Values that a caller may hand in for any argument, and should not."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

NESTED: dict[str, Any] = {}
"""Mappings in mappings, deeper than any recursion reaches."""
_part = NESTED
for _ in range(20_000):
    _part["properties"] = {}
    _part = _part["properties"]

LOOP: list[Any] = []
"""A list that holds itself."""
LOOP.append(LOOP)

_SCALARS: tuple[Any, ...] = (
    True,
    False,
    2.5,
    -1,
    0,
    10**400,
    10**5000,
    1e400,
    float("nan"),
    float("-inf"),
    1j,
)
_TEXTS = ("a", "", "\ud800", "x" * 10**6, b"a")
_LISTS: tuple[Any, ...] = (
    [],
    [[]],
    ["\ud800"],
    [""],
    [True],
    ["x"] * 10_000,
    [(1, 2, 3)],
    [([], 1)],
    ("a", 1),
)
_MAPPINGS: tuple[Any, ...] = ({}, {"a": "b"}, {"5": 1e9}, {(): 1}, {1: True}, NESTED)
_OBJECTS: tuple[Any, ...] = (
    set(),
    object(),
    object,
    print,
    Path("x"),
    range(3),
    np.float64(3.5),
    torch.ones(2, 2),
)
_GRAMMARS: tuple[Any, ...] = (
    {"json": {1, 2}},
    {"json": object()},
    {"json": float("nan")},
    {"json": NESTED},
    {"json": LOOP},
    {"structural_tag": NESTED},
    {"choice": "ab"},
    {"regex": "(", "choice": ["a"]},
)
HOSTILE: list[Any] = [
    *(*_SCALARS, *_TEXTS, *_LISTS, *_MAPPINGS, *_OBJECTS, *_GRAMMARS),
    *(LOOP, [10**5000]),
]
