"""The verbs of the command line and their options; what a verb does has a file of its own.

The verbs of `stepweave graph` are in `graph.py`.

Heavy modules are imported by the verb that needs them, so that `check` answers at once.
"""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from .group import app as app
from .importing import importing
from .options import (
    COSTS,
    AsJson,
    Config,
    Costs,
    MaxTokens,
    Model,
    OfPrompts,
    PlannedStages,
    PromptsFile,
    PromptTexts,
    Ranks,
    Rows,
    Settings,
    Stages,
    offer_clusters,
    offer_configs,
    offer_sections,
    to_file,
)
from .reporting import Exit
from .verb import verb

STEPS = 40  # that are simulated where nobody says how many


@verb(app, "check")
class CheckOptions:
    """Compile a config, prove that its plan has no races, and print the plan.

    \b
    Exit status 1 if a config is wrong, or with --mutate if a broken plan is not detected.
      stepweave check quickstart
      stepweave check abstract_decode.yaml my_graph.yaml --json
      stepweave check quickstart --set depth=3 --proof
      stepweave check quickstart --mutate
      stepweave check async_eagle3_grammar --costs llama_8b --rows 32
    """

    configs: Annotated[
        list[str],
        Argument(
            metavar="CONFIG…",
            help="YAML files, or names of shipped configs.",
            autocompletion=offer_configs,
        ),
    ]
    json: Annotated[bool, Option("--json", help="Print one JSON object per config.")] = False
    proof: Annotated[
        bool, Option("--proof", help="Also print every requirement and what meets it.")
    ] = False
    mutate: Annotated[
        bool,
        Option(
            "--mutate",
            help="Break the plan in many small ways, and count how many "
            "of the broken plans are detected.",
        ),
    ] = False
    settings: Settings = None
    pp: PlannedStages = None
    costs: Costs = None
    rows: Rows = None

    def __call__(self) -> int:
        if self.mutate:
            from .mutate import mutate

            return mutate(self)
        with importing():
            from .check import check
        return check(self)


@verb(app, "run")
class RunOptions(OfPrompts):
    """Generate text. Without --prompt or --prompts, the prompts of the config are used.

    \b
    Exit status 1 if a request failed; 130 after Ctrl-C and 143 after TERM, with the results so far.
      stepweave run quickstart
      stepweave run quickstart --prompt "Write a story about a fox named Ida." --max-tokens 80
      stepweave run async --prompts requests.jsonl --json -o results.jsonl
      stepweave run async --prompts - --set scheduler.max_rows=4 < requests.jsonl
      stepweave run quickstart --compare --set depth=3
      stepweave run async --model path/to/model --prompt "Once upon a time"
      stepweave run async --model path/to/model --tp 2
    """

    config: Config
    model: Model = None
    prompt: PromptTexts = None
    prompts: PromptsFile = None
    schema: Annotated[
        Path | None,
        Option(metavar="FILE", help="JSON Schema that outputs for --prompt must follow."),
    ] = None
    max_tokens: MaxTokens = None
    tp: Ranks = None
    pp: Stages = None
    settings: Settings = None
    json: Annotated[
        bool,
        Option("--json", help="Print one JSON object per request when it ends, then a summary."),
    ] = False
    ordered: Annotated[
        bool,
        Option(
            "--ordered",
            help="With --json: print all objects at the end, in the order of the input.",
        ),
    ] = False
    compare: Annotated[
        bool,
        Option(
            "--compare",
            help="Also run the synchronous loop with the same nodes, and where tokens must not "
            "depend on drafts once without drafts. Report whether the tokens are equal, where they "
            "first differ, and how the speeds compare.",
        ),
    ] = False
    strict: Annotated[
        bool, Option("--strict", help="Fail if a node makes an access that it did not declare.")
    ] = False
    output: Annotated[
        Path | None,
        to_file("Write the output to a file in place of standard output."),
    ] = None

    def __call__(self) -> int:
        from .run import run

        return run(self)


