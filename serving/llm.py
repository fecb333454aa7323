"""The front door of the decode engine: prompts in, texts out.

llm = LLM("path/to/model", pipeline="async")
for output in llm.generate(["Once upon a time"], SamplingParams(max_tokens=40)):
    print(output.text)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, cast

from ..configs.errors import ConfigError
from ..configs.load import load_config
from ..configs.prompts import PromptLine
from ..configs.schema import PipelineConfig
from ..executors.report import RunReport
from ..graph.plan import Plan
from ..requests.request import Request, RequestError, RequestOutput, SamplingParams
from ..requests.spans import RequestLog, RequestSpan
from ..requests.step_counts import StepCount
from ..requests.table import RequestTable
from ..structured.backend import CompiledGrammar
from ..structured.grammar import GrammarError
from .engine import EngineError
from .intake import Intake, Prompt, named
from .loading import load_engine
from .warm_up import warm_up


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
        self._running: _Run | None = None

    @property
    def plan(self) -> Plan:
        """The plan that the engine runs."""
        return self.engine.plan

    def close(self) -> None:
        """End the processes that compile grammars. The garbage collector does it otherwise."""
        self._intake.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_text: Callable[[str, str], None] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[RequestOutput]:
        """Generate for every prompt; outputs in the order of the prompts.

        A prompt is a text, a line as in a prompts file, or a list of token ids. `params` are for
        prompts that are texts or ids, one for all or one for each; a line has its own.
        `on_text(id, piece)` streams settled text (with n > 1 of each completion, as `id/index`),
        `on_progress(ended, tokens)` counts prompts and tokens; both run on the driver's thread.

        A request that cannot be served has an `error`, and the others go on; one whose grammar
        takes long to compile joins them later. Raises `Interrupted` on Ctrl-C, with what was
        settled.
        """
        return self._generate(prompts, params, on_text, on_progress, None).outputs

    def traced(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_text: Callable[[str, str], None] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Traced:
        """The same, and when each op of each step ran, and what each request waited for.

        Noting this takes two readings of the clock per op.
        """
        return self._generate(prompts, params, on_text, on_progress, RequestLog())

    def _generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        on_text: Callable[[str, str], None] | None,
        on_progress: Callable[[int, int], None] | None,
        log: RequestLog | None,
    ) -> Traced:
        many = _each(prompts)
        each_params = _for_each(params, len(many))
        jobs = [_Job(*named(prompt, index)) for index, prompt in enumerate(many)]
        running = _Run(self._table, jobs, on_progress)
        waiting: list[tuple[_Job, Future[CompiledGrammar]]] = []
        for job, prompt, given in zip(jobs, many, each_params, strict=True):
            try:
                asked = self._intake.params(prompt, given)
                job.requests = self._intake.requests(self._uids, job.id, job.prompt, prompt, asked)
                running.check(job)
                if asked.structured_outputs is not None:
                    future = self._intake.grammar(asked.structured_outputs, asked.reasoning)
                    waiting.append((job, future))
            except (RequestError, GrammarError, ConfigError) as error:
                job.fail(f"{error}")
            running.follow(job, on_text)
        self._running = running
        report = RunReport(steps=0)
        try:
            if log is not None:
                log.asked(running.requests)
            running.table.log = log
            running.start(waiting)
            if running.requests:
                report = self.engine.run(running.table, running.requests, trace=log is not None)
        except BaseException as error:
            running.cancel()  # what still waits for a grammar is not to be served later
            self._table = self.engine.new_table()
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted([job.output() for job in jobs]) from None
            raise
        finally:
            self._running = None
            running.table.log = None
        outputs = [job.output() for job in jobs]
        if log is None:
            return Traced(outputs, report)
        return Traced(outputs, report, log.spans(), log.steps.all())

    def warm_up(self, on_progress: Callable[[int, int, str], None] | None = None) -> None:
        """Capture all graphs that steady decoding needs; nothing, where there are none.

        `on_progress(done, of, what)` tells how far it is.
        """
        warm_up(self, on_progress)

    def cancel(self) -> None:
        """End what `generate` is doing now (from a signal handler or another thread).

        It returns soon with what was settled; requests that had not ended are "cancelled".
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
            "failures": totals.failures,
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


