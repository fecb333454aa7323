"""A file that must hold one JSON object: the configurations of models and adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..graph.errors import shortly
from .errors import ModelError


def read_object(file: Path, said: str) -> dict[str, Any]:
    """The object in `file`. Raises `ModelError`, which begins with `said`."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{said}: {file.name} is not readable JSON: {shortly(error)}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{said}: {file.name} is no object but {type(found).__name__}")
    return found
