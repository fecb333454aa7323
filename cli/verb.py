"""A verb of the command line, defined once: a class whose fields are its parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter, Signature
from typing import Any, TypeVar, dataclass_transform, get_type_hints

import typer

from .reporting import Exit

V = TypeVar("V", bound=Callable[[], int | None])


@dataclass_transform(frozen_default=True, kw_only_default=True)
def verb(group: typer.Typer, name: str) -> Callable[[type[V]], type[V]]:
    """Make a class a frozen dataclass and a verb of `group`.

    Its fields, each `Annotated` with an option or argument of typer, are the parameters in the
    order of `--help`; those of a frozen dataclass that it extends come first. Its docstring is the
    help, and calling an object runs the verb; the result is the exit status, None for 0. So what a
    verb takes stands in one place, with its types.
    """

    def register(options: type[V]) -> type[V]:
        # neither comparison nor repr: every start pays for them
        made: Any = dataclass(frozen=True, kw_only=True, eq=False, repr=False)(options)
        hints = get_type_hints(made, include_extras=True)

        def command(**given: Any) -> None:
            if status := made(**given)():
                raise Exit(status)

        parameters = [
            Parameter(
                each.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if each.default is MISSING else each.default,
                annotation=hints[each.name],
            )
            for each in fields(made)
        ]
        command.__doc__ = made.__doc__
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        group.command(name)(command)
        return made  # type: ignore[no-any-return]

    return register
