"""`stepweave run`: generate for a batch of prompts."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

from ..configs.errors import ConfigError, Mark
from .compare import compared
from .loading import loaded, warming_up
from .output import check_writable, writing
from .planned import runnable
from .ranks import as_ranks
from .reporting import UNSOUND, say
from .requested import requested
from .settings import of_model, with_ranks
from .signals import cancelled_by_signals

if TYPE_CHECKING:
    from ..configs.prompts import PromptLine
    from ..configs.schema import PipelineConfig
    from ..serving.llm import LLM
    from .verbs import RunOptions


def run(asked: RunOptions) -> int:
    """Generate and print; 1 if a request failed, 130 or 143 if Ctrl-C or TERM ended it early.

    As JSON, each output is written as soon as its request has ended; `--ordered`: all at the end,
    in the order of the requests. A file that is named gets all of it in place of standard output.
    """
    if asked.ordered and not asked.json:
        raise ConfigError.at(Mark("--ordered"), "orders JSON only: give --json as well")
    if asked.output is not None:
        check_writable(asked.output)
    strict = {"check": "strict"} if asked.strict else {}
    settings = with_ranks(of_model(asked.settings, asked.model), asked.tp, asked.pp)
    config = runnable(asked.config, settings | strict)
    if (status := as_ranks(config)) is not None:
        return status
    lines = requested(config, asked, asked.schema)
    if asked.output is None:
        return _run(asked, config, lines, sys.stdout)
    with writing(asked.output) as out:
        status = _run(asked, config, lines, out)
    say(f"wrote {asked.output}")
    return status


def _run(
    asked: RunOptions, config: PipelineConfig, lines: Sequence[PromptLine], out: TextIO
) -> int:
    with loaded(config) as llm:
        return _generated(asked, llm, config, lines, out)


def _generated(
    asked: RunOptions,
    llm: LLM,
    config: PipelineConfig,
    lines: Sequence[PromptLine],
    out: TextIO,
) -> int:
    from ..serving.llm import Interrupted  # only now: it takes seconds
    from .results import print_text, write_json, write_summary

    if config.captured:
        with warming_up() as on_warm_up:
            llm.warm_up(on_warm_up)
    at_once = asked.json and not asked.ordered
    started = perf_counter()
    with cancelled_by_signals(llm.cancel) as interruption:
        try:
            outputs = llm.generate(
                lines, on_output=partial(write_json, out=out) if at_once else None
            )
        except Interrupted as early:
            interruption.note(signal.SIGINT)
            outputs = early.outputs
    seconds = perf_counter() - started
    summary: dict[str, Any] = {
        **llm.summary(),
        "equal_to_synchronous": None,
        "speed_ratio": None,
    }
    if asked.compare and not interruption:
        summary |= compared(llm, config, lines, outputs, seconds).to_json()
    if asked.json:
        for output in () if at_once else outputs:
            write_json(output, out)
        write_summary(summary, out)
    else:
        print_text(outputs, summary, out)
    if interruption:
        done = sum(output.finish_reason in ("stop", "length") for output in outputs)
        say(f"{interruption.word}: {done} of {len(lines)} requests were done")
        return interruption.code
    unequal = summary["equal_to_synchronous"] is False
    return UNSOUND if unequal or any(output.failed for output in outputs) else 0
