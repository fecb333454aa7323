"""The command line. This file names the verbs and their options; each verb has a file of its own.

The verbs of `stepweave graph` are named in `graph.py`.

Heavy modules are imported by the verb that needs them, so that `check` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .graph import graph_app
from .options import (
    Config,
    Costs,
    MaxTokens,
    PromptsFile,
    PromptTexts,
    Rows,
    Settings,
    offer_configs,
)
from .reporting import Exit, one_line_errors, open_closed_streams, short, unwritable
from .signals import raise_on_term

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # of the click that typer brings


@contextmanager
def _short_messages() -> Iterator[None]:
    """A wrong argument is quoted in the message, however long it is: cut it."""
    try:
        yield
    except _UsageError as error:
        told: Any = error
        told.message = short(told.message)
        raise


class _Verbs(TyperGroup):
    """Runs a verb with its mistakes told in one line."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _short_messages():
            return super().make_context(*args, **kwargs)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except OSError as error:  # of `--help`, which is written before any verb is invoked
            raise SystemExit(unwritable(error)) from error

    def invoke(self, ctx: Any) -> Any:
        try:
            with one_line_errors(debug=bool(ctx.params.get("debug"))), _short_messages():
                return super().invoke(ctx)
        except Exit as end:
            raise typer.Exit(end.code) from end


