"""`stepweave trace`: run a pipeline, note when every op ran, and hold it against the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..configs.abstract import AbstractGraph
from ..configs.errors import ConfigError, Mark
from ..configs.load import load
from ..graph.errors import StepweaveError
from ..timelines.measured import measured
from ..views.perfetto import write_perfetto
from ..views.timeline_page import timeline_page
from ..views.traced import Trace
from .loading import loaded
from .output import place, save, writing
from .planned import plan_of
from .reporting import UNSOUND, say
from .trace_summary import summary
from .wrapping import columns

if TYPE_CHECKING:
    from ..configs.schema import PipelineConfig
    from ..serving.llm import LLM, Traced


@dataclass(frozen=True)
class Asked:
    """What of a trace does not come from the config."""

    output: Path
    html: Path | None
    steps_shown: int | None
    warm_up: int
    steps: int  # of a simulation
    as_json: bool


@dataclass(frozen=True)
class Prompts:
    """What the command line says of prompts; see `requested`."""

    texts: Sequence[str] = ()
    file: Path | None = None
    max_tokens: int | None = None

    @property
    def given(self) -> bool:
        return bool(self.texts) or self.file is not None or self.max_tokens is not None


def trace(name: str, overrides: Mapping[str, str], prompts: Prompts, asked: Asked) -> int:
    """Run or simulate, write, print. 1 if a request failed, 130 or 143 if interrupted."""
    for path in (asked.output, asked.html):
        if path is not None:
            place(path)
    source = load(name, overrides)
    config, plan = source.config, plan_of(source, overrides, None, None).plan
    if isinstance(config, AbstractGraph):
        if prompts.given:
            raise ConfigError.at(
                Mark(name), "is an abstract graph: it is simulated, and takes no prompts"
            )
        found, code = Trace.simulation(plan, asked.steps), 0
    else:
        found, code = _run(config, prompts, asked)
    _write(found, asked, name)
    if asked.as_json:
        print(json.dumps(found.to_json()))
    else:
        print("\n".join(summary(found, name, columns())))
    return code


def _run(config: PipelineConfig, prompts: Prompts, asked: Asked) -> tuple[Trace, int]:
    from .requested import requested
    from .signals import cancelled_by_signals

    lines = requested(config, prompts.texts, prompts.file, None, prompts.max_tokens)
    llm = loaded(config)
    from ..serving.llm import Interrupted  # only now: it takes seconds

    try:
        with cancelled_by_signals(llm.cancel) as interruption:
            for _ in range(asked.warm_up):
                if not interruption:
                    llm.generate(lines, progress=False)
            if interruption:
                raise interruption.exception
            before = llm.engine.totals.failed_steps
            try:
                run = llm.traced(lines)
            except Interrupted:
                raise KeyboardInterrupt from None
        failures = llm.engine.totals.failed_steps - before
    finally:
        llm.close()
    for output in run.outputs:
        if output.error is not None:
            say(f"request {output.id} failed: {output.error}")
    if failures:
        say(f"{failures} steps failed: the trace is of what came after the last of them")
    failed = any(output.failed for output in run.outputs)
    if not run.report.events:
        raise StepweaveError("no step was completed: there is nothing to trace")
    code = interruption.code if interruption else UNSOUND if failed else 0
    return _traced(llm, run, asked), code


def _traced(llm: LLM, run: Traced, asked: Asked) -> Trace:
    """A run that is too short to judge is written all the same."""
    executor = llm.config.executor
    try:
        return Trace.of(
            llm.plan, run.report, requests=run.requests, counts=run.steps, executor=executor
        )
    except StepweaveError:
        timeline = measured(llm.plan, run.report, serial=executor == "serial")
        began = run.report.began_s
        with writing(asked.output) as stream:
            write_perfetto(stream, llm.plan, timeline, requests=run.requests, began_s=began)
        say(f"wrote {asked.output}, without the plan beside it")
        raise


def _write(found: Trace, asked: Asked, name: str) -> None:
    with writing(asked.output) as stream:
        write_perfetto(
            stream,
            found.plan,
            found.run,
            planned=found.planned,
            requests=found.requests,
            began_s=found.began_s,
            simulated=found.simulated,
        )
    say(f"wrote {asked.output}: open it at ui.perfetto.dev, or in chrome://tracing")
    if asked.html is not None:
        page = timeline_page(found, title=name, steps=asked.steps_shown)
        save(asked.html, page)
        say(f"wrote {asked.html}")
