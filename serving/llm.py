"""The front door of the decode engine: prompts in, texts out.

llm = LLM("path/to/model", pipeline="async")
for output in llm.generate(["Once upon a time"], SamplingParams(max_tokens=40)):
    print(output.text)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..configs.schema import PipelineConfig
from ..executors.report import RunReport
from ..graph.plan import Plan
from ..requests.request import RequestOutput
from ..requests.spans import RequestLog, RequestSpan
from ..requests.step_counts import StepCount
from .arguments import Messages, Params, chosen, conversations, each_prompt, params_for_each
from .call import Call, Interrupted, Listeners, OnOutput, OnProgress, OnText, TextPiece
from .driver import Trace
from .intake import Intake
from .loading import load_engine
from .prompts import Prompt
from .service import Service
from .summary import summary
from .warm_up import warm_up

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["LLM", "Interrupted", "Traced"]


@dataclass(frozen=True)
class Traced:
    """What a traced run came to: `report` has the events, for `stepweave.timelines.measured`."""

    outputs: list[RequestOutput]
    report: RunReport
    requests: tuple[RequestSpan, ...] = ()
    steps: tuple[StepCount, ...] = ()


class LLM:
    """A loaded pipeline.

    `model` replaces the pipeline's model: a directory or a hub name. `pipeline` is a path, a
    shipped name, the keys of a file, such as {"extends": "async", "depth": 3}, or what
    `load_config` made of them; if not given, `async_grammar` for a model, and `quickstart` for the
    embedded one. `overrides` change keys of the pipeline's file: {"depth": 3},
    {"scheduler": {"max_rows": 4}} or {"scheduler.max_rows": 4}; a text is read as YAML, as `--set`
    does. `tp` is the number of ranks that share the model, `pp` that of its stages: the program
    must have been started as so many, by torchrun, and every rank makes the same calls, or calls
    `follow`.

    Raises `ConfigError`, `GraphError`, `ModelError`, `EngineError` or `GroupError`, and `TypeError`
    for arguments of a wrong type.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        pipeline: PipelineConfig | str | Path | Mapping[str, Any] | None = None,
        overrides: Mapping[str, Any] | None = None,
        tp: int | None = None,
        pp: int | None = None,
    ) -> None:
        pipeline = chosen(model, pipeline, overrides, tp, pp)
        self.config = pipeline
        self.engine = load_engine(pipeline)
        intake = Intake(pipeline, self.engine)
        self.service = Service(self.engine, intake)
        self.tokenizer = intake.tokenizer
        self._calls: dict[Call, None] = {}  # under way

    @property
    def leads(self) -> bool:
        """Whether requests are taken in here: on one rank alone, or on rank 0 of a group."""
        return self.service.leads

    def follow(self) -> None:
        """On any other rank: serve what rank 0 serves, until that is closed.

        Raises `GroupEnded` where the group ends otherwise, and `EngineError` on rank 0.
        """
        self.service.follow()

    @property
    def plan(self) -> Plan:
        """The plan that the engine runs, or begins with where it has others."""
        return self.engine.plan

    @property
    def plans(self) -> Mapping[str, Plan]:
        """By name all plans that the engine may run; `llm.engine.at` says which of them is on."""
        return self.engine.plans

    def close(self) -> None:
        """End all calls, refuse others, and end the processes that compile grammars. The garbage
        collector does the last otherwise.
        """
        self.service.close()

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
        `on_progress(ended, tokens)` counts prompts and tokens. They are called on the calling
        thread, and the engine does not wait for them. What `on_text` raises ends its request with
        an error; what the others raise ends the call, and is raised by it.
        `progress`: show a bar on stderr; None: if that is a terminal and nobody listens.

        A request that cannot be served has an `error`, and the others go on; one whose grammar
        takes long to compile joins them later. Calls from several threads are served together.
        Raises `Interrupted` on Ctrl-C, with what was settled, and `EngineError` after `close`.
        """
        listeners = Listeners(on_text, on_progress, on_output)
        call = self._call(prompts, params)
        shown = listeners.shown(progress, len(call.prompts), self.service.totals)
        with self._under_way(call), shown as listening:
            return call.outputs(listening)

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

        The call begins when the first piece is asked for; it is cancelled when the iterator is
        closed.
        """
        return self._pieces(self._call(prompts, params))

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

        Noting this takes two readings of the clock per op. What other threads call meanwhile is in
        the steps too. Raises `EngineError` if one of them traces already.
        """
        listeners = Listeners(on_text, on_progress, on_output)
        call = self._call(prompts, params)
        shown = listeners.shown(progress, len(call.prompts), self.service.totals)
        with self._under_way(call), shown as listening:
            call.take_in()
            trace = Trace(RequestLog(call.requests))
            with self.service.traced(trace):
                outputs = call.outputs(listening)
        captures = self.engine.captures
        replayed = frozenset[int]() if captures is None else captures.replayed()
        steps = [
            each._replace(mode=f"{each.mode}, replayed") if each.step in replayed else each
            for each in trace.counts.all()
        ]
        return Traced(outputs, trace.report, trace.log.spans(), tuple(steps))

    def _call(self, prompts: Prompt | Sequence[Prompt], params: Params) -> Call:
        many = each_prompt(prompts)
        return Call(self.service, many, params_for_each(params, len(many)))

    @contextmanager
    def _under_way(self, call: Call) -> Iterator[None]:
        """In the block `cancel` ends that call too."""
        self._calls[call] = None
        try:
            yield
        finally:
            del self._calls[call]

    def _pieces(self, call: Call) -> Iterator[TextPiece]:
        with self._under_way(call):
            yield from call.pieces()

    def warm_up(self, on_progress: Callable[[int, int, str], None] | None = None) -> None:
        """Capture all graphs that steady decoding needs; do nothing if there are none.

        `on_progress(done, of, what)` tells how far it is.
        """
        warm_up(self, on_progress)

    def cancel(self) -> None:
        """End all calls that are under way (from a signal handler or another thread).

        Each returns soon with what was settled; requests that had not ended are "cancelled".
        """
        for call in [*self._calls]:
            call.cancel()

    def summary(self) -> dict[str, Any]:
        """Totals over all calls of `generate`, and the plan they ran on."""
        return summary(self.engine, self.config)
