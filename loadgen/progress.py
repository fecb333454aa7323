"""How far a load is, for whoever looks at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .runner import Seen


@contextmanager
def progress_bar(total: int, what: str = "requests") -> Iterator[Callable[[Seen], None] | None]:
    """A bar on stderr while the block runs: call what this yields. None where nobody looks."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[running]} running, {task.fields[tokens]} tokens"),
        TextColumn("[red]{task.fields[failed]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, running=0, tokens=0, failed="")

        def show(seen: Seen) -> None:
            failed = f"{seen.failed} failed" if seen.failed else ""
            bar.update(
                task,
                completed=seen.ended,
                running=seen.running,
                tokens=seen.tokens,
                failed=failed,
            )

        yield show
