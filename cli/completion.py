"""What a shell offers for the word that is being typed.

A shell asks at every press of a key, so nothing here imports torch, and a config that cannot be
read offers nothing in place of an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..configs.abstract import AbstractGraph
from ..configs.load import load, shipped
from ..configs.shipped_costs import shipped_costs
from ..graph.errors import StepweaveError

if TYPE_CHECKING:
    from ..configs.schema import PipelineConfig


def configs(incomplete: str) -> list[str]:
    """Shipped names, and YAML files."""
    return _starting(incomplete, [*shipped(), *_files(incomplete)])


def costs(incomplete: str) -> list[str]:
    """Shipped profiles, and YAML files."""
    return _starting(incomplete, [*shipped_costs(), *_files(incomplete)])


def clusters(incomplete: str) -> list[str]:
    """Shipped cluster files, and YAML files."""
    from ..clusters.shipped import shipped_clusters

    return _starting(incomplete, [*shipped_clusters(), *_files(incomplete)])


def sections(incomplete: str) -> list[str]:
    """What `list` can list."""
    from .listing import SECTIONS

    return _starting(incomplete, list(SECTIONS))


def settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """The keys of the config that stands before, with their values where they are few."""
    from ..configs.keys import keys

    known = keys(_config(ctx) if incomplete.startswith("nodes.") else None)
    key, equals, _ = incomplete.partition("=")
    if not equals:
        return _starting(incomplete, [f"{each.name}=" for each in known])
    found = next((each.choices for each in known if each.name == key), ())
    return _starting(incomplete, [f"{key}={choice}" for choice in found])


def ops(ctx: typer.Context, incomplete: str) -> list[str]:
    """The nodes of the config that stands before, and their ops."""
    name = ctx.params.get("config")
    try:
        from .planned import step_graph_of

        graph = step_graph_of(load(str(name)))
    except StepweaveError:
        return []
    return _starting(incomplete, [*(node.name for node in graph.nodes), *graph.vertices])


def _config(ctx: typer.Context) -> PipelineConfig | None:
    """The first config that stands before; None if it is no pipeline, or cannot be read."""
    # While the value of an option is typed, arguments are not yet taken for parameters.
    name = next(iter([*ctx.args, ctx.params.get("config")]), None)
    try:
        config = load(str(name)).config
    except StepweaveError:
        return None
    return None if isinstance(config, AbstractGraph) else config


def _files(incomplete: str) -> list[str]:
    """YAML files and folders beside what is typed."""
    folder = Path(incomplete if incomplete.endswith("/") else Path(incomplete).parent)
    try:
        inner = sorted(folder.iterdir())
    except OSError:
        return []
    return [
        f"{path}/" if path.is_dir() else str(path)
        for path in inner
        if path.suffix in (".yaml", ".yml") or path.is_dir()
    ]


def _starting(incomplete: str, words: list[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
