"""The front door of the decode engine: prompts in, texts out.

llm = LLM("path/to/model", pipeline="async")
for output in llm.generate(["Once upon a time"], SamplingParams(max_tokens=40)):
    print(output.text)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..configs.errors import ConfigError
from ..configs.schema import PipelineConfig
from ..executors.report import RunReport
from ..graph.plan import Plan
from ..policies.acceptance import Synthetic
from ..requests.request import RequestError, RequestOutput, SamplingParams
from ..requests.spans import RequestLog, RequestSpan
from ..requests.step_counts import StepCount
from ..structured.backend import CompiledGrammar
from ..structured.grammar import GrammarError
from .arguments import Messages, Params, chosen, conversations, each_prompt, params_for_each
from .caller_queue import CallerQueue
from .intake import Intake, Prompt, id_and_text, prompt_text
from .loading import load_engine
from .runs import Job, Listeners, OnOutput, OnProgress, OnText, Run
from .streaming import Call, TextPiece, pieces
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
    """What a traced run came to: `report` has the events, for `stepweave.timelines.measured`."""

    outputs: list[RequestOutput]
    report: RunReport
    requests: tuple[RequestSpan, ...] = ()
    steps: tuple[StepCount, ...] = ()


class LLM:
    """A loaded pipeline.

    `model` replaces the pipeline's model: a directory or a hub name. `pipeline` is a config, a
    path or a shipped name; if not given, `async_grammar` for a model, and `quickstart` for the
    embedded one. `overrides` change keys of the pipeline's file: {"depth": 3},
    {"scheduler": {"max_rows": 4}} or {"scheduler.max_rows": 4}; a text is read as YAML, as `--set`
    does.

    Raises `ConfigError`, `GraphError`, `ModelError` or `EngineError`, and `TypeError` for
    arguments of a wrong type.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        pipeline: PipelineConfig | str | Path | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        pipeline = chosen(model, pipeline, overrides)
        self.config = pipeline
        self.engine = load_engine(pipeline)
        self._intake = Intake(pipeline, self.engine)
        self.tokenizer = self._intake.tokenizer
        self._table = self.engine.new_table()  # lives on, and its prefix cache with it
        self._uids = count()
        self._turns = CallerQueue()
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
        params: Params = None,
        *,
        on_text: OnText | None = None,
        on_progress: OnProgress | None = None,
        on_output: OnOutput | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Generate for every prompt; outputs in the order of the prompts.

        A prompt is a text, a mapping as a line of a prompts file, or a list of token ids.
        `params` are `SamplingParams`, or a mapping of its arguments: one for all prompts, or a
        list with one for each. What a line says itself goes before.

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
        many = each_prompt(prompts)
        each_params = params_for_each(params, len(many))
        return self._generate(many, each_params, listeners, progress).outputs

    def chat(
        self,
        messages: Messages,
        params: Params = None,
        *,
        on_text: OnText | None = None,
        on_progress: OnProgress | None = None,
        on_output: OnOutput | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """`generate` for one conversation, or for a list of them.

        A conversation is a list of messages, {"role": "user", "content": "…"}, which goes through
        the model's chat template. A content is a text, or a list of {"type": "text", "text": …};
        special tokens in it are text.
        """
        return self.generate(
            conversations(messages),
            params,
            on_text=on_text,
            on_progress=on_progress,
            on_output=on_output,
            progress=progress,
        )

    def stream(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None
    ) -> Iterator[TextPiece]:
        """`generate` as an iterator: pieces of text as they are settled, and each output.

        The call begins when the first piece is asked for, and goes on in a thread of its own;
        it is cancelled when the iterator is closed.
        """
        many = each_prompt(prompts)
        each_params = params_for_each(params, len(many))
        call = Call()

        def serve(listeners: Listeners) -> None:
            self._generate(many, each_params, listeners, progress=False, call=call)

        return pieces(call, serve)

    def traced(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
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
        many = each_prompt(prompts)
        each_params = params_for_each(params, len(many))
        return self._generate(many, each_params, listeners, progress, traced=True)

    def _generate(
        self,
        many: Sequence[Prompt],
        params: Sequence[SamplingParams | None],
        listeners: Listeners,
        progress: bool | None,
        *,
        traced: bool = False,
        call: Call | None = None,
    ) -> Traced:
        """Wait for a turn, and serve; `call` is told when it begins."""
        jobs = [Job(*id_and_text(prompt, index)) for index, prompt in enumerate(many)]
        with self._turns.turn(), listeners.shown(progress, len(jobs)) as listening:
            running = Run(self._table, jobs, listening, self._turns)
            self._running = running
            if call is not None:
                call.begins(running)
            try:
                return self._serve(running, list(zip(jobs, many, params, strict=True)), traced)
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
            job.prompt = prompt_text(line)
            asked = self._intake.params(line, given)
            job.requests = self._intake.requests(self._uids, job.id, job.prompt, line, asked)
            running.check(job)
            if asked.grammar is not None:
                return job, self._intake.grammar(asked.grammar, asked.reasoning)
        except (RequestError, GrammarError, ConfigError) as error:
            job.error = f"{error}"
        return None

    def warm_up(self, on_progress: Callable[[int, int, str], None] | None = None) -> None:
        """Capture all graphs that steady decoding needs; do nothing if there are none.

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
        rule = self.engine.policies.acceptance
        return {"synthetic_acceptance": list(rule.rates)} if isinstance(rule, Synthetic) else {}