app = typer.Typer(
    name="stepweave",
    cls=_Verbs,
    help="Compile, check and run decode steps of language models, declared as dataflow graphs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(graph_app, name="graph", help="Draw, explain and compare plans.")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"stepweave {version('stepweave')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Compile, check and run decode steps of language models, declared as dataflow graphs."""


@app.command()
def check(
    configs: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG…",
            help="YAML files, or names of shipped configs.",
            autocompletion=offer_configs,
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per config.")] = False,
    proof: Annotated[
        bool, typer.Option("--proof", help="Also print every requirement and what meets it.")
    ] = False,
    mutate: Annotated[
        bool,
        typer.Option(
            "--mutate",
            help="Break the plan in many small ways, and count how many "
            "of the broken plans are detected.",
        ),
    ] = False,
    settings: Settings = None,
    costs: Costs = None,
    rows: Rows = None,
) -> None:
    """Compile a config, prove that its plan has no races, and print the plan.

    \b
    Exit status 1 if a config is wrong, or with --mutate if a broken plan is not detected.
      stepweave check quickstart
      stepweave check abstract_decode.yaml my_graph.yaml --json
      stepweave check quickstart --set depth=3 --proof
      stepweave check quickstart --mutate
      stepweave check async_eagle3_grammar --costs llama_8b --rows 32
    """
    from .settings import overrides

    if mutate:
        from .mutate import mutate as run_mutants

        raise Exit(run_mutants(configs, overrides(settings), json))
    from .check import check as run_check

    checked = run_check(configs, overrides(settings), json, proof=proof, costs=costs, rows=rows)
    raise Exit(checked)


@app.command()
def run(
    config: Config,
    prompt: PromptTexts = None,
    prompts: PromptsFile = None,
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON Schema that outputs for --prompt must follow."),
    ] = None,
    max_tokens: MaxTokens = None,
    settings: Settings = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object per request when it ends, then a summary."
        ),
    ] = False,
    ordered: Annotated[
        bool,
        typer.Option(
            "--ordered",
            help="With --json: print all objects at the end, in the order of the input.",
        ),
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Also run the synchronous loop, and report whether the "
            "tokens are equal and how the speeds compare.",
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Fail if a node makes an access that it did not declare."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the output to a file in place of standard output.",
        ),
    ] = None,
) -> None:
    """Generate text. Without --prompt or --prompts, the prompts of the config are used.

    \b
    Exit status 1 if a request failed; 130 after Ctrl-C and 143 after TERM, with the results so far.
      stepweave run quickstart
      stepweave run quickstart --prompt "Write a story about a fox named Ida." --max-tokens 80
      stepweave run async --prompts requests.jsonl --json -o results.jsonl
      stepweave run async --prompts - --set scheduler.max_rows=4 < requests.jsonl
      stepweave run quickstart --compare --set depth=3
    """
    from .output import place
    from .planned import runnable
    from .requested import requested
    from .run import run as run_pipeline
    from .settings import overrides

    if output is not None:
        place(output)
    changed = overrides(settings) | ({"check": "strict"} if strict else {})
    loaded = runnable(config, changed)
    lines = requested(loaded, prompt or (), prompts, schema, max_tokens)
    raise Exit(
        run_pipeline(loaded, lines, as_json=json, compare=compare, ordered=ordered, output=output)
    )


@app.command()
def profile(
    config: Config,
    rows: Annotated[str, typer.Option(metavar="N,N…", help="Batch sizes to measure.")] = "1,4,8",
    rounds: Annotated[
        int,
        typer.Option(
            min=1, max=1000, help="Measured rounds per batch size, after one round of warm-up."
        ),
    ] = 3,
    prompt: PromptTexts = None,
    prompts: PromptsFile = None,
    max_tokens: MaxTokens = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write. Default: CONFIG.costs.yaml in the current directory.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    settings: Settings = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a pipeline, measure the duration of each op, and write a costs file.

    \b
    Without --prompt or --prompts, the prompts of the config are used.
    Only decode steps in which all rows are busy are measured.
      stepweave profile quickstart
      stepweave profile async_eagle --prompts requests.jsonl --rows 1,16 -o eagle.yaml
      stepweave profile quickstart --set executor=serial --rows 4 --rounds 5
    """
    from .planned import runnable
    from .profile import batch_sizes, output_path
    from .profile import profile as run_profile
    from .requested import requested
    from .settings import overrides

    sizes, path = batch_sizes(rows), output_path(config, output, force)
    loaded = runnable(config, overrides(settings))
    lines = requested(loaded, prompt or (), prompts, None, max_tokens)
    run_profile(loaded, lines, name=config, rows=sizes, rounds=rounds, path=path, as_json=json)


@app.command()
def simulate(
    config: Config,
    costs: Annotated[
        str | None,
        typer.Option(
            "--costs",
            metavar="FILE|NAME|all",
            help="Read durations of ops from a file that `profile` wrote, or from a "
            "shipped, assumed profile. all: print a table of all shipped profiles.",
        ),
    ] = None,
    rows: Rows = None,
    steps: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of steps to simulate.")
    ] = 40,
    jitter: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Multiply each duration by a random factor between 1 - X and 1 + X."
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the jitter.")] = 0,
    tokens_per_step: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=1000, help="Average number of tokens that a row gets in a step."
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Also simulate the config with this setting, and compare."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the timeline to a file: .html, .json (Perfetto), .svg or .txt.",
        ),
    ] = None,
    settings: Settings = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate a plan on a virtual clock, without a model or tensors.

    \b
    Durations are those of --costs. Without --costs, they are the hints of the config.
      stepweave simulate async_eagle3_grammar --costs llama_8b --rows 10 --tokens-per-step 2.25
      stepweave simulate quickstart --costs quickstart.costs.yaml --compare executor=serial
      stepweave simulate async_eagle3_grammar --costs all
      stepweave simulate abstract_decode --jitter 0.2 --seed 7
    """
    from .simulate import simulate as run_simulation
    from .simulation import Settings as RunSettings

    run_simulation(
        config,
        settings,
        costs=costs,
        rows=rows,
        run=RunSettings(steps, jitter, seed, tokens_per_step),
        compare=compare or (),
        output=output,
        as_json=json,
    )


@app.command()
def trace(
    config: Config,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write the timeline to, for Perfetto."
        ),
    ] = Path("trace.json"),
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the timeline as an HTML page.")
    ] = None,
    prompt: PromptTexts = None,
    prompts: PromptsFile = None,
    max_tokens: MaxTokens = None,
    steps: Annotated[
        int,
        typer.Option(min=1, max=10_000, help="Number of steps to simulate, for an abstract graph."),
    ] = 40,
    steps_shown: Annotated[
        int | None,
        typer.Option(min=1, help="Show only the last N steps on the page. Default: all."),
    ] = None,
    warm_up: Annotated[
        int, typer.Option(min=0, max=100, help="Number of runs before the traced one.")
    ] = 1,
    settings: Settings = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object.")
    ] = False,
) -> None:
    """Run a pipeline, record when each op ran, and compare the times with the plan.

    \b
    Without --prompt or --prompts, the prompts of the config are used.
    An abstract graph is simulated.
    Exit status 1 if a request failed or no steady state was reached;
    130 after Ctrl-C and 143 after TERM.
      stepweave trace quickstart
      stepweave trace quickstart -o trace.json --html timeline.html --set depth=3
      stepweave trace async --prompts requests.jsonl --max-tokens 64 --json
      stepweave trace abstract_decode --html timeline.html --steps 20
    """
    from .settings import overrides
    from .trace import Asked, Prompts
    from .trace import trace as run_trace

    raise Exit(
        run_trace(
            config,
            overrides(settings),
            Prompts(prompt or (), prompts, max_tokens),
            Asked(output, html, steps_shown, warm_up, steps, json),
        )
    )


@app.command("list")
def list_choices(
    section: Annotated[
        str | None,
        typer.Argument(
            metavar="SECTION",
            help="One of pipelines, kinds, policies and costs. Default: all.",
            autocompletion=lambda incomplete: [
                each
                for each in ("pipelines", "kinds", "policies", "costs")
                if each.startswith(incomplete)
            ],
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List pipelines, node kinds, policies and costs profiles, with one line for each.

    \b
      stepweave list
      stepweave list pipelines --json
    """
    from .listing import listing

    listing(section, json)


@app.command()
def doctor() -> None:
    """Print what this machine and this installation support.

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
    To use it, write this as the first line of a config:
      # yaml-language-server: $schema=stepweave.schema.json
    """
    import json

    from ..configs.schema import json_schema

    print(json.dumps(json_schema(), indent=2))


def main() -> None:
    """The console script."""
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a letter shows its number
            stream.reconfigure(errors="backslashreplace")
    raise_on_term()
    app()
