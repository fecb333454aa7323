"""From the options of a benchmark to its load. What contradicts itself is refused."""

from __future__ import annotations

import json
from math import inf, isfinite
from pathlib import Path
from typing import Any

from ..configs.errors import ConfigError, Mark
from ..loadgen.arrivals import Arrivals
from ..loadgen.choices import Endpoint
from ..loadgen.client import Target, root_of
from ..loadgen.load import Load
from ..loadgen.schemas import read_schemas
from ..loadgen.traces import read_trace
from ..loadgen.workload import GivenPrompts, RandomPrompts, ReplayedTrace, UnderSchemas, Workload
from .bench import HttpOptions, LoadOptions
from .output import check_writable
from .requested import lines_of
from .settings import pairs

COUNT, INPUT, OUTPUT = 100, 256, 128  # where nothing is said
_RANDOM = ("input_len", "range_ratio", "prefix_len", "num_prefixes")
_TRACED = ("speed_up", "length_scale")
_OF_A_REQUEST = {  # what every request says itself
    "model": "use --model",
    "stream": "answers are always streamed",
    "messages": "use --prompts",
    "prompt": "use --prompts",
    "max_tokens": "use --output-len",
    "max_completion_tokens": "use --output-len",
}
_NOT_IN_NAMES = frozenset(' "(),/:;<=>?@[\\]{}')  # of headers


def load_of(asked: LoadOptions) -> Load:
    """What is asked, how often, and when. Raises `ConfigError`."""
    workload, most = _workload(asked)
    if asked.schemas is not None:
        workload = UnderSchemas(workload, read_schemas(asked.schemas))
    return Load(
        workload,
        count=asked.num_prompts or most or COUNT,
        arrivals=_arrivals(asked),
        limit=asked.max_concurrency,
        warm_up=asked.warmup,
        seed=asked.seed,
        percentiles=_percentiles(asked.percentiles),
    )


def _workload(asked: LoadOptions) -> tuple[Workload, int | None]:
    """And how many requests it holds, where it is not endless."""
    if asked.prompts is not None and asked.trace is not None:
        raise ConfigError.at(Mark("--trace"), "has prompts of its own: drop it or --prompts")
    if asked.trace is not None:
        return _traced(asked, asked.trace)
    _refuse(asked, _TRACED, "is for a trace: add --trace FILE")
    if asked.prompts is not None:
        return _given(asked, asked.prompts)
    if asked.num_prefixes is not None and asked.prefix_len is None:
        raise ConfigError.at(Mark("--num-prefixes"), "needs the length of a prefix: --prefix-len")
    made = RandomPrompts(
        asked.input_len or INPUT,
        asked.output_len or OUTPUT,
        spread=asked.range_ratio or 0.0,
        prefix=asked.prefix_len or 0,
        prefixes=asked.num_prefixes or 1,
    )
    return made, None


def _traced(asked: LoadOptions, file: Path) -> tuple[Workload, int]:
    _refuse(asked, (*_RANDOM, "output_len"), "contradicts --trace, which has lengths of its own")
    if asked.request_rate != inf or asked.ramp_up_strategy is not None or _shaped_by(asked):
        said = "has times of its own: use --speed-up in place of a rate"
        raise ConfigError.at(Mark("--trace"), said)
    trace = read_trace(file)
    if asked.num_prompts is not None and asked.num_prompts > len(trace):
        said = f"the trace has {len(trace)} requests only"
        raise ConfigError.at(Mark(f"--num-prompts {asked.num_prompts}"), said)
    return ReplayedTrace(trace, asked.speed_up or 1.0, asked.length_scale or 1.0), len(trace)


def _given(asked: LoadOptions, file: Path) -> tuple[Workload, int]:
    _refuse(asked, _RANDOM, "is for random prompts: drop it or --prompts")
    lines = lines_of(file)
    of_text = asked.endpoint is Endpoint.COMPLETIONS
    for number, line in enumerate(lines, start=1):
        said = None
        if of_text and line.messages is not None:
            said = f"request {number} is a conversation: use --endpoint chat"
        if line.images or any(not isinstance(each.content, str) for each in line.messages or ()):
            said = f"request {number} has images, which no load can have yet: leave it out"
        if asked.schemas is not None and "structured_outputs" in line.parameters:
            said = f"request {number} has structured_outputs of its own: drop them or --schemas"
        if not of_text and line.prompt_token_ids is not None:
            said = f"request {number} has token ids: use --endpoint completions"
        if said is not None:
            raise ConfigError.at(Mark(f"--prompts {file}"), said)
    return GivenPrompts(lines, asked.output_len), len(lines)