@verb(app, "serve")
class ServeOptions:
    """Serve the API that clients of OpenAI's speak, until Ctrl-C or TERM.

    \b
    Needs the extra `server`: pip install 'stepweave[server]'
    What runs is finished within --drain-s when it is told to end; exit status 0 then.
    A second signal ends it at once.
      stepweave serve quickstart
      stepweave serve async_grammar --model path/to/model --port 8080
      stepweave serve async_grammar --model path/to/model --tp 2
      STEPWEAVE_API_KEY=secret stepweave serve quickstart --host 0.0.0.0
    """

    config: Config
    model: Model = None
    host: Annotated[str, Option(help="Address to listen on. Default: this machine alone.")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, Option(min=0, max=65535, help="Port to listen on. 0: any that is free.")
    ] = 8000
    api_key: Annotated[
        list[str] | None,
        Option(
            metavar="KEY",
            envvar="STEPWEAVE_API_KEY",
            help="Key that requests must have. Can be repeated. Other users of the machine can "
            "read a command line: the variable STEPWEAVE_API_KEY has keys too, with spaces "
            "between them. Default: no key.",
        ),
    ] = None
    served_model_name: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="Name that requests call the model by. Can be repeated. Default: the model's.",
        ),
    ] = None
    generation_config: Annotated[
        Literal["auto", "none"],
        Option(
            help="Where temperature, top_p, top_k, min_p, repetition_penalty and the length of an "
            "answer come from that a request does not give. auto: the model's "
            "generation_config.json, then the API's defaults; none: the API's defaults."
        ),
    ] = "auto"
    tp: Ranks = None
    pp: Stages = None
    replicas: Annotated[
        str | None,
        Option(
            metavar="N",
            help="Serve with so many engines, each in a process of its own that Ray takes care of, "
            "on this machine or on the cluster of RAY_ADDRESS; 2-8: as many as the load needs. "
            "A stream whose engine is killed goes on at another. HUP replaces them one by one. "
            "Needs the extra `ray`. Default: one engine, in this process.",
        ),
    ] = None
    fleet: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="With --replicas: their name on the cluster of RAY_ADDRESS, so that others can be "
            "there, too. Without it: serve with the replicas of that name, which another command "
            "has started with the same pipeline, and leave them when this one ends.",
            show_default="stepweave",
        ),
    ] = None
    idle_s: Annotated[
        float | None,
        Option(
            min=0,
            max=86400,
            help="With --replicas 2-8: seconds of little load after which an engine is ended.",
            show_default="600",
        ),
    ] = None
    drain_s: Annotated[
        float,
        Option(min=0, max=86400, help="Seconds that what runs may take to end after TERM."),
    ] = 30.0
    keep_alive_s: Annotated[
        float,
        Option(
            min=0,
            max=86400,
            help="Seconds without a token after which a stream sends a comment, so that no proxy "
            "cuts it. 0: never.",
        ),
    ] = 15.0
    recorder: Annotated[
        bool,
        Option(
            "--recorder/--no-recorder",
            help="Note when the ops of the last steps ran, for the live page and the metrics of "
            "the plan.",
        ),
    ] = True
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Option(help="Least severe log lines that are written. Each is JSON, on standard error."),
    ] = "info"
    otlp_traces_endpoint: Annotated[
        str | None,
        Option(
            metavar="URL",
            envvar="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            help="Send a span of each call to this collector, by OTLP over HTTP, as "
            "http://localhost:4318/v1/traces. Needs the extra `otel`. Default: no spans.",
        ),
    ] = None
    settings: Settings = None

    def __call__(self) -> int:
        from .serve import serve

        return serve(self)


