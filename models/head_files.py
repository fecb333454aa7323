"""The files of what drafts for a target: a `config.json` beside safetensors, here or on the hub.

EAGLE heads, Medusa heads and modules that predict further tokens are published so, each with names
of its own. What a name stands for is decided where the network is built.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor

from ..graph.errors import shortly
from .errors import ModelError, ModelNotFound
from .pretrained import named
from .source import ask_hub, located, require_safetensors

_FILES = ["config.json", "*.safetensors", "*.safetensors.index.json"]


@dataclass(frozen=True)
class HeadFiles:
    """What a folder holds, as its files have it."""

    name: str  # of the folder or on the hub, for messages
    config: Mapping[str, Any]
    weights: dict[str, Tensor]  # [...]


def read_files(
    name_or_path: str | Path,
    embedded: Mapping[str, str],
    what: str,
    wanted: Callable[[str], bool] = lambda key: True,
) -> HeadFiles:
    """Configuration and `wanted` weights of a folder, a shipped name or a hub name; local first.

    `what` it should be is for messages. Raises `ModelNotFound`, `UnsupportedModel` if there are no
    safetensors, and `ModelError` if they cannot be read.
    """
    folder, name = folder_with_files(name_or_path, embedded), str(name_or_path)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"{name}: no readable config.json of {what}: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{name}: config.json is no object but {type(config).__name__}")
    require_safetensors(name, folder)
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for key in filter(wanted, tensors.keys()):
                weights[key] = tensors.get_tensor(key)
    return HeadFiles(name, config, weights)


def folder_with_files(name_or_path: str | Path, embedded: Mapping[str, str]) -> Path:
    """The folder, fetched from the hub if it is not here. Raises `ModelNotFound`."""
    source = located(name_or_path, embedded)
    if Path(source).is_dir():
        return Path(source)
    try:
        return Path(snapshot_download(source, allow_patterns=_FILES, local_files_only=True))
    except (OSError, ValueError):
        pass
    ask_hub(source)
    try:
        return Path(snapshot_download(source, allow_patterns=_FILES))
    except (OSError, ValueError) as error:
        raise ModelNotFound(
            f"{source!r} could not be loaded from the hub: {shortly(error)}"
        ) from error


def require_names(name: str, what: str, found: Iterable[str], expected: Iterable[str]) -> None:
    """Raises `ModelError` where weights are missing, or there are some that `what` has not."""
    found, expected = set(found), set(expected)
    if missing := sorted(expected - found):
        raise ModelError(f"{name}: its weights lack {named(missing)}")
    if unexpected := sorted(found - expected):
        raise ModelError(f"{name}: weights that {what} does not have: {named(unexpected)}")


def require_numbers(name: str, weights: Mapping[str, Tensor]) -> None:
    """Raises `ModelError` unless all of `weights[...]` are finite floating-point numbers."""
    for key, weight in weights.items():
        if not weight.is_floating_point():
            raise ModelError(f"{name}: {key} is {weight.dtype}; weights are floating-point numbers")
        if not bool(weight.isfinite().all()):
            raise ModelError(f"{name}: {key} holds numbers that are not finite; fetch it again")
