"""Times and sizes of requests as the service sees them, counted on the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram

from ...requests.moments import RequestTimings
from ..observers import Exchange, Observer, Served
from .tally import Spread, Tally

if TYPE_CHECKING:
    from starlette.routing import Route

    from ...requests.increment import Increment

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0),
    *(20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS = tuple(digit * 10**power for power in range(7) for digit in (1, 2, 5))
COUNTS = (1, 2, 5, 10, 20, 50, 100, 200)


FIRST_TOKEN = Spread(
    "vllm:time_to_first_token_seconds",
    "From a request's first byte until its first token was settled, of each completion.",
    FIRST_TOKEN_S,
)
BETWEEN_TOKENS = Spread(
    "vllm:inter_token_latency_seconds",
    "Between two steps that settled tokens of a completion.",
    TOKEN_S,
)
OLDER_BETWEEN_TOKENS = Spread(
    "vllm:time_per_output_token_seconds",
    "The same, under the name that older dashboards use.",
    TOKEN_S,
)
PER_TOKEN = Spread(
    "vllm:request_time_per_output_token_seconds",
    "The mean time of each token after the first, of a completion.",
    TOKEN_S,
)
WHOLE = Spread(
    "vllm:e2e_request_latency_seconds",
    "From a request's first byte until a completion ended.",
    REQUEST_S,
)
QUEUE = Spread(
    "vllm:request_queue_time_seconds",
    "Until a step first had the request, its grammar's compilation included.",
    REQUEST_S,
)
INFERENCE = Spread(
    "vllm:request_inference_time_seconds", "From its first step to its end.", REQUEST_S
)
PREFILL = Spread(
    "vllm:request_prefill_time_seconds", "From its first step to its first token.", REQUEST_S
)
DECODE = Spread("vllm:request_decode_time_seconds", "From its first token to its end.", REQUEST_S)
PROMPT = Spread("vllm:request_prompt_tokens", "Prompt tokens of a call.", TOKENS)
GENERATED = Spread("vllm:request_generation_tokens", "Tokens of a completion.", TOKENS)
MAX_TOKENS = Spread(
    "vllm:request_params_max_tokens", "The most tokens that a call asks for.", TOKENS
)
CHOICES = Spread("vllm:request_params_n", "Completions that a call asks for.", COUNTS)
COMPILING = Spread(
    "stepweave:grammar_compile_seconds",
    "What compiling a grammar took; `outcome` is compiled or refused. One in the cache is none.",
    REQUEST_S,
    ("outcome",),
)
OFTEN = (BETWEEN_TOKENS, OLDER_BETWEEN_TOKENS)
SELDOM = (
    *(FIRST_TOKEN, PER_TOKEN, WHOLE, QUEUE, INFERENCE, PREFILL, DECODE, PROMPT, GENERATED),
    *(MAX_TOKENS, CHOICES, COMPILING),
)
SPREADS = (FIRST_TOKEN, *OFTEN, *SELDOM[1:])

ANSWERS = "stepweave:http_requests_total"
ANSWERS_LABELS = ("path", "status")
ANSWERS_SAY = "HTTP requests, by path and status; 499: the client left. Unknown paths are `other`."


class Latencies(Observer):
    """Counts what the service tells into histograms of `registry`. `common`: labels of all.

    `routes`: whose paths are told apart, for a client may ask for any.
    """

    routes: Sequence[Route] = ()

    def __init__(self, registry: CollectorRegistry, common: Sequence[tuple[str, str]]) -> None:
        names, values = [name for name, _ in common], [value for _, value in common]
        self._between = Tally(OFTEN, common)
        registry.register(self._between)
        made = {
            each: Histogram(
                each.name,
                each.says,
                [*names, *each.labels],
                buckets=each.buckets,
                registry=registry,
            )
            for each in SELDOM
        }
        self._of = {each: made[each].labels(*values) for each in SELDOM if not each.labels}
        self._compiling = {
            well: made[COMPILING].labels(*values, outcome)
            for well, outcome in ((True, "compiled"), (False, "refused"))
        }
        answers = Counter(ANSWERS, ANSWERS_SAY, [*names, *ANSWERS_LABELS], registry=registry)
        self._answers = partial(answers.labels, *values)

    def begun(self, served: Served) -> None:
        self._of[PROMPT].observe(served.prompt_tokens)
        self._of[MAX_TOKENS].observe(served.max_tokens)
        self._of[CHOICES].observe(served.choices)

    def settled(self, served: Served, choice: int, increment: Increment, at_s: float) -> None:
        if increment.token_ids:
            before = served.settled_s[choice]
            if before is None:
                self._of[FIRST_TOKEN].observe(at_s - served.began_s)
            else:
                self._between.note(at_s - before)
        if increment.output is not None:
            self._of[WHOLE].observe(at_s - served.began_s)
            self._of[GENERATED].observe(len(increment.output.token_ids))
            self._ended(increment.output.timings or RequestTimings())

    def _ended(self, took: RequestTimings) -> None:
        queue, first, whole = took.queue_s, took.first_token_s, took.total_s
        for each, seconds in (
            (QUEUE, queue),
            (PER_TOKEN, took.per_token_s),
            (INFERENCE, _between(queue, whole)),
            (PREFILL, _between(queue, first)),
            (DECODE, _between(first, whole)),
        ):
            if seconds is not None:
                self._of[each].observe(seconds)

    def answered(self, exchange: Exchange) -> None:
        known = (each.path_format for each in self.routes if each.path_regex.match(exchange.path))
        path = next(known, "other")
        self._answers(path, str(exchange.status)).inc()

    def compiled(self, seconds: float, well: bool) -> None:
        """A grammar has been compiled, or refused; on the thread that did it."""
        self._compiling[well].observe(seconds)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(end - start, 0.0)
