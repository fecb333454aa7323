"""command-line.md: verbs, options and examples, from the functions that take them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from sections.markdown import table

from stepweave.cli.main import app


@dataclass(frozen=True)
class Parameter:
    """An argument or option of a verb."""

    name: str
    type: Any
    info: Any  # OptionInfo or ArgumentInfo of typer
    default: Any

    @property
    def is_option(self) -> bool:
        return isinstance(self.info, typer.models.OptionInfo)

    @property
    def spelled(self) -> tuple[str, ...]:
        """`--output`, `-o`; both names of a switch."""
        # In `Annotated[…]` typer keeps the first name where a default would stand.
        declared = (self.info.default, *(self.info.param_decls or ()))
        names = [name for each in declared if isinstance(each, str) for name in each.split("/")]
        named = [name for name in names if name.startswith("-")]
        return tuple(named) or (f"--{self.name.replace('_', '-')}",)


@cache
def verbs() -> dict[str, Callable[..., Any]]:
    """The function of each verb by its words, `graph show`, in the order of `--help`."""
    return dict(_inside(app, ""))


def _inside(group: typer.Typer, name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for command in group.registered_commands:
        assert command.callback is not None
        word = command.name or command.callback.__name__.replace("_", "-")
        yield f"{name} {word}".strip(), command.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from _inside(inner.typer_instance, f"{name} {inner.name}".strip())


def parameters(verb: str) -> list[Parameter]:
    """In the order of its function."""
    function = verbs()[verb]
    hints = get_type_hints(function, include_extras=True)
    found = []
    for name, each in inspect.signature(function).parameters.items():
        kind, info = _annotated(hints[name])
        found.append(Parameter(name, kind, info, each.default))
    return found


def _annotated(hint: Any) -> tuple[Any, Any]:
    """The type and what typer is told of it; an `Annotated[…] | None` has it one level down."""
    if get_origin(hint) is Annotated:
        kind, info, *_ = get_args(hint)
        return kind, info
    return next(_annotated(part) for part in get_args(hint) if part is not type(None))


def overview() -> str:
    """A row for each verb."""
    rows = [
        (f"[`stepweave {verb}`](#{_slug(heading(verb))})", _said(function)[0])
        for verb, function in verbs().items()
    ]
    return table(("verb", "does"), rows)


def heading(verb: str) -> str:
    """The heading of a verb's section, with its arguments."""
    takes = [
        each.info.metavar or each.name.upper() for each in parameters(verb) if not each.is_option
    ]
    return " ".join(["stepweave", verb, *takes])


def options(verb: str) -> str:
    """What `--help` says of one verb: what it does, its options, its examples."""
    summary, rest = _said(verbs()[verb])
    parts = [summary]
    rows = [(_spelled(each), _help(each)) for each in parameters(verb) if each.is_option]
    if rows:
        parts.append(table(("option", "meaning"), rows))
    if rest:
        parts.append(f"```text\n{rest}\n```")
    return "\n\n".join(parts)


def _spelled(option: Parameter) -> str:
    takes = _metavar(option)
    return ", ".join(f"`{name}{takes}`" for name in option.spelled)


def _metavar(option: Parameter) -> str:
    if option.info.metavar:
        return f" {option.info.metavar}"
    kinds = [each for each in (*get_args(option.type), option.type) if isinstance(each, type)]
    if bool in kinds:
        return ""
    choices = next((each for each in kinds if issubclass(each, Enum)), None)
    if choices is not None:
        return " " + "|".join(str(each.value) for each in choices)
    return " N" if int in kinds else " X" if float in kinds else " TEXT"


def _help(option: Parameter) -> str:
    said = option.info.help or ""
    if option.default in (inspect.Parameter.empty, ...):
        return f"{said} Required."
    default = option.default.value if isinstance(option.default, Enum) else option.default
    return said if default is None or default is False else f"{said} Default: `{default}`."


def _said(function: Callable[..., Any]) -> tuple[str, str]:
    """The first paragraph of the help, and the rest of it as it is laid out."""
    first, _, rest = (inspect.getdoc(function) or "").partition("\b\n")
    return " ".join(first.split()), re.sub(r"(?m)^\b$", "", rest).strip("\n")


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