@verb(app, "profile")
class ProfileOptions(OfPrompts):
    """Run a pipeline, measure the duration of each op, and write a costs file.

    \b
    Without --prompt or --prompts, the prompts of the config are used.
    Only decode steps in which all rows are busy are measured.
      stepweave profile quickstart
      stepweave profile async_eagle --prompts requests.jsonl --rows 1,16 -o eagle.yaml
      stepweave profile quickstart --set executor=serial --rows 4 --rounds 5
      stepweave profile async_eagle3_grammar --rows 1,4,16 --drafts
    """

    config: Config
    model: Model = None
    rows: Annotated[str, Option(metavar="N,N…", help="Batch sizes to measure.")] = "1,4,8"
    rounds: Annotated[
        int,
        Option(min=1, max=1000, help="Measured rounds per batch size, after one round of warm-up."),
    ] = 3
    drafts: Annotated[
        bool,
        Option(
            "--drafts",
            help="Time steps with fewer drafts too, and print the policy that chooses among them.",
        ),
    ] = False
    prompt: PromptTexts = None
    prompts: PromptsFile = None
    max_tokens: MaxTokens = None
    output: Annotated[
        Path | None,
        to_file("File to write. Default: CONFIG.costs.yaml in the current directory."),
    ] = None
    force: Annotated[bool, Option("--force", help="Replace the file if it exists.")] = False
    settings: Settings = None
    json: AsJson = False

    def __call__(self) -> None:
        from .profile import profile

        profile(self)


@verb(app, "simulate")
class SimulateOptions:
    """Simulate a plan, or layouts of a cluster, on a virtual clock, without a model or tensors.

    \b
    Durations are those of --costs. Without --costs, they are the hints of the config.
    With --cluster, requests are served in simulated time on devices that are described in a file.
      stepweave simulate async_eagle3_grammar --costs llama_8b --rows 10 --tokens-per-step 2.25
      stepweave simulate quickstart --costs quickstart.costs.yaml --compare executor=serial
      stepweave simulate async_eagle3_grammar --costs all
      stepweave simulate abstract_decode --jitter 0.2 --seed 7
      stepweave simulate --cluster llama_70b_h200 --goal latency --limit ttft_p99=500
      stepweave simulate --cluster llama_70b_h200 --layout 8x1x1 --layout 4x1x2 -o layouts.svg
      stepweave simulate --cluster llama_70b_2_nodes --trace mooncake_trace.jsonl --json
      stepweave simulate --cluster llama_70b_h200 --set link.gb_s=185 --set load.rate=2
    """

    config: Annotated[
        str,
        Argument(
            metavar="CONFIG",
            help="A YAML file, or the name of a shipped config. With --cluster, the pipeline in "
            "place of the file's.",
            autocompletion=offer_configs,
        ),
    ] = ""
    costs: Annotated[
        str | None,
        Option(
            "--costs",
            metavar="FILE|NAME|all",
            help=f"{COSTS} all: print a table of all shipped profiles.",
        ),
    ] = None
    rows: Rows = None
    steps: Annotated[
        int | None,
        Option(min=1, max=10_000, help=f"Number of steps to simulate. Default: {STEPS}."),
    ] = None
    jitter: Annotated[
        float,
        Option(
            min=0, max=1, help="Multiply each duration by a random factor between 1 - X and 1 + X."
        ),
    ] = 0.0
    seed: Annotated[
        int | None,
        Option(
            min=0, help="Seed of the jitter, or of a cluster's load. Default: 0, or the file's."
        ),
    ] = None
    tokens_per_step: Annotated[
        float | None,
        Option(min=0.01, max=1000, help="Average number of tokens that a row gets in a step."),
    ] = None
    compare: Annotated[
        list[str] | None,
        Option(
            metavar="KEY=VALUE", help="Also simulate the config with this setting, and compare."
        ),
    ] = None
    cluster: Annotated[
        str | None,
        Option(
            metavar="FILE|NAME",
            help="Simulate layouts of a model over the devices of a cluster file, or of a shipped "
            "one. --set changes that file.",
            autocompletion=offer_clusters,
        ),
    ] = None
    layout: Annotated[
        list[str] | None,
        Option(
            metavar="TxPxR",
            help="A layout of the cluster: ranks of a tensor group, stages, replicas. Can be "
            "repeated. Default: those of the file.",
        ),
    ] = None
    goal: Annotated[
        Literal["throughput", "latency"] | None,
        Option(
            help="What the best layout has: most output tokens a second, or the shortest mean "
            "end-to-end latency. Default: throughput."
        ),
    ] = None
    limit: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=MS",
            help="A latency that the best layout keeps to, as ttft_p99=500. Can be repeated.",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Replay a trace on the cluster: .csv as of Azure, else JSON lines as of Mooncake.",
        ),
    ] = None
    output: Annotated[
        Path | None,
        to_file(
            "Write the timeline to a file: .html, .json (Perfetto), .svg or .txt; of a cluster "
            "the figures: .json, .svg or .txt."
        ),
    ] = None
    settings: Settings = None
    pp: PlannedStages = None
    json: AsJson = False

    @property
    def step_count(self) -> int:
        return STEPS if self.steps is None else self.steps

    @property
    def drawn_by(self) -> int:
        """The seed."""
        return self.seed or 0

    def __call__(self) -> None:
        from .simulate import simulate

        simulate(self)


