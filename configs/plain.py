"""Settings from Python: values of any plain kind, in dotted keys or nested mappings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..graph.arguments import described
from .errors import ConfigError, Mark
from .yaml_source import Located

MAX_DEPTH = 64


def dotted(settings: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each setting under its dotted key: {"scheduler": {"max_rows": 4}} sets one key.

    Raises `ConfigError` for a key that is no text, or nesting without end.
    """
    if not isinstance(settings, Mapping):
        problem = f"must be a mapping of keys to values, not {described(settings)}"
        raise ConfigError.at(Mark("overrides"), problem)
    for key, value in settings.items():
        if not isinstance(key, str):
            raise ConfigError.at(Mark("overrides"), f"a key must be text, not {key!r}")
        if len(above) > MAX_DEPTH:
            raise ConfigError.at(Mark("overrides"), f"nested deeper than {MAX_DEPTH}")
        if isinstance(value, Mapping):
            yield from dotted(value, (*above, key))
        else:
            yield ".".join((*above, key)), value


def located(value: Any, mark: Mark, depth: int = 0) -> Located:
    """A value as if it stood in a file; a path is its text. Raises `ConfigError`."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, int) and abs(value) >= 1 << 64:
        raise ConfigError.at(mark, "is a number too large for any key")
    if value is None or isinstance(value, bool | int | float | str):
        return Located(value, mark, mark)
    if isinstance(value, os.PathLike):
        return Located(str(value), mark, mark)
    if depth > MAX_DEPTH:
        raise ConfigError.at(mark, f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, list | tuple):
        return Located([located(each, mark, depth + 1) for each in value], mark, mark)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        inner = {key: located(part, mark, depth + 1) for key, part in value.items()}
        return Located(inner, mark, mark)
    raise ConfigError.at(
        mark,
        "must be a text, number, truth value, None, list or mapping, not a value of type "
        f"{type(value).__name__}",
    )
