"""Arguments and options that several verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a shipped one.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]
