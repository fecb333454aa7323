"""The cluster files and parts that come with the package, by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from ..configs.errors import ConfigError, Mark, existing_file
from ..configs.validated import validated
from ..configs.yaml_source import Located, read_yaml
from ..graph.errors import did_you_mean

SHIPPED = Path(__file__).parents[1] / "configs" / "clusters"
P = TypeVar("P", bound=BaseModel)


@cache
def shipped_clusters() -> tuple[str, ...]:
    """Names of the cluster files that come with the package."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


@cache
def shipped_parts(kind: str) -> dict[str, Located]:
    """The `devices`, `links` or `models` that come with the package, by name."""
    source = read_yaml(SHIPPED / "parts" / f"{kind}.yaml", f"configs/clusters/parts/{kind}.yaml")
    assert isinstance(source.value, dict), "a file is a mapping"
    return source.value


def part_of(kind: str, model: type[P], name: str) -> P:
    """A shipped part. Raises `ValueError` with the nearest right name."""
    known = shipped_parts(kind)
    if name not in known:
        near = did_you_mean(name, known)
        raise ValueError(
            f"{name[:60]!r} is none of the shipped {kind}{near}: use {', '.join(known)}, or "
            "describe one by its keys"
        )
    return validated(model, known[name], (kind, name))


def cluster_path(name: str) -> Path:
    """The file of that name: a path first, then a shipped name. Raises `ConfigError`."""
    if (found := existing_file(name, Path())) is not None:
        return found
    path = Path(name)
    stem = path.name.removesuffix(".yaml")
    if path.parent == Path() and stem in shipped_clusters():
        return SHIPPED / f"{stem}.yaml"
    known = shipped_clusters()
    near = did_you_mean(stem, known) if path.parent == Path() else ""
    raise ConfigError.at(
        Mark(name),
        f"no such cluster file, and none that ships{near}: use {', '.join(known)}",
        "SW-NO-FILE",
    )
