"""A progress bar on stderr, for whoever looks at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..requests.totals import Totals


def watched() -> bool:
    """Whether somebody looks: stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def progress_bar(total: int, totals: Totals) -> Iterator[Callable[[int, int], None]]:
    """Shows how many of `total` prompts have ended: call what this yields with (ended, tokens).

    Where there are drafts it shows how many tokens they come to, by what is added to `totals`.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("generating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=watched()) as bar:
        task, before = bar.add_task("", total=total, said="0 tokens"), totals.copy()

        def show(ended: int, tokens: int) -> None:
            length = totals.acceptance_length(before)
            drafts = "" if length is None else f", {length:.2f} per window of drafts"
            bar.update(task, completed=ended, said=f"{tokens} tokens{drafts}")

        yield show
