"""`stepweave trace`: run a pipeline, note when every op ran, and hold it against the plan."""

from __future__ import annotations

import json
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
from .output import check_writable, save, writing
from .planned import plan_of
from .reporting import UNSOUND, say
from .settings import of_model
from .trace_summary import summary
from .wrapping import columns

if TYPE_CHECKING:
    from ..configs.schema import PipelineConfig
    from ..serving.llm import LLM, Traced
    from .verbs import TraceOptions


def trace(asked: TraceOptions) -> int:
    """Run or simulate, write, print. 1 if a request failed, 130 or 143 if interrupted."""
    settings = of_model(asked.settings, asked.model)
    for path in (asked.output, asked.html):
        if path is not None:
            check_writable(path)
    source = load(asked.config, settings)
    config, plan = source.config, plan_of(source, settings, None, None).plan
    if isinstance(config, AbstractGraph):
        if asked.prompt or asked.prompts is not None or asked.max_tokens is not None:
            raise ConfigError.at(
                Mark(asked.config), "is an abstract graph: it is simulated, and takes no prompts"
            )
        found, code = Trace.simulation(plan, asked.step_count), 0
    elif asked.steps is not None:
        raise ConfigError.at(
            Mark("--steps"), f"{asked.config} is run: there are as many steps as its prompts take"
        )
    else:
        found, code = _run(config, asked)
    _write(found, asked)
    if asked.json:
        print(json.dumps(found.to_json()))
    else:
        print("\n".join(summary(found, asked.config, columns())))
    return code


def _run(config: PipelineConfig, asked: TraceOptions) -> tuple[Trace, int]:
    from .requested import requested
    from .signals import cancelled_by_signals

    lines = requested(config, asked)
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


def _traced(llm: LLM, run: Traced, asked: TraceOptions) -> Trace:
    """A run that is too short to judge is written all the same."""
    executor = llm.config.executor
    try:
        return Trace.of_run(
            llm.plans, run.report, requests=run.requests, counts=run.steps, executor=executor
        )
    except StepweaveError:
        if len(run.report.parts) > 1:
            raise
        timeline = measured(llm.plan, run.report, serial=executor == "serial")
        began = run.report.began_s
        with writing(asked.output) as stream:
            write_perfetto(stream, llm.plan, timeline, requests=run.requests, began_s=began)
        say(f"wrote {asked.output}, without the plan beside it")
        raise


def _write(found: Trace, asked: TraceOptions) -> None:
    with writing(asked.output) as stream:
        write_perfetto(
            stream,
            found.plan,
            found.run,
            planned=found.planned,
            requests=found.requests,
            began_s=found.began_s,
            simulated=found.simulated,
            parts=found.parts,
        )
    say(f"wrote {asked.output}: open it at ui.perfetto.dev, or in chrome://tracing")
    if asked.html is not None:
        page = timeline_page(found, title=asked.config, steps=asked.steps_shown)
        save(asked.html, page)
        say(f"wrote {asked.html}")
