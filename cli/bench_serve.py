"""`stepweave bench serve`: load an endpoint and print what came of it."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

from ..loadgen.load import Result
from ..loadgen.progress import progress_bar
from ..loadgen.served import serve_bench
from ..loadgen.session import Session
from ..loadgen.table import table
from .bench_load import check_files, load_of, target_of
from .output import save
from .reporting import UNSOUND, say
from .signals import Interruption, cancelled_by_signals

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from typing import TypeVar

    from .bench import LoadOptions, ServeBenchOptions

    T = TypeVar("T")

MOST_ERRORS = 5  # told one by one


def bench_serve(asked: ServeBenchOptions) -> int:
    """1 if a request failed, 130 or 143 if Ctrl-C or TERM ended it early."""
    check_files(asked.output, asked.plot)
    load = load_of(asked)
    target = target_of(asked, asked, asked.base_url, "--base-url")
    with progress_bar(load.count) as on_progress:
        session = Session(on_progress=on_progress)
        result, interruption = until_signal(
            session, lambda: serve_bench(session, target, asked.model, load)
        )
    report(result, asked, "Serving Benchmark Result", asked.plot)
    return status(result, interruption)


def until_signal(session: Session, run: Callable[[], Awaitable[T]]) -> tuple[T, Interruption]:
    """Run it; the first Ctrl-C or TERM ends the load, or the program where no load runs."""

    async def main() -> T:
        session.begin()
        return await run()

    with cancelled_by_signals(session.stop) as interruption:
        try:
            return asyncio.run(main()), interruption
        except asyncio.CancelledError:
            raise interruption.exception from None


def report(result: Result, asked: LoadOptions, heading: str, plot: Path | None) -> None:
    """Print the table or the JSON object, and write the files, also where the one cannot be done.

    Failures are told on stderr.
    """
    try:
        if asked.json:
            print(json.dumps(result.to_json(requests=False)))
        else:
            limit, rate = asked.max_concurrency, asked.request_rate
            print(table(result.summary, f" {heading} ", limit, rate, result.speculation))
        sys.stdout.flush()
    finally:
        _write_files(result, asked, plot)
    for note in result.notes:
        say(f"note: {note}")
    tell_errors(result)


def _write_files(result: Result, asked: LoadOptions, plot: Path | None) -> None:
    if asked.output is not None:
        save(asked.output, json.dumps(result.to_json(requests=True), indent=2) + "\n")
        say(f"wrote {asked.output}")
    if plot is not None:
        from ..loadgen.plot import plot_svg

        save(plot, plot_svg(result))
        say(f"wrote {plot}")


def tell_errors(result: Result, where: str = "") -> None:
    """The most frequent ones, each with how often it came."""
    errors = result.summary.errors
    for message, count in list(errors.items())[:MOST_ERRORS]:
        say(f"{where}failed, {count} of {len(result.ran.outcomes)}: {message[:500]}")
    if len(errors) > MOST_ERRORS:
        say(f"and {len(errors) - MOST_ERRORS} other messages; -o FILE has all of them")


def status(result: Result, interruption: Interruption) -> int:
    """The exit status, and a line on what ended it early."""
    if interruption:
        sent = len(result.ran.outcomes)
        say(f"{interruption.word}: {sent} of {result.load.count} requests were sent")
        return interruption.code
    return UNSOUND if result.summary.failed else 0
