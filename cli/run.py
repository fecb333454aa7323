"""`stepweave run`: generate for a batch of prompts."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .reporting import UNSOUND, say
from .signals import cancelled_by_signals

if TYPE_CHECKING:
    from ..configs.prompts import PromptLine
    from ..configs.schema import PipelineConfig
    from ..requests.request import RequestOutput
    from ..serving.llm import LLM

_MAX_PAIRS = 4  # of timed runs that `--compare` makes, the first of which warms up
_ENOUGH_SECONDS = 10.0  # of comparing; a long job is compared once


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
    config: PipelineConfig,
    lines: Sequence[PromptLine],
    *,
    as_json: bool,
    compare: bool,
    ordered: bool = False,
) -> int:
    """Generate and print; 1 if a request failed, 130 or 143 if Ctrl-C or TERM ended it early.

    As JSON, each output is written as soon as its request has ended; `ordered`: all at the end,
    in the order of `lines`.
    """
    from ..serving.llm import LLM, Interrupted
    from .results import print_text, write_json, write_summary

    llm = LLM(pipeline=config)
    if config.captured:
        with _warming_up() as on_warm_up:
            llm.warm_up(on_warm_up)
    at_once = as_json and not ordered
    started = perf_counter()
    with cancelled_by_signals(llm.cancel) as interruption:
        try:
            outputs = llm.generate(lines, on_output=write_json if at_once else None)
        except Interrupted as early:
            interruption.note(signal.SIGINT)
            outputs = early.outputs
    seconds = perf_counter() - started
    summary: dict[str, Any] = {
        **llm.summary(),
        "equal_to_synchronous": None,
        "speed_ratio": None,
    }
    if compare and not interruption:
        found = _compared(llm, config, lines, outputs, seconds)
        summary["equal_to_synchronous"] = found.equal
        summary["speed_ratio"] = round(found.speed_ratio, 3)
    if as_json:
        for output in () if at_once else outputs:
            write_json(output)
        write_summary(summary)
    else:
        print_text(outputs, summary)
    if interruption:
        done = sum(output.finish_reason in ("stop", "length") for output in outputs)
        say(f"{interruption.word}: {done} of {len(lines)} requests were done")
        return interruption.code
    unequal = summary["equal_to_synchronous"] is False
    return UNSOUND if unequal or any(output.failed for output in outputs) else 0


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
    outputs = llm.generate(lines, progress=False)
    return outputs, perf_counter() - started


def _counted(outputs: Sequence[RequestOutput]) -> list[tuple[Any, ...]]:
    """What must not depend on how the plan was run."""
    return [(tuple(o.token_ids), o.text, o.finish_reason, o.drafted, o.accepted) for o in outputs]


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