@verb(app, "trace")
class TraceOptions(OfPrompts):
    """Run a pipeline, record when each op ran, and compare the times with the plan.

    \b
    Without --prompt or --prompts, the prompts of the config are used.
    An abstract graph is simulated.
    Exit status 1 if a request failed or no steady state was reached;
    130 after Ctrl-C and 143 after TERM.
      stepweave trace quickstart
      stepweave trace quickstart -o trace.json --html timeline.html --set depth=3
      stepweave trace async --prompts requests.jsonl --max-tokens 64 --json
      stepweave trace abstract_decode --html timeline.html --steps 20
    """

    config: Config
    model: Model = None
    output: Annotated[
        Path,
        to_file("File to write the timeline to, for Perfetto."),
    ] = Path("trace.json")
    html: Annotated[
        Path | None, Option(metavar="FILE", help="Also write the timeline as an HTML page.")
    ] = None
    prompt: PromptTexts = None
    prompts: PromptsFile = None
    max_tokens: MaxTokens = None
    steps: Annotated[
        int | None,
        Option(
            min=1,
            max=10_000,
            help=f"Number of steps to simulate, of an abstract graph. Default: {STEPS}.",
        ),
    ] = None
    steps_shown: Annotated[
        int | None, Option(min=1, help="Show only the last N steps on the page. Default: all.")
    ] = None
    warm_up: Annotated[
        int, Option(min=0, max=100, help="Number of runs before the traced one.")
    ] = 1
    settings: Settings = None
    json: Annotated[bool, Option("--json", help="Print the summary as one JSON object.")] = False

    @property
    def step_count(self) -> int:
        return STEPS if self.steps is None else self.steps

    def __call__(self) -> int:
        from .trace import trace

        return trace(self)


@verb(app, "list")
class ListOptions:
    """List pipelines, node kinds, policies, choices and costs profiles, with one line for each.

    \b
      stepweave list
      stepweave list pipelines --json
    """

    section: Annotated[
        str | None,
        Argument(
            metavar="SECTION",
            help="One of pipelines, kinds, policies, choices and costs. Default: all.",
            autocompletion=offer_sections,
        ),
    ] = None
    json: AsJson = False

    def __call__(self) -> None:
        from .listing import listing

        listing(self)


@app.command()
def doctor() -> None:
    """Print what this machine and this installation support.

    \b
      stepweave doctor
    """
    from .doctor import doctor as examine

    raise Exit(examine())


@app.command()
def schema() -> None:
    """Print the JSON Schema of config files, for editors.

    \b
      stepweave schema > stepweave.schema.json
    To use it, write this as the first line of a config:
      # yaml-language-server: $schema=stepweave.schema.json
    """
    import json

    from ..configs.schema import json_schema

    print(json.dumps(json_schema(), indent=2))
