"""Arguments and options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a shipped one.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]
Costs = Annotated[
    str | None,
    typer.Option(
        "--costs",
        metavar="FILE|NAME",
        help="Durations of ops: a file that `profile` wrote, or a shipped, assumed profile.",
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
    Path | None, typer.Option(metavar="FILE.jsonl", help="Requests, one JSON object per line.")
]
MaxTokens = Annotated[int | None, typer.Option(min=1, max=1 << 20, help="For every request.")]
