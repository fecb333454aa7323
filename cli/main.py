"""The command line. This file names the verbs and their options; each verb has a file of its own.

The verbs of `stepweave graph` are named in `graph.py`.

Heavy modules are imported by the verb that needs them, so that `check` answers at once.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .graph import graph_app
from .options import Config, Settings
from .reporting import Exit, one_line_errors


class _Verbs(TyperGroup):
    """Runs a verb with its mistakes told in one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with one_line_errors(debug=bool(ctx.params.get("debug"))):
                return super().invoke(ctx)
        except Exit as end:
            raise typer.Exit(end.code) from end


app = typer.Typer(
    name="stepweave",
    cls=_Verbs,
    help="Decode steps as declared dataflow: overlap and synchronization derived, and proved.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(graph_app, name="graph", help="Draw the plan of a config.")


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    """Decode steps as declared dataflow: overlap and synchronization derived, and proved."""


@app.command()
def check(
    configs: Annotated[
        list[str], typer.Argument(metavar="CONFIG…", help="YAML files or names of shipped ones.")
    ],
    json: Annotated[bool, typer.Option("--json", help="One JSON object per config.")] = False,
    mutate: Annotated[
        bool,
        typer.Option("--mutate", help="Break the plan in every small way; is each way noticed?"),
    ] = False,
    settings: Settings = None,
) -> None:
    """Compile a config, prove it free of races, and print the proof.

    \b
    Exit code 1 if any config fails, or with --mutate if a mutant survives.
      stepweave check quickstart
      stepweave check abstract_decode.yaml my_graph.yaml --json
      stepweave check quickstart --set depth=3
      stepweave check quickstart --mutate
    """
    from .settings import overrides

    if mutate:
        from .mutate import mutate as run_mutants

        raise Exit(run_mutants(configs, overrides(settings), json))
    from .check import check as run_check

    raise Exit(run_check(configs, overrides(settings), json))


@app.command()
def run(
    config: Config,
    prompt: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="A prompt; may be repeated.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Requests, one JSON object per line."),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON Schema that answers to --prompt must follow."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, max=1 << 20, help="For every request.")
    ] = None,
    settings: Settings = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object per request, then a summary.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Run the synchronous loop too; report equality and speed."),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail where a node does what it did not declare.")
    ] = False,
) -> None:
    """Generate text. Without prompts given, for those of the config.

    \b
    Exit code 1 if a request failed, 130 after Ctrl-C (what was done is printed).
      stepweave run quickstart
      stepweave run quickstart --prompt "Write a story about a fox named Ida." --max-tokens 80
      stepweave run async --prompts requests.jsonl --json --set scheduler.max_rows=4
      stepweave run quickstart --compare --set depth=3
    """
    from .requested import requested
    from .run import pipeline
    from .run import run as run_pipeline
    from .settings import overrides

    changed = overrides(settings) | ({"check": "strict"} if strict else {})
    loaded = pipeline(config, changed)
    lines = requested(loaded, prompt or (), prompts, schema, max_tokens)
    raise Exit(run_pipeline(loaded, lines, as_json=json, compare=compare))


@app.command()
def doctor() -> None:
    """Say what this machine and this installation can do.

    \b
      stepweave doctor
    """
    from .doctor import doctor as examine

    raise Exit(examine())


@app.command()
def schema() -> None:
    """Print the JSON Schema of config files, for editors.

    \b
      stepweave schema > stepweave.schema.json
    and in a config's first line:
      # yaml-language-server: $schema=stepweave.schema.json
    """
    import json

    from ..configs.schema import json_schema

    print(json.dumps(json_schema(), indent=2))


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a letter shows its number
            stream.reconfigure(errors="backslashreplace")
    app()
