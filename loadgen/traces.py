"""Traces of real traffic in two public formats: when requests came, and how long they were.

Mooncake (https://github.com/kvcache-ai/Mooncake): a JSON object per line with `timestamp` in ms,
`input_length`, `output_length`, and `hash_ids`, one for each block of 512 prompt tokens; equal ids
are equal blocks. Azure (https://github.com/Azure/AzurePublicDataset): a CSV file with the columns
TIMESTAMP, ContextTokens and GeneratedTokens.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from ..configs.errors import ConfigError, Mark, Problem, reading
from ..graph.errors import did_you_mean

BLOCK_TOKENS = 512  # of a hash id
MAX_BYTES = 1 << 30
MAX_TOKENS = 1 << 24
MAX_PROBLEMS = 100
_MOONCAKE = {"timestamp", "input_length", "output_length", "hash_ids"}
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class Traced:
    """One request of a trace, `at_s` after the first one."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()  # ids of its prompt's blocks, where the trace has them


def read_trace(path: Path) -> tuple[Traced, ...]:
    """The requests in the order of time; a name that ends in .csv is Azure's format.

    Raises a `ConfigError` that lists every broken line.
    """
    name = str(path)
    with reading(name):
        raw = path.read_bytes() if path.stat().st_size <= MAX_BYTES else None
    if raw is None:
        raise ConfigError.at(Mark(name), f"is larger than {MAX_BYTES >> 20} MiB")
    text = raw.decode("utf-8-sig", errors="replace")
    return trace_of(text, name, azure=path.suffix.lower() == ".csv")


def trace_of(text: str, name: str, *, azure: bool) -> tuple[Traced, ...]:
    """The same of what was read already. Raises `ConfigError`."""
    found: list[Traced] = []
    problems: list[Problem] = []
    for number, read in _azure_rows(text, name) if azure else _mooncake_lines(text):
        try:
            found.append(read())
        except (ValueError, RecursionError) as error:
            problems.append(Problem(Mark(name, number), f"{error}"))
    if problems:
        raise ConfigError(*problems[:MAX_PROBLEMS])
    if not found:
        raise ConfigError.at(Mark(name, 1), "holds no requests")
    first_s = min(each.at_s for each in found)
    return tuple(
        Traced(each.at_s - first_s, each.input_tokens, each.output_tokens, each.blocks)
        for each in sorted(found, key=lambda each: each.at_s)
    )


_Lines = Iterator[tuple[int, Callable[[], Traced]]]


def _mooncake_lines(text: str) -> _Lines:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, partial(_mooncake, line)


def _mooncake(line: str) -> Traced:
    """Raises `ValueError`."""
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} (column {error.colno})") from error
    if not isinstance(data, dict):
        raise ValueError('must be an object with "timestamp", "input_length" and "output_length"')
    for key in ("timestamp", "input_length", "output_length"):
        if key not in data:
            near = did_you_mean(key, set(map(str, data)) - _MOONCAKE)
            raise ValueError(f"has no {key!r}{near}")
    blocks = data.get("hash_ids") or []
    if not isinstance(blocks, list) or any(type(each) is not int for each in blocks):
        raise ValueError("'hash_ids' must be a list of whole numbers")
    timestamp = data["timestamp"]
    if type(timestamp) not in (int, float) or not 0 <= timestamp < 1e15:
        raise ValueError(f"'timestamp' must be a number of ms from 0, not {_shown(timestamp)}")
    return Traced(
        timestamp / 1e3,
        _tokens("input_length", data["input_length"]),
        _tokens("output_length", data["output_length"]),
        tuple(blocks),
    )


def _azure_rows(text: str, name: str) -> _Lines:
    rows = csv.reader(StringIO(text, newline=""))
    try:
        header = [column.strip() for column in next(rows, [])]
        places = [header.index(column) for column in _AZURE]
    except ValueError:
        missing = next(column for column in _AZURE if column not in header)
        said = f"the header has no column {missing!r}{did_you_mean(missing, header)}"
        raise ConfigError.at(Mark(name, 1), said) from None
    try:
        for row in rows:
            if row:
                yield rows.line_num, partial(_azure, row, places)
    except csv.Error as error:
        raise ConfigError.at(Mark(name, rows.line_num), f"is not CSV: {error}") from error


def _azure(row: list[str], places: list[int]) -> Traced:
    """Raises `ValueError`."""
    if len(row) <= max(places):
        raise ValueError(f"has {len(row)} columns, fewer than the header")
    moment, context, generated = (row[place].strip() for place in places)
    try:
        at = datetime.fromisoformat(moment)
    except ValueError:
        raise ValueError(f"'TIMESTAMP' must be a date with a time, not {_shown(moment)}") from None
    at_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return Traced(
        at_s,
        _tokens("ContextTokens", int(context) if context.isdecimal() else context),
        _tokens("GeneratedTokens", int(generated) if generated.isdecimal() else generated),
    )


def _tokens(key: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        said = f"must be a whole number from 0 to {MAX_TOKENS}"
        raise ValueError(f"{key!r} {said}, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
