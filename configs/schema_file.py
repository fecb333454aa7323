"""JSON Schemas in files of their own, as the command line and load generation take them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import ConfigError, Mark

MAX_SCHEMA_BYTES = 1 << 20


def read_schema_file(path: Path) -> Any:
    """The JSON of a file, of whatever type it is. Raises `ConfigError` with the place."""
    name = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_SCHEMA_BYTES + 1)
        if len(raw) > MAX_SCHEMA_BYTES:
            raise ConfigError.at(Mark(name), f"is larger than {MAX_SCHEMA_BYTES >> 10} KiB")
        return json.loads(raw.decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError.at(Mark(name), f"cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        mark = Mark(name, error.lineno, error.colno)
        raise ConfigError.at(mark, f"is not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError.at(Mark(name, 1), f"is not usable JSON: {error}") from error
