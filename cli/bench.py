"""The verbs of `stepweave bench` and their options; what a verb does has a file of its own."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from ..loadgen.choices import Endpoint, RampUp
from .options import Config, Model, PromptsFile, Settings, offer_configs
from .verb import verb

bench_app = Typer(no_args_is_help=True, rich_markup_mode=None)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LoadOptions:
    """What is asked, how often, and when; and where the figures go."""

    num_prompts: Annotated[
        int | None,
        Option(
            min=1,
            max=1_000_000,
            help="Number of requests. Default: all lines of --prompts or --trace; else 100.",
        ),
    ] = None
    input_len: Annotated[
        int | None,
        Option(
            metavar="TOKENS",
            min=1,
            max=1 << 20,
            help="Length of prompts, which are made of random words. Default: 256.",
        ),
    ] = None
    output_len: Annotated[
        int | None,
        Option(
            metavar="TOKENS",
            min=1,
            max=1 << 20,
            help="Largest length of an answer. Default: that of --prompts; else 128.",
        ),
    ] = None
    range_ratio: Annotated[
        float | None,
        Option(
            min=0,
            max=1,
            help="Draw both lengths from 1 - X to 1 + X times the given ones. Default: 0.",
        ),
    ] = None
    prefix_len: Annotated[
        int | None,
        Option(
            metavar="TOKENS",
            min=1,
            max=1 << 20,
            help="Begin each prompt with a shared text of this length, on top of --input-len.",
        ),
    ] = None
    num_prefixes: Annotated[
        int | None,
        Option(min=1, max=100_000, help="Number of different shared texts. Default: 1."),
    ] = None
    prompts: PromptsFile = None
    trace: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Replay a trace: .csv as of Azure, else JSON lines as of Mooncake.",
        ),
    ] = None
    speed_up: Annotated[
        float | None,
        Option(min=1e-6, max=1e6, help="Replay the trace so many times as fast. Default: 1."),
    ] = None
    length_scale: Annotated[
        float | None,
        Option(min=1e-6, max=1e3, help="Multiply all lengths of the trace by this. Default: 1."),
    ] = None
    schemas: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="Ask for answers that follow the JSON Schemas of a folder, one after another.",
        ),
    ] = None
    request_rate: Annotated[
        float, Option(help="Requests per second on average; inf: send all at once.")
    ] = inf
    burstiness: Annotated[
        float,
        Option(
            min=1e-3,
            max=1e6,
            help="Shape of the gamma distribution of gaps. 1: a Poisson process; "
            "less: more irregular.",
        ),
    ] = 1.0
    burst: Annotated[
        int, Option(min=1, max=1_000_000, help="Number of requests that come at the same moment.")
    ] = 1
    ramp_up_strategy: Annotated[
        RampUp | None, Option(help="How the rate goes from the start to the end.")
    ] = None
    ramp_up_start_rps: Annotated[
        float | None, Option(help="Requests per second at the first request.")
    ] = None
    ramp_up_end_rps: Annotated[
        float | None, Option(help="Requests per second at the last request.")
    ] = None
    max_concurrency: Annotated[
        int | None,
        Option(min=1, max=1_000_000, help="Largest number of requests under way. Default: all."),
    ] = None
    warmup: Annotated[
        int,
        Option(
            "--warmup",
            "--num-warmups",
            min=0,
            max=1_000_000,
            help="Number of requests that are sent before and not counted.",
        ),
    ] = 0
    temperature: Annotated[
        float,
        Option(min=0, max=100, help="Temperature of requests that do not say one; 0 is greedy."),
    ] = 0.0
    ignore_eos: Annotated[
        bool, Option("--ignore-eos", help="Generate up to the largest length in any case.")
    ] = False
    endpoint: Annotated[
        Endpoint,
        Option(help="Send prompts through the chat template, or as they are."),
    ] = Endpoint.CHAT
    seed: Annotated[int, Option(min=0, max=1 << 32, help="Seed of prompts and arrivals.")] = 0
    percentiles: Annotated[
        str,
        Option(
            "--percentiles",
            "--metric-percentiles",
            metavar="P,P…",
            help="Percentiles of latencies, beside mean and median.",
        ),
    ] = "90,99"
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the figures, and those of each request, to a JSON file.",
        ),
    ] = None
    json: Annotated[bool, Option("--json", help="Print one JSON object in place of the table.")] = (
        False
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HttpOptions:
    """How an endpoint is asked."""

    model: Annotated[
        str | None,
        Option(metavar="NAME", help="Model to ask for. Default: the first of /v1/models."),
    ] = None
    api_key: Annotated[
        str | None,
        Option(metavar="KEY", envvar="OPENAI_API_KEY", help="Sent as Authorization: Bearer KEY."),
    ] = None
    header: Annotated[
        list[str] | None,
        Option(metavar="NAME=VALUE", help="Another header to send. Can be repeated."),
    ] = None
    extra_body: Annotated[
        str | None,
        Option(metavar="JSON", help="An object whose keys are added to the body of each request."),
    ] = None
    timeout: Annotated[
        float,
        Option(
            metavar="SECONDS",
            min=1e-3,
            max=1e6,
            help="A request fails if no byte comes for this long.",
        ),
    ] = 600.0


@verb(bench_app, "serve")
class ServeBenchOptions(HttpOptions, LoadOptions):
    """Load an OpenAI endpoint, and print throughput and latencies as the client measures them.

    \b
    Exit status 1 if a request failed; 130 after Ctrl-C and 143 after TERM, with the figures so far.
      stepweave bench serve --num-prompts 200 --max-concurrency 16
      stepweave bench serve --request-rate 4 --input-len 512 --output-len 64 --ignore-eos
      stepweave bench serve --prefix-len 512 --num-prefixes 8 --range-ratio 0.5
      stepweave bench serve --trace mooncake_trace.jsonl --speed-up 10 --num-prompts 500
      stepweave bench serve --prompts requests.jsonl --schemas schemas -o result.json
      stepweave bench serve --base-url http://gpu:8000 --plot result.svg --json
    """

    base_url: Annotated[
        str, Option(metavar="URL", help="Where the server is; a /v1 at the end is left out.")
    ] = "http://127.0.0.1:8000"
    plot: Annotated[
        Path | None,
        Option(metavar="FILE.svg", help="Draw throughput over time and percentiles of latencies."),
    ] = None

    def __call__(self) -> int:
        from .bench_serve import bench_serve

        return bench_serve(self)


@verb(bench_app, "offline")
class OfflineBenchOptions(LoadOptions):
    """Load a pipeline's engine in this process, without HTTP, and print the same table.

    \b
    Exit status 1 if a request failed; 130 after Ctrl-C and 143 after TERM, with the figures so far.
      stepweave bench offline quickstart --num-prompts 32 --output-len 64
      stepweave bench offline async --request-rate 20 --warmup 4 --set depth=3
      stepweave bench offline quickstart --prompts requests.jsonl --json
    """

    config: Config
    model: Model = None
    settings: Settings = None
    plot: Annotated[
        Path | None,
        Option(metavar="FILE.svg", help="Draw throughput over time and percentiles of latencies."),
    ] = None

    def __call__(self) -> int:
        from .bench_offline import bench_offline

        return bench_offline(self)


_SIDE = "The URL of an endpoint, a YAML file, or the name of a shipped config."


@verb(bench_app, "compare")
class CompareOptions(HttpOptions, LoadOptions):
    """Run the same load on two endpoints or pipelines in turn, and print the ratios of the figures.

    \b
    A pipeline gets a server of its own for each turn; with --offline it runs in this process.
    Exit status 1 if a request failed; 130 after Ctrl-C and 143 after TERM.
      stepweave bench compare http://127.0.0.1:8000 http://127.0.0.1:8001 --max-concurrency 8
      stepweave bench compare synchronous async --offline --num-prompts 16 --output-len 32
      stepweave bench compare quickstart quickstart --set-a depth=1 --set-b depth=2 --rounds 7
    """

    a: Annotated[str, Argument(metavar="A", help=_SIDE, autocompletion=offer_configs)]
    b: Annotated[str, Argument(metavar="B", help=_SIDE, autocompletion=offer_configs)]
    rounds: Annotated[
        int,
        Option(min=1, max=1000, help="Turns of each side; the order alternates."),
    ] = 5
    offline: Annotated[
        bool, Option("--offline", help="Run pipelines in this process, without HTTP.")
    ] = False
    set_a: Annotated[
        list[str] | None,
        Option("--set-a", metavar="KEY=VALUE", help="Change a setting of A. Can be repeated."),
    ] = None
    set_b: Annotated[
        list[str] | None,
        Option("--set-b", metavar="KEY=VALUE", help="Change a setting of B. Can be repeated."),
    ] = None

    def __call__(self) -> int:
        from .bench_compare import bench_compare

        return bench_compare(self)
