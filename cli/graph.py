"""The verbs of `stepweave graph` and their options; what a verb does has a file of its own."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from .options import (
    AsJson,
    Config,
    Costs,
    OfPlan,
    PlannedStages,
    Rows,
    Settings,
    offer_configs,
    offer_ops,
    to_file,
)
from .verb import verb

graph_app = Typer(no_args_is_help=True, rich_markup_mode=None)


class Format(StrEnum):
    """Of a drawn plan."""

    LANES = "lanes"
    DOT = "dot"
    MERMAID = "mermaid"
    JSON = "json"


class FileFormat(StrEnum):
    """Of a plan in a file."""

    SVG = "svg"
    HTML = "html"
    PNG = "png"
    DOT = "dot"
    MERMAID = "mermaid"
    JSON = "json"


class Extension(StrEnum):
    """Of the theory: what a plan can be derived without, to see what it gains."""

    KEYS = "keys"


class View(StrEnum):
    """What an SVG shows of a plan."""

    LANES = "lanes"
    DAG = "dag"
    SLOTS = "slots"


@verb(graph_app, "show")
class ShowOptions(OfPlan):
    """Draw a plan: what each actor runs over a few steps, and the waits with their reasons.

    \b
      stepweave graph show quickstart
      stepweave graph show quickstart --steps 4 --set depth=3
      stepweave graph show abstract_decode --format dot | dot -Tsvg > plan.svg
      stepweave graph show async_eagle3_grammar --costs llama_8b --rows 32
      stepweave graph show quickstart --yaml
    """

    config: Config
    yaml: Annotated[
        bool,
        Option(
            "--yaml",
            help="Print the config in place of a drawing: merged with what it extends and --set, "
            "every key with its meaning.",
        ),
    ] = False
    steps: Annotated[int, Option(min=1, max=32, help="Number of steps to draw.")] = 3
    form: Annotated[
        Format,
        Option(
            "--format",
            help="lanes: a drawing for terminals. dot, mermaid: the graph. json: the plan as data.",
        ),
    ] = Format.LANES
    width: Annotated[
        int | None,
        Option(min=40, max=1000, help="Width of the lanes in characters. Default: the terminal's."),
    ] = None
    color: Annotated[
        bool | None,
        Option("--color/--no-color", help="Use colours or not. Default: if the terminal has them."),
    ] = None
    proof: Annotated[
        bool, Option("--proof", help="With lanes: also print every requirement and what meets it.")
    ] = False
    settings: Settings = None
    pp: PlannedStages = None
    costs: Costs = None
    rows: Rows = None

    def __call__(self) -> None:
        from .draw import show

        show(self)


@verb(graph_app, "render")
class RenderOptions(OfPlan):
    """Write a plan to a file: .svg, .html, .png, .dot, .mmd or .json.

    \b
      stepweave graph render quickstart -o plan.svg
      stepweave graph render quickstart -o slots.svg --view slots --set depth=3
      stepweave graph render async_eagle3_grammar -o plan.html
      stepweave graph render abstract_decode -o - --format mermaid
    """

    config: Config
    output: Annotated[
        str,
        to_file("File to write; - writes to standard output."),
    ]
    steps: Annotated[int | None, Option(min=1, max=32, help="Number of steps to draw.")] = None
    view: Annotated[
        View,
        Option(help="For svg and png: draw lanes over time, the graph, or the lifetimes of slots."),
    ] = View.LANES
    form: Annotated[
        FileFormat | None,
        Option("--format", help="Format of the file. Default: by the file's extension."),
    ] = None
    title: Annotated[
        str | None, Option(metavar="TEXT", help="For svg and png: title above the drawing.")
    ] = None
    settings: Settings = None
    pp: PlannedStages = None
    costs: Costs = None
    rows: Rows = None

    def __call__(self) -> None:
        from .render import render

        render(self)


From = Annotated[
    str,
    Argument(metavar="A", help="A node or op: forward, commit.host …", autocompletion=offer_ops),
]
To = Annotated[
    str, Argument(metavar="B", help="A node or op; may be the same as A.", autocompletion=offer_ops)
]


@verb(graph_app, "why")
class WhyOptions(OfPlan):
    """Explain why B waits for A: what the wait protects, what else it orders, what it costs.

    \b
    Waits of A for B are shown too. Without any wait: which other orderings hold.
      stepweave graph why quickstart d2h_copy commit
      stepweave graph why quickstart draft.device d2h_copy.device --set depth=3
      stepweave graph why abstract_decode d2h_copy commit.host.advance --json
    \b
    With STATE:CLASS twice: after how many steps a key passes between two classes of users.
      stepweave graph why kv_swap kv:swap kv:owner
    """

    config: Config
    first: From
    then: To
    json: AsJson = False
    settings: Settings = None
    pp: PlannedStages = None
    costs: Costs = None
    rows: Rows = None

    def __call__(self) -> None:
        from .why import why

        why(self)


@verb(graph_app, "why-not")
class WhyNotOptions(OfPlan):
    """Explain why B need not wait for A: what orders them already, or that no order is needed.

    \b
      stepweave graph why-not quickstart sample d2h_copy
      stepweave graph why-not quickstart forward.device commit.host.advance --distance -1
    """

    config: Config
    first: From
    then: To
    distance: Annotated[
        int | None,
        Option(metavar="D", min=-1000, max=1000, help="Compare A of step i with B of step i + D."),
    ] = None
    json: AsJson = False
    settings: Settings = None
    pp: PlannedStages = None
    costs: Costs = None
    rows: Rows = None

    def __call__(self) -> None:
        from .why import why_not

        why_not(self)


@verb(graph_app, "diff")
class DiffOptions:
    """Print what differs between two plans: waits, slots, orders, requirements, period.

    \b
    `protection` lists requirements that changed between a wait and a path of other orderings.
      stepweave graph diff quickstart quickstart --set-y depth=1
      stepweave graph diff async drafter_stream
      stepweave graph diff async async --set-y slots.staging=1 --exit-code
      stepweave graph diff quickstart quickstart --set-x depth=1 --html difference.html
      stepweave graph diff async async --set-x depth=1 --switch
    """

    before: Annotated[
        str, Argument(metavar="X", help="The first config.", autocompletion=offer_configs)
    ]
    after: Annotated[
        str, Argument(metavar="Y", help="The second config.", autocompletion=offer_configs)
    ]
    settings: Settings = None
    before_settings: Annotated[
        list[str] | None, Option("--set-x", metavar="KEY=VALUE", help="Change a setting of X only.")
    ] = None
    after_settings: Annotated[
        list[str] | None, Option("--set-y", metavar="KEY=VALUE", help="Change a setting of Y only.")
    ] = None
    exit_code: Annotated[
        bool, Option("--exit-code", help="Exit with status 1 if the plans differ.")
    ] = False
    switch: Annotated[
        bool,
        Option("--switch", help="Say how a running engine goes from X to Y: what waits once."),
    ] = False
    html: Annotated[
        str | None, Option(metavar="FILE", help="Write a page with both plans side by side.")
    ] = None
    json: AsJson = False
    costs: Costs = None
    rows: Rows = None

    def __call__(self) -> int:
        from .diff import diff

        return diff(self)


@verb(graph_app, "whatif")
class WhatIfOptions:
    """Predict what another duration, slot count or setting would do, or rank the ops.

    \b
    Without a change: for each op, how the period depends on its duration.
      stepweave graph whatif abstract_decode
      stepweave graph whatif quickstart --set depth=1
      stepweave graph whatif quickstart --set depth=1 --rank
      stepweave graph whatif abstract_decode --scale forward=0.5 --cost bitmask.host=2000
      stepweave graph whatif abstract_decode --sweep scale.forward=0.1:1:10 -o sweep.svg
      stepweave graph whatif quickstart --sweep depth=1,2,3 --sweep cost.forward.device=100,1000
      stepweave graph whatif async_eagle3_grammar --costs llama_8b --sweep rows=1,8,32,128
      stepweave graph whatif kv_swap --without keys
    """

    config: Config
    scale: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=F", help="Multiply the duration of an op, or of all ops of a node, by F."
        ),
    ] = None
    cost: Annotated[
        list[str] | None, Option(metavar="OP=US", help="Set the duration of an op, in µs.")
    ] = None
    slots: Annotated[list[str] | None, Option(metavar="VALUE=N", help="Give a value N slots.")] = (
        None
    )
    settings: Settings = None
    sweep: Annotated[
        list[str] | None,
        Option(
            metavar="KEY=VALUES",
            help="Try several values, A,B,C or FROM:TO:STEPS, of scale.NAME, cost.OP, "
            "slots.VALUE, rows (of --costs) or any setting. Two sweeps make a table.",
        ),
    ] = None
    without: Annotated[
        list[Extension] | None,
        Option(
            help="Plan without an extension. keys: as if all users of a keyed state were of one "
            "class."
        ),
    ] = None
    keep_plan: Annotated[
        bool,
        Option(
            "--keep-plan",
            help="Keep orders, waits and slots of the config's plan, "
            "and change only its durations.",
        ),
    ] = False
    rank: Annotated[
        bool, Option("--rank", help="With a change: also rank the ops of the changed plan.")
    ] = False
    output: Annotated[
        Path | None,
        to_file("Write the sweep to a file: .svg, .csv or .json."),
    ] = None
    json: AsJson = False
    costs: Costs = None
    rows: Rows = None

    def __call__(self) -> None:
        from .whatif import whatif

        whatif(self)
