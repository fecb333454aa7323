"""A verb is a class: fields are the options, the docstring is the help, a call gives the status."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer import Argument, Option
from typer.testing import CliRunner

from stepweave.cli.reporting import Exit
from stepweave.cli.verb import verb

group = typer.Typer(rich_markup_mode=None)


@verb(group, "add")
class AddOptions:
    """Add numbers, and exit with the sum.

    \b
      add 1 2
    """

    numbers: Annotated[list[int], Argument(metavar="N…", help="What to add.")]
    negate: Annotated[bool, Option("--negate", help="Add their negatives.")] = False
    most: Annotated[int, Option(min=1, help="The largest sum.")] = 100

    def __call__(self) -> int:
        return min(self.most, sum(self.numbers) * (-1 if self.negate else 1))


@verb(group, "nothing")
class NothingOptions:
    """Do nothing."""

    def __call__(self) -> None:
        return None


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["add", "1", "2"], 3), (["add", "7", "--most", "5"], 5), (["add", "0"], None)],
)
def test_the_result_of_a_verb_is_its_exit_status(arguments: list[str], status: int | None) -> None:
    found = CliRunner().invoke(group, arguments)
    if status is None:
        assert found.exception is None
    else:
        assert isinstance(found.exception, Exit)
        assert found.exception.code == status


def test_a_verb_without_a_result_succeeds() -> None:
    assert CliRunner().invoke(group, ["nothing"]).exit_code == 0


def test_options_are_those_of_the_class_in_its_order() -> None:
    said = CliRunner().invoke(group, ["add", "--help"]).output
    assert "Add numbers, and exit with the sum." in said
    assert 0 < said.index("N…") < said.index("--negate") < said.index("--most")
    assert "What to add." in said
    assert "[default: 100; x>=1]" in said
    assert CliRunner().invoke(group, ["add", "1", "--most", "0"]).exit_code == 2
    assert CliRunner().invoke(group, ["add"]).exit_code == 2


def test_an_object_of_the_class_runs_without_a_command_line() -> None:
    assert AddOptions(numbers=[1, 2], negate=True)() == -3
