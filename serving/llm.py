"""The front door of the decode engine: prompts in, texts out.

llm = LLM("path/to/model", pipeline="async")
for output in llm.generate(["Once upon a time"], SamplingParams(max_tokens=40)):
    print(output.text)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ..configs.errors import ConfigError
from ..configs.load import load_config
from ..configs.prompts import PromptLine, prompt_of
from ..configs.schema import PipelineConfig
from ..graph.plan import Plan
from ..models.causal_lm import CausalLM
from ..models.tokenizer import StreamDecoder, load_tokenizer
from ..policies.stopping import StopChecker
from ..requests.request import Request, RequestError, RequestOutput, SamplingParams
from ..requests.table import Limits, RequestTable
from ..structured.grammar import GrammarError, GrammarSpec
from ..structured.xgrammar_backend import XGrammarBackend
from .engine import Engine, EngineError
from .pipeline import compiled

Prompt = str | Mapping[str, Any] | PromptLine | Sequence[int]


class Interrupted(KeyboardInterrupt):
    """A run was interrupted; `outputs` has what was settled, the rest is "cancelled"."""

    def __init__(self, outputs: list[RequestOutput]) -> None:
        super().__init__("interrupted")
        self.outputs = outputs


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
        self.engine = _engine(pipeline)
        self.tokenizer = load_tokenizer(pipeline.model.name)
        self._grammars: XGrammarBackend | None = None
        self._running: tuple[RequestTable, Sequence[Request]] | None = None

    @property
    def plan(self) -> Plan:
        """The plan that the engine runs."""
        return self.engine.plan

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
        `on_text(id, piece)` streams settled text, `on_progress(ended, tokens)` counts requests
        and tokens; both run on the driver's thread.

        A request that cannot be served has an `error`, and the others go on. Raises `Interrupted`
        on Ctrl-C, with what was settled.
        """
        many = _each(prompts)
        each_params = _for_each(params, len(many))
        table = self.engine.new_table()
        requests: list[Request] = []
        outputs: dict[int, RequestOutput] = {}
        for uid, prompt in enumerate(many):
            request_id, text = _named(prompt, uid)
            try:
                request = self._request(uid, request_id, text, prompt, each_params[uid])
                refusal = table.refuse_reason(len(request.prompt_ids), request.params.max_tokens)
                if refusal is not None:
                    raise RequestError(refusal)
            except (RequestError, GrammarError, ConfigError) as error:
                outputs[uid] = RequestOutput(request_id, text, "", (), "error", error=f"{error}")
                continue
            if on_text is not None:
                request.on_text = _bound(on_text, request_id)
            requests.append(request)
        if on_progress is not None:
            _count(requests, len(outputs), on_progress)
        table.submit_all(requests)
        self._running = (table, requests)
        try:
            if requests:
                self.engine.run(table, requests)
        except KeyboardInterrupt:
            outputs.update((request.uid, request.output()) for request in requests)
            raise Interrupted([outputs[uid] for uid in range(len(many))]) from None
        finally:
            self._running = None
        outputs.update((request.uid, request.output()) for request in requests)
        return [outputs[uid] for uid in range(len(many))]

    def cancel(self) -> None:
        """End what `generate` is doing now (from a signal handler or another thread).

        It returns soon with what was settled; requests that had not ended are "cancelled".
        """
        running = self._running
        if running is not None:
            table, requests = running
            for request in requests:
                table.cancel(request.uid)

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
            "seconds": seconds,
            "tokens_per_second": totals.tokens / seconds if seconds > 0 else 0.0,
            "executor": self.engine.executor,
            "depth": self.config.depth,
            "waits": len(plan.waits),
            "slots": dict(plan.slots),
        }

    # -- one request -----------------------------------------------------------------------

    def _request(
        self, uid: int, request_id: str, text: str, prompt: Prompt, params: SamplingParams | None
    ) -> Request:
        if isinstance(prompt, Mapping):
            prompt = prompt_of(prompt, request_id)
        if isinstance(prompt, PromptLine):
            params = _params(prompt)
        params = params or SamplingParams()
        prompt_ids = self._encode(prompt, text)
        vocab = self.engine.model.vocab_size
        for what, ids in (("prompt", prompt_ids), ("stop_token_ids", params.stop_token_ids)):
            for token in ids:
                if not 0 <= token < vocab:
                    raise RequestError(
                        f"{what}: token id {token} is outside the model's vocabulary of {vocab}",
                        code="SW-TOKEN",
                    )
        room = min(params.max_tokens, self.engine.limits.context_length - len(prompt_ids))
        stops = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stops |= self._eos
        return Request(
            uid=uid,
            id=request_id,
            prompt=text,
            prompt_ids=prompt_ids,
            params=params,
            max_tokens=max(room, 1),
            stop_token_ids=stops,
            stopper=StopChecker(stops, params.stop, max(room, 1)),
            decoder=StreamDecoder(self.tokenizer, prompt_ids),
            grammar=self._grammar(params.structured_outputs),
        )

    def _encode(self, prompt: Prompt, text: str) -> tuple[int, ...]:
        if isinstance(prompt, PromptLine) and prompt.messages is not None:
            return self._chat([message.model_dump() for message in prompt.messages])
        if not isinstance(prompt, str | PromptLine):
            return tuple(int(token) for token in prompt)
        wanted = self.config.model.prompt_format
        if wanted == "chat" or (wanted == "auto" and self.config.model.name == "embedded"):
            return self._chat([{"role": "user", "content": text}])
        return tuple(self.tokenizer(text)["input_ids"])

    def _chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        if not self.tokenizer.chat_template:
            raise RequestError("this model's tokenizer has no chat template: give a `prompt`")
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is the model's program; it may raise anything
            raise RequestError(f"the chat template refuses these messages: {error}") from error
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @property
    def _eos(self) -> frozenset[int]:
        own = self.tokenizer.eos_token_id
        return self.engine.model.eos_token_ids | ({own} if isinstance(own, int) else frozenset())

    def _grammar(self, spec: GrammarSpec | None) -> Any:
        if spec is None:
            return None
        if self.config.structured is None:
            raise RequestError("this pipeline has no grammars: set `structured.backend`")
        if self._grammars is None:
            if not self._eos:
                raise RequestError("structured outputs need a model with an end-of-text token")
            self._grammars = XGrammarBackend(
                self.tokenizer,
                self.engine.model.vocab_size,
                self._eos,
                any_whitespace=self.config.structured.any_whitespace,
            )
        return self._grammars.compile(spec)


