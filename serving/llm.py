"""The front door of the decode engine: prompts in, texts out.

llm = LLM("path/to/model", pipeline="async")
for output in llm.generate(["Once upon a time"], SamplingParams(max_tokens=40)):
    print(output.text)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..configs.errors import ConfigError
from ..configs.load import load_config
from ..configs.prompts import PromptLine
from ..configs.schema import PipelineConfig
from ..executors.report import RunReport
from ..graph.plan import Plan
from ..requests.request import RequestError, RequestOutput, SamplingParams
from ..requests.spans import RequestLog, RequestSpan
from ..requests.step_counts import StepCount
from ..structured.backend import CompiledGrammar
from ..structured.grammar import GrammarError
from .engine import EngineError
from .intake import Intake, Prompt, named, told
from .loading import load_engine
from .runs import Job, Listeners, OnOutput, OnProgress, OnText, Run
from .turns import Turns
from .warm_up import warm_up

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Interrupted(KeyboardInterrupt):
    """A run was interrupted; `outputs` has what was settled, the rest is "cancelled"."""

    def __init__(self, outputs: list[RequestOutput]) -> None:
        super().__init__("interrupted")
        self.outputs = outputs


@dataclass(frozen=True)
class Traced:
    """What a traced run came to: `report` has the events, for `stepweave.executors.measured`."""

    outputs: list[RequestOutput]
    report: RunReport
    requests: tuple[RequestSpan, ...] = ()
    steps: tuple[StepCount, ...] = ()


class LLM:
    """A loaded pipeline.

    `model` replaces the pipeline's model: a directory, a hub name, or a `CausalLM`. `pipeline` is
    a config, a path or a shipped name; `overrides` are dotted keys, as for `--set`.

    Raises `ConfigError`, `GraphError`, `ModelError` or `EngineError`.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        pipeline: PipelineConfig | str | Path = "quickstart",
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(pipeline, PipelineConfig):
            loaded = load_config(pipeline, overrides)
            if not isinstance(loaded, PipelineConfig):
                raise EngineError(f"{pipeline} is an abstract graph: there is nothing to run in it")
            pipeline = loaded
        if model is not None:
            renamed = pipeline.model.model_copy(update={"name": str(model)})
            pipeline = pipeline.model_copy(update={"model": renamed})
        self.config = pipeline
        self.engine = load_engine(pipeline)
        self._intake = Intake(pipeline, self.engine)
        self.tokenizer = self._intake.tokenizer
        self._table = self.engine.new_table()  # lives on, and its prefix cache with it
        self._uids = count()
        self._turns = Turns()
        self._running: Run | None = None

    @property
    def plan(self) -> Plan:
        """The plan that the engine runs."""
        return self.engine.plan

    def close(self) -> None:
        """End the call that is being served, refuse those that wait, and end the processes that
        compile grammars. The garbage collector does the last otherwise.
        """
        self._turns.close()
        self.cancel()
        self._intake.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer, that of transformers."""
        return self.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_text: OnText | None = None,
        on_progress: OnProgress | None = None,
        on_output: OnOutput | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Generate for every prompt; outputs in the order of the prompts.

        A prompt is a text, a line as in a prompts file, or a list of token ids. `params` are for
        prompts that are texts or ids, one for all or one for each; a line has its own.

        `on_text(id, piece)` streams settled text (with n > 1 of each completion, as `id/index`),
        `on_output(output)` gets each output once, as soon as its prompt has ended,
        `on_progress(ended, tokens)` counts prompts and tokens. They run on threads of the engine,
        one at a time, and cannot call this LLM except `cancel`. What `on_text` raises ends its
        request with an error; what the others raise ends the call, and is raised by it.
        `progress`: show a bar on stderr; None: if that is a terminal and nobody listens.

        A request that cannot be served has an `error`, and the others go on; one whose grammar
        takes long to compile joins them later. Called from several threads, one call is served
        at a time, in the order in which they came. Raises `Interrupted` on Ctrl-C, with what was
        settled, and `EngineError` after `close`.
        """
        listeners = Listeners(on_text, on_progress, on_output)
        return self._generate(prompts, params, listeners, progress, traced=False).outputs

    def traced(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_text: OnText | None = None,
        on_progress: OnProgress | None = None,
        on_output: OnOutput | None = None,
        progress: bool | None = None,
    ) -> Traced:
        """The same, and when each op of each step ran, and what each request waited for.

        Noting this takes two readings of the clock per op.
        """
        listeners = Listeners(on_text, on_progress, on_output)
        return self._generate(prompts, params, listeners, progress, traced=True)

    def _generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        listeners: Listeners,
        progress: bool | None,
        *,
        traced: bool,
    ) -> Traced:
        many = _each(prompts)
        each_params = _for_each(params, len(many))
        jobs = [Job(*named(prompt, index)) for index, prompt in enumerate(many)]
        with self._turns.turn(), listeners.shown(progress, len(jobs)) as listening:
            running = Run(self._table, jobs, listening, self._turns)
            self._running = running
            try:
                return self._serve(running, list(zip(jobs, many, each_params, strict=True)), traced)
            finally:
                self._running = None
                self.engine.totals.requests += len(jobs)
                self.engine.totals.failed_requests += sum(job.failed for job in jobs)

    def _serve(
        self, running: Run, asked: Sequence[tuple[Job, Prompt, SamplingParams | None]], traced: bool
    ) -> Traced:
        """Take in, run, and gather, whose turn it is."""
        report, log = RunReport(steps=0), None
        try:
            waiting = [future for each in asked if (future := self._take_in(running, *each))]
            log = RequestLog(running.requests) if traced else None
            running.table.log = log
            if running.start(waiting):
                report = self.engine.run(running.table, running.requests, trace=traced)
        except BaseException as error:
            running.cancel()  # what still waits for a grammar is not to be served later
            self._table = self.engine.new_table()
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(running.finish()) from None
            raise
        finally:
            running.table.log = None
        outputs = running.finish()
        if log is None:
            return Traced(outputs, report)
        return Traced(outputs, report, log.spans(), log.steps.all())

    def _take_in(
        self, running: Run, job: Job, prompt: Prompt, given: SamplingParams | None
    ) -> tuple[Job, Future[CompiledGrammar]] | None:
        """Make the job's requests, or note why not; its grammar, if it has one to wait for."""
        if running.cancelled:
            return None
        try:
            line = self._intake.read(prompt, job.id)
            job.prompt = told(line)
            asked = self._intake.params(line, given)
            job.requests = self._intake.requests(self._uids, job.id, job.prompt, line, asked)
            running.check(job)
            if asked.grammar is not None:
                return job, self._intake.grammar(asked.grammar, asked.reasoning)
        except (RequestError, GrammarError, ConfigError) as error:
            job.error = f"{error}"
        return None

    def warm_up(self, on_progress: Callable[[int, int, str], None] | None = None) -> None:
        """Capture all graphs that steady decoding needs; nothing, where there are none.

        `on_progress(done, of, what)` tells how far it is.
        """
        warm_up(self, on_progress)

    def cancel(self) -> None:
        """End the call that is being served now (from a signal handler or another thread).

        It returns soon with what was settled; requests that had not ended are "cancelled". Calls
        of other threads that wait for their turn are served next, as if nothing had happened.
        """
        running = self._running
        if running is not None:
            running.cancel()

    def summary(self) -> dict[str, Any]:
        """Totals over all calls of `generate`, and the plan they ran on."""
        totals, plan = self.engine.totals, self.plan
        seconds = totals.seconds
        return {
            "tokens": totals.tokens,
            "steps": totals.steps,
            "drafted": totals.drafted,
            "accepted": totals.accepted,
            "preemptions": totals.preemptions,
            "requests": totals.requests,
            "failed_requests": totals.failed_requests,
            "failed_steps": totals.failed_steps,
            "prompt_tokens": totals.prompt_tokens,
            "cached_tokens": totals.cached_tokens,
            "seconds": seconds,
            "tokens_per_second": totals.tokens / seconds if seconds > 0 else 0.0,
            "executor": self.engine.executor,
            "depth": self.config.depth,
            "waits": len(plan.waits),
            "slots": dict(plan.slots),
            "notes": self.engine.notes(),
            **self._synthetic,
        }

    @property
    def _synthetic(self) -> dict[str, Any]:
        """A label, where drafts are kept at given rates: what comes out is not the model's."""
        rates = self.engine.synthetic_acceptance
        return {} if rates is None else {"synthetic_acceptance": list(rates)}


def _each(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as many. A sequence of numbers is one prompt of token ids."""
    if isinstance(prompts, str | Mapping | PromptLine):
        return [prompts]
    found = list(prompts)
    if found and all(isinstance(each, int) for each in found):
        return [cast(Sequence[int], found)]
    return cast(list[Prompt], found)


def _for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams | None]:
    """One set of parameters per prompt. Raises `ValueError` if there are more or fewer."""
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise ValueError(f"{count} prompts, but {len(params)} sets of sampling parameters")
    return params
