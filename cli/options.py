"""Arguments and options that several verbs share, and what a shell completes them with."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

if TYPE_CHECKING:
    from ..graph.plan import Plan


# The modules that know what to offer are imported when a shell asks.
def offer_configs(incomplete: str) -> list[str]:
    from .completion import configs

    return configs(incomplete)


def offer_costs(incomplete: str) -> list[str]:
    from .completion import costs

    return costs(incomplete)


def offer_clusters(incomplete: str) -> list[str]:
    from .completion import clusters

    return clusters(incomplete)


def offer_settings(ctx: Context, incomplete: str) -> list[str]:
    from .completion import settings

    return settings(ctx, incomplete)


def offer_sections(incomplete: str) -> list[str]:
    from .completion import sections

    return sections(incomplete)


def offer_ops(ctx: Context, incomplete: str) -> list[str]:
    from .completion import ops

    return ops(ctx, incomplete)


COSTS = (
    "Read durations of ops from a file that `profile` wrote, or from a shipped, assumed profile."
)
Config = Annotated[
    str,
    Argument(
        metavar="CONFIG",
        help="A YAML file, or the name of a shipped config.",
        autocompletion=offer_configs,
    ),
]
Settings = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting of the config. Can be repeated.",
        autocompletion=offer_settings,
    ),
]
Costs = Annotated[
    str | None, Option("--costs", metavar="FILE|NAME", help=COSTS, autocompletion=offer_costs)
]
Rows = Annotated[
    int | None,
    Option(
        min=1,
        max=1 << 20,
        help="Batch size at which --costs is read. Default: the `batch` of the file.",
    ),
]
PromptTexts = Annotated[list[str] | None, Option(metavar="TEXT", help="A prompt. Can be repeated.")]
PromptsFile = Annotated[
    Path | None,
    Option(
        metavar="FILE.jsonl",
        help="Read requests from a file, one JSON object per line; - reads standard input.",
    ),
]
MaxTokens = Annotated[
    int | None,
    Option(min=1, max=1 << 20, help="Largest number of tokens generated for each request."),
]
Model = Annotated[
    str | None,
    Option(metavar="NAME", help="A directory or a hub name, in place of the config's model."),
]
Ranks = Annotated[
    int | None,
    Option(
        "--tp",
        metavar="N",
        min=1,
        max=1024,
        help="Divide the model among N processes, each with a device of its own (tensor "
        "parallelism). The command starts them.",
    ),
]
Stages = Annotated[
    int | None,
    Option(
        "--pp",
        metavar="N",
        min=1,
        max=7,
        help="Divide the model into N stages of some layers each, a process for each (pipeline "
        "parallelism), with N + 1 steps in flight. The command starts them.",
    ),
]
PlannedStages = Annotated[
    int | None,
    Option(
        "--pp",
        metavar="N",
        min=1,
        max=7,
        help="The plan of a model in N stages of some layers each, with N + 1 steps in flight.",
    ),
]
AsJson = Annotated[bool, Option("--json", help="Print one JSON object.")]


def to_file(help: str) -> Any:
    """The option `--output` of a verb. Raises nothing."""
    return Option("--output", "-o", metavar="FILE", help=help)


class OfPlan:
    """A verb on one plan: its config and settings, and the costs that it is planned with."""

    config: str
    settings: list[str] | None
    pp: int | None
    costs: str | None
    rows: int | None

    def plan(self) -> "Plan":
        """Load, compile, prove. Raises `ConfigError`, or `Refused` with the place."""
        from .planned import planned
        from .settings import in_stages

        settings = in_stages(self.settings, self.pp)
        return planned(self.config, settings, costs=self.costs, rows=self.rows)


class OfPrompts:
    """A verb that runs requests: those of the command line, else those of the config."""

    prompt: list[str] | None
    prompts: Path | None
    max_tokens: int | None
