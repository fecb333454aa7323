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
        help="A YAML file, or the name of a shipped one.",
        autocompletion=offer_configs,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting; may be repeated.",
        autocompletion=offer_settings,
    ),
]
Costs = Annotated[
    str | None,
    typer.Option(
        "--costs",
        metavar="FILE|NAME",
        help="Durations of ops: a file that `profile` wrote, or a shipped, assumed profile.",
        autocompletion=offer_costs,
    ),
]
Rows = Annotated[
    int | None,
    typer.Option(min=1, max=1 << 20, help="Batch size at which --costs is read; else the file's."),
]
PromptTexts = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="A prompt; may be repeated.")
]
PromptsFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE.jsonl", help="Requests, one JSON object per line; - for stdin."),
]
MaxTokens = Annotated[int | None, typer.Option(min=1, max=1 << 20, help="For every request.")]