def _refuse(asked: LoadOptions, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(asked, name) is not None:
            raise ConfigError.at(Mark(f"--{name.replace('_', '-')}"), why)


def _shaped_by(asked: LoadOptions) -> str | None:
    """The option that shapes arrivals at a rate, if one does."""
    if asked.burst != 1:
        return "--burst"
    return None if asked.burstiness == 1 else "--burstiness"


def _arrivals(asked: LoadOptions) -> Arrivals:
    start, end = asked.ramp_up_start_rps, asked.ramp_up_end_rps
    if not asked.request_rate > 0:  # not a number is not, either
        raise ConfigError.at(Mark(f"--request-rate {asked.request_rate:g}"), "must be above 0")
    if asked.ramp_up_strategy is None:
        if start is not None or end is not None:
            said = "needs --ramp-up-strategy linear or exponential"
            raise ConfigError.at(Mark("--ramp-up-start-rps and --ramp-up-end-rps"), said)
        if asked.request_rate == inf and (option := _shaped_by(asked)):
            raise ConfigError.at(Mark(option), "needs a rate: add --request-rate")
        return Arrivals(asked.request_rate, asked.burstiness, asked.burst)
    if asked.request_rate != inf:
        raise ConfigError.at(Mark("--request-rate"), "contradicts --ramp-up-strategy: drop one")
    if not (start and end and start > 0 and end > 0 and isfinite(start) and isfinite(end)):
        said = "needs --ramp-up-start-rps and --ramp-up-end-rps, both above 0"
        raise ConfigError.at(Mark("--ramp-up-strategy"), said)
    return Arrivals(inf, asked.burstiness, asked.burst, asked.ramp_up_strategy, start, end)


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        found = tuple(sorted({float(each) for each in text.split(",")}))
    except ValueError:
        found = (-1.0,)
    if not all(0 <= each <= 100 for each in found):
        said = "write numbers from 0 to 100 with commas, as 50,90,99"
        raise ConfigError.at(Mark(f"--percentiles {text}"), said)
    return found


def target_of(asked: HttpOptions, load: LoadOptions, url: str, where: str) -> Target:
    """Where the load goes, and what every request carries. Raises `ConfigError`."""
    headers = pairs("--header", asked.header, "NAME=VALUE")
    if asked.api_key is not None:
        headers["Authorization"] = f"Bearer {asked.api_key}"
    for name, value in headers.items():
        if not f"{name}{value}".isprintable() or not f"{name}{value}".isascii():
            said = "headers are printable ASCII text"
            raise ConfigError.at(Mark(f"the header {name!r}"), said)
        if _NOT_IN_NAMES & set(name):
            said = f"a name has no space, and none of {''.join(sorted(_NOT_IN_NAMES - {' '}))}"
            raise ConfigError.at(Mark(f"--header {name}"), said)
    return Target(
        root_of(url, where),
        load.endpoint,
        headers,
        parameters_of(load) | _object(asked.extra_body),
        asked.timeout,
    )


def parameters_of(asked: LoadOptions) -> dict[str, Any]:
    """Of requests that do not say others themselves."""
    found: dict[str, Any] = {"temperature": asked.temperature}
    return found | ({"ignore_eos": True} if asked.ignore_eos else {})


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError.at(Mark("--extra-body"), f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError.at(Mark("--extra-body"), 'must be an object, as {"top_k": 20}')
    for key, instead in _OF_A_REQUEST.items():
        if key in found:
            raise ConfigError.at(Mark("--extra-body"), f"cannot have {key!r}: {instead}")
    return found


def check_files(output: Path | None, plot: Path | None = None) -> None:
    """Refuse files that cannot be written before anything is measured. Raises `ConfigError`."""
    if plot is not None and plot.suffix != ".svg":
        raise ConfigError.at(Mark(f"--plot {plot}"), "the ending must be .svg")
    for path in (output, plot):
        if path is not None:
            check_writable(path)
