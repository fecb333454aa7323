"""`stepweave run`: generate for a batch of prompts."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any

from .reporting import INTERRUPTED, UNSOUND, say

if TYPE_CHECKING:
    from ..configs.prompts import PromptLine
    from ..configs.schema import PipelineConfig
    from ..requests.request import RequestOutput
    from ..serving.llm import LLM

_MAX_PAIRS = 4  # of timed runs that `--compare` makes, the first of which warms up
_ENOUGH_SECONDS = 10.0  # of comparing; a long job is compared once
_ONE_PRESS_SECONDS = 1.0  # a shell may signal the process and its group: still one Ctrl-C

OnProgress = Callable[[int, int], None]  # (requests done, tokens so far)


@dataclass
class Comparison:
    """The pipeline beside the synchronous serial loop on the same requests."""

    equal: bool
    ratios: list[float] = field(default_factory=list)

    @property
    def speed_ratio(self) -> float:
        """How many times faster than the synchronous loop: the median of paired runs."""
        return median(self.ratios[1:] or self.ratios)


def run(
    config: PipelineConfig, lines: Sequence[PromptLine], *, as_json: bool, compare: bool
) -> int:
    """Generate and print; 1 if a request failed, 130 if Ctrl-C ended it early."""
    from ..serving.llm import LLM, Interrupted
    from .results import print_json, print_text

    llm = LLM(pipeline=config)
    if config.captured:
        with _warming_up() as on_warm_up:
            llm.warm_up(on_warm_up)
    started = perf_counter()
    with cancelled_by_ctrl_c(llm) as interrupted, progress_bar(len(lines)) as on_progress:
        try:
            outputs = llm.generate(lines, on_progress=on_progress)
        except Interrupted as early:
            interrupted.append(perf_counter())
            outputs = early.outputs
    seconds = perf_counter() - started
    summary: dict[str, Any] = {
        **llm.summary(),
        "equal_to_synchronous": None,
        "speed_ratio": None,
    }
    if compare and not interrupted:
        found = _compared(llm, config, lines, outputs, seconds)
        summary["equal_to_synchronous"] = found.equal
        summary["speed_ratio"] = round(found.speed_ratio, 3)
    (print_json if as_json else print_text)(outputs, summary)
    if interrupted:
        done = sum(output.finish_reason in ("stop", "length") for output in outputs)
        say(f"interrupted: {done} of {len(lines)} requests were done")
        return INTERRUPTED
    unequal = summary["equal_to_synchronous"] is False
    return UNSOUND if unequal or any(output.error for output in outputs) else 0


def _compared(
    llm: LLM,
    config: PipelineConfig,
    lines: Sequence[PromptLine],
    outputs: Sequence[RequestOutput],
    seconds: float,
) -> Comparison:
    """Run the synchronous plan too. Timed in pairs, one after the other, as machines drift."""
    from ..serving.llm import LLM
    from ..serving.pipeline import synchronous

    plain = LLM(pipeline=synchronous(config))
    reference, took = _timed(plain, lines)
    found = Comparison(_counted(reference) == _counted(outputs), [took / seconds])
    began = perf_counter()
    while len(found.ratios) < _MAX_PAIRS and seconds + took < _ENOUGH_SECONDS:
        if perf_counter() - began > _ENOUGH_SECONDS:
            break
        again, seconds = _timed(llm, lines)
        reference, took = _timed(plain, lines)
        found.equal = found.equal and _counted(reference) == _counted(again)
        found.ratios.append(took / seconds)
    return found


def _timed(llm: LLM, lines: Sequence[PromptLine]) -> tuple[Sequence[RequestOutput], float]:
    started = perf_counter()
    outputs = llm.generate(lines)
    return outputs, perf_counter() - started


def _counted(outputs: Sequence[RequestOutput]) -> list[tuple[Any, ...]]:
    """What must not depend on how the plan was run."""
    return [(tuple(o.token_ids), o.text, o.finish_reason, o.drafted, o.accepted) for o in outputs]


@contextmanager
def cancelled_by_ctrl_c(llm: LLM) -> Iterator[list[float]]:
    """The first Ctrl-C lets generation end soon and in order; a later one ends it where it is.

    Yields when it was interrupted: an empty list if it was not.
    """
    interrupted: list[float] = []

    def cancel(number: int, frame: FrameType | None) -> None:
        now = perf_counter()
        if not interrupted:
            interrupted.append(now)
            llm.cancel()
        elif now - interrupted[0] > _ONE_PRESS_SECONDS:
            signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _warming_up() -> Iterator[Callable[[int, int, str], None] | None]:
    """Graphs are captured before the clock starts; a bar says how far that is."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("capturing graphs"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, of, what: bar.update(task, completed=done, total=of, description=what)


@contextmanager
def progress_bar(total: int) -> Iterator[OnProgress | None]:
    """On stderr, and only where somebody looks at it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("generating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]} tokens"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, tokens=0)
        yield lambda done, tokens: bar.update(task, completed=done, tokens=tokens)
