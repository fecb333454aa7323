"""The verbs of `stepweave graph` and their options; each verb has a file of its own."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from .options import Config, Settings

graph_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


class Format(StrEnum):
    """Of a drawn plan."""

    LANES = "lanes"
    DOT = "dot"
    MERMAID = "mermaid"
    JSON = "json"


@graph_app.command("show")
def graph_show(
    config: Config,
    steps: Annotated[int, typer.Option(min=1, max=32, help="Steps drawn.")] = 3,
    form: Annotated[
        Format, typer.Option("--format", help="lanes: for terminals; dot and mermaid: graphs.")
    ] = Format.LANES,
    width: Annotated[int | None, typer.Option(min=40, max=1000, help="Columns of lanes.")] = None,
    color: Annotated[
        bool | None, typer.Option("--color/--no-color", help="Else as the terminal allows.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Draw a plan: what each actor runs over a few steps, and what waits for what, and why.

    \b
      stepweave graph show quickstart
      stepweave graph show quickstart --steps 4 --set depth=3
      stepweave graph show abstract_decode --format dot | dot -Tsvg > plan.svg
    """
    from .draw import show
    from .settings import overrides

    show(config, overrides(settings), form=form, steps=steps, width=width, color=color)
