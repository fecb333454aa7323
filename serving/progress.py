"""A progress bar on stderr, for whoever looks at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def watched() -> bool:
    """Whether somebody looks: stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[int, int], None]]:
    """Shows how many of `total` prompts have ended: call what this yields with (ended, tokens)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("generating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]} tokens"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=watched()) as bar:
        task = bar.add_task("", total=total, tokens=0)

        def show(ended: int, tokens: int) -> None:
            bar.update(task, completed=ended, tokens=tokens)

        yield show
