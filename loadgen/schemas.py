"""JSON Schemas from a folder, for answers that must follow one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..configs.errors import ConfigError, Mark, Problem, reading
from ..configs.schema_file import read_schema_file


def read_schemas(folder: Path) -> tuple[tuple[str, Any], ...]:
    """Each *.json file of the folder by its name without the ending, in the order of the names.

    Raises a `ConfigError` that lists every broken file.
    """
    with reading(str(folder)):
        files = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    if not files:
        raise ConfigError.at(Mark(str(folder)), "holds no .json file")
    found: list[tuple[str, Any]] = []
    problems: list[Problem] = []
    for path in files:
        try:
            found.append((path.stem, _read(path)))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return tuple(found)


def _read(path: Path) -> Any:
    schema = read_schema_file(path)
    if not isinstance(schema, dict | bool):
        raise ConfigError.at(Mark(str(path), 1), "must be a JSON Schema, which is an object")
    return schema