def _engine(config: PipelineConfig) -> Engine:
    model = CausalLM.load(
        config.model.name, dtype=config.model.dtype, invariant=config.model.invariant
    )
    speculation = config.speculation
    drafter = None
    if speculation is not None:
        drafter = CausalLM.load(
            speculation.model, dtype=config.model.dtype, invariant=config.model.invariant
        )
    limits = Limits(
        max_rows=config.scheduler.max_rows,
        token_budget=config.scheduler.token_budget,
        block_size=config.scheduler.block_size,
        num_blocks=config.scheduler.num_blocks,
        context_length=model.context_length,
        draft_tokens=speculation.tokens if speculation else 0,
        max_queue=config.scheduler.max_queue,
    )
    return Engine(
        lambda machine: compiled(config, machine),
        model,
        limits,
        drafter=drafter,
        acceptance=speculation.acceptance if speculation else "coupled",
        executor=config.executor,
        torch_threads=config.torch_threads,
    )


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


def _named(prompt: Prompt, uid: int) -> tuple[str, str]:
    """The id and the text of a prompt, before anything of it is checked."""
    if isinstance(prompt, str):
        return str(uid), prompt
    if isinstance(prompt, Mapping):
        found, messages = prompt.get("prompt"), prompt.get("messages")
        named = prompt.get("id")
    elif isinstance(prompt, PromptLine):
        found, named = prompt.prompt, prompt.id
        messages = prompt.messages and [message.model_dump() for message in prompt.messages]
    else:
        return str(uid), ""
    if not isinstance(found, str):
        last = messages[-1] if isinstance(messages, Sequence) and messages else {}
        found = last.get("content", "") if isinstance(last, Mapping) else ""
    return str(uid if named is None else named), str(found)


def _params(line: PromptLine) -> SamplingParams:
    """Sampling parameters of a prompts line. Raises `RequestError` or `GrammarError`."""
    given = {
        key: value
        for key in ("max_tokens", "temperature", "top_p", "top_k", "seed")
        if (value := getattr(line, key)) is not None
    }
    asked = line.structured_outputs
    return SamplingParams(
        **given,
        stop=line.stop,
        ignore_eos=line.ignore_eos,
        structured_outputs=None if asked is None else GrammarSpec.from_request(asked.request()),
    )


def _bound(on_text: Callable[[str, str], None], request_id: str) -> Callable[[str], None]:
    return lambda piece: on_text(request_id, piece)


def _count(
    requests: Sequence[Request], ended: int, on_progress: Callable[[int, int], None]
) -> None:
    """Let every request report what it settles to one pair of counters."""
    done, tokens = ended, 0

    def settled(request: Request, new: int) -> None:
        nonlocal done, tokens
        tokens += new
        done += request.phase == "done"
        on_progress(done, tokens)

    for request in requests:
        request.on_settled = settled
