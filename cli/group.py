"""The root of the command line: `--version`, `--debug`, and mistakes told in one line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .reporting import Exit, one_line_errors, short, unwritable

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
    if debug:  # what fails a request alone is logged
        logging.basicConfig(format="%(message)s", level=logging.WARNING)
