"""Arguments and options that several verbs share, and what a shell completes them with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


# The modules that know what to offer are imported when a shell asks.
def offer_configs(incomplete: str) -> list[str]:
    from .completion import configs

    return configs(incomplete)


def offer_costs(incomplete: str) -> list[str]:
    from .completion import costs

    return costs(incomplete)


def offer_settings(incomplete: str) -> list[str]:
    from .completion import settings

    return settings(incomplete)


def offer_ops(ctx: typer.Context, incomplete: str) -> list[str]:
    from .completion import ops

    return ops(ctx, incomplete)


Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML file, or the name of a shipped config.",
        autocompletion=offer_configs,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting of the config. Can be repeated.",
        autocompletion=offer_settings,
    ),
]
Costs = Annotated[
    str | None,
    typer.Option(
        "--costs",
        metavar="FILE|NAME",
        help="Read durations of ops from a file that `profile` wrote, or from a shipped, "
        "assumed profile.",
        autocompletion=offer_costs,
    ),
]
Rows = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1 << 20,
        help="Batch size at which --costs is read. Default: the `batch` of the file.",
    ),
]
PromptTexts = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="A prompt. Can be repeated.")
]
PromptsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.jsonl",
        help="Read requests from a file, one JSON object per line; - reads standard input.",
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, max=1 << 20, help="Largest number of tokens generated for each request."),
]