@dataclass
class _Job:
    """One prompt of a run: its requests (n of them), or why there are none."""

    id: str
    prompt: str
    requests: list[Request] = field(default_factory=list)
    error: str | None = None

    def fail(self, error: str) -> None:
        self.error = error

    @property
    def ended(self) -> bool:
        return self.error is not None or all(request.phase == "done" for request in self.requests)

    def output(self) -> RequestOutput:
        if self.error is not None:
            return RequestOutput(self.id, self.prompt, "", (), "error", error=self.error)
        choices = tuple(request.output() for request in self.requests)
        if len(choices) == 1:
            return choices[0]
        return replace(choices[0], id=self.id, choices=choices)


class _Run:
    """One call of `generate`: what is in it, and what of it still waits for a grammar."""

    def __init__(
        self,
        table: RequestTable,
        jobs: Sequence[_Job],
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self.table = table
        self._jobs = jobs
        self._on_progress = on_progress
        self._tokens = 0
        self._open = list(jobs)  # not known to have ended
        self._uncompiled: dict[int, _Job] = {}  # by id(), each with one opening of the table
        self._lock = threading.Lock()

    @property
    def requests(self) -> list[Request]:
        """Every request that is to be served, whether its grammar is there or not."""
        return [request for job in self._jobs if job.error is None for request in job.requests]

    def check(self, job: _Job) -> None:
        """Raises `RequestError` for what this engine can never serve."""
        first = job.requests[0]
        refusal = self.table.refuse_reason(
            len(first.prompt_ids), first.params.max_tokens, first.window
        )
        if refusal is not None:
            raise RequestError(refusal)

    def follow(self, job: _Job, on_text: Callable[[str, str], None] | None) -> None:
        """Let the job's requests report what they settle."""
        for request in job.requests:
            if on_text is not None:
                request.on_text = _bound(on_text, request.id)
            if self._on_progress is not None:
                request.on_settled = self._settled

    def start(self, waiting: Sequence[tuple[_Job, Future[CompiledGrammar]]]) -> None:
        """Submit what is ready; the rest when its grammar is, from the thread that compiled it."""
        self._uncompiled = {id(job): job for job, _ in waiting}
        self._open = [job for job in self._jobs if not job.ended]
        for _ in waiting:
            self.table.open()
        self.table.submit_all(
            request
            for job in self._jobs
            if job.error is None and id(job) not in self._uncompiled
            for request in job.requests
        )
        for job, future in waiting:
            future.add_done_callback(_bind(self._compiled, job))

    def cancel(self) -> None:
        """End what runs, and do not wait for grammars any more."""
        with self._lock:
            while self._uncompiled:
                self._uncompiled.popitem()
                self.table.close()
        for request in self.requests:
            self.table.cancel(request.uid)

    def _compiled(self, job: _Job, future: Future[CompiledGrammar]) -> None:
        with self._lock:
            if self._uncompiled.pop(id(job), None) is None:
                return  # cancelled meanwhile
            try:
                grammar = future.result()
                for request in job.requests:
                    request.grammar = grammar
                self.table.submit_all(job.requests)
            except Exception as error:  # whatever a compiler raises concerns this request alone
                job.fail(f"{error}" or type(error).__name__)
            finally:
                self.table.close()

    def _settled(self, request: Request, new: int) -> None:
        self._tokens += new
        if request.phase == "done":  # nothing else need be counted anew
            self._open = [job for job in self._open if not job.ended]
        if self._on_progress is not None:
            self._on_progress(len(self._jobs) - len(self._open), self._tokens)


def _bind(
    callback: Callable[[_Job, Future[CompiledGrammar]], None], job: _Job
) -> Callable[[Future[CompiledGrammar]], None]:
    return lambda future: callback(job, future)


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


def _bound(on_text: Callable[[str, str], None], request_id: str) -> Callable[[str], None]:
    return lambda piece: on_text(request_id, piece)
