"""The verbs of `stepweave graph` and their options; each verb has a file of its own."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .options import Config, Costs, Rows, Settings, offer_configs, offer_ops

graph_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


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


class View(StrEnum):
    """What an SVG shows of a plan."""

    LANES = "lanes"
    DAG = "dag"
    SLOTS = "slots"


@graph_app.command("show")
def graph_show(
    config: Config,
    steps: Annotated[int, typer.Option(min=1, max=32, help="Steps drawn.")] = 3,
    form: Annotated[
        Format, typer.Option("--format", help="lanes: for terminals; dot and mermaid: graphs.")
    ] = Format.LANES,
    width: Annotated[int | None, typer.Option(min=40, max=1000, help="Columns of lanes.")] = None,
    color: Annotated[
        bool | None, typer.Option("--color/--no-color", help="Else as the terminal allows.")
    ] = None,
    proof: Annotated[
        bool, typer.Option("--proof", help="With lanes: every requirement and what meets it.")
    ] = False,
    settings: Settings = None,
    costs: Costs = None,
    rows: Rows = None,
) -> None:
    """Draw a plan: what each actor runs over a few steps, and what waits for what, and why.

    \b
      stepweave graph show quickstart
      stepweave graph show quickstart --steps 4 --set depth=3
      stepweave graph show abstract_decode --format dot | dot -Tsvg > plan.svg
      stepweave graph show async_eagle3_grammar --costs llama_8b --rows 32
    """
    from .draw import show
    from .settings import overrides

    show(
        config,
        overrides(settings),
        form=form,
        steps=steps,
        width=width,
        color=color,
        proof=proof,
        costs=costs,
        rows=rows,
    )


@graph_app.command("render")
def graph_render(
    config: Config,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to; - for stdout.")
    ],
    steps: Annotated[int | None, typer.Option(min=1, max=32, help="Steps drawn.")] = None,
    view: Annotated[
        View,
        typer.Option(help="Of svg and png: lanes over time, the graph, or lifetimes of slots."),
    ] = View.LANES,
    form: Annotated[
        FileFormat | None, typer.Option("--format", help="Else what the file's extension says.")
    ] = None,
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Above the drawing, of svg and png.")
    ] = None,
    settings: Settings = None,
    costs: Costs = None,
    rows: Rows = None,
) -> None:
    """Write the plan to a file: .svg .html .png .dot .mmd .json

    \b
      stepweave graph render quickstart -o plan.svg
      stepweave graph render quickstart -o slots.svg --view slots --set depth=3
      stepweave graph render async_eagle3_grammar -o plan.html
      stepweave graph render abstract_decode -o - --format mermaid
    """
    from ..views.files import Drawing
    from .render import render
    from .settings import overrides

    drawing = Drawing(view, steps, title)
    render(
        config,
        overrides(settings),
        output,
        form=form,
        drawing=drawing,
        costs=costs,
        rows=rows,
    )


From = Annotated[
    str,
    typer.Argument(
        metavar="A", help="A node or op: forward, commit.host …", autocompletion=offer_ops
    ),
]
To = Annotated[
    str, typer.Argument(metavar="B", help="Another, or the same.", autocompletion=offer_ops)
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


@graph_app.command("why")
def graph_why(
    config: Config,
    first: From,
    then: To,
    json: AsJson = False,
    settings: Settings = None,
    costs: Costs = None,
    rows: Rows = None,
) -> None:
    """Say why B waits for A: what the wait protects, what else it orders, what it costs.

    \b
    A wait the other way round is shown too; without any, what orders them instead.
      stepweave graph why quickstart d2h_copy commit
      stepweave graph why quickstart draft.device d2h_copy.device --set depth=3
      stepweave graph why abstract_decode d2h_copy commit.host.advance --json
    """
    from .settings import overrides
    from .why import Asked, why

    why(Asked(config, first, then, overrides(settings), costs, rows), as_json=json)


@graph_app.command("why-not")
def graph_why_not(
    config: Config,
    first: From,
    then: To,
    distance: Annotated[
        int | None,
        typer.Option(
            metavar="D", min=-1000, max=1000, help="Ask about A of step i and B of step i + D."
        ),
    ] = None,
    json: AsJson = False,
    settings: Settings = None,
    costs: Costs = None,
    rows: Rows = None,
) -> None:
    """Say why B need not wait for A: what orders them already, or that nothing has to.

    \b
      stepweave graph why-not quickstart sample d2h_copy
      stepweave graph why-not quickstart forward.device commit.host.advance --distance -1
    """
    from .settings import overrides
    from .why import Asked, why_not

    asked = Asked(config, first, then, overrides(settings), costs, rows)
    why_not(asked, distance, as_json=json)


@graph_app.command("diff")
def graph_diff(
    before: Annotated[
        str, typer.Argument(metavar="X", help="A config, as it was.", autocompletion=offer_configs)
    ],
    after: Annotated[
        str, typer.Argument(metavar="Y", help="A config, as it is.", autocompletion=offer_configs)
    ],
    settings: Settings = None,
    before_settings: Annotated[
        list[str] | None, typer.Option("--set-x", metavar="KEY=VALUE", help="A setting of X only.")
    ] = None,
    after_settings: Annotated[
        list[str] | None, typer.Option("--set-y", metavar="KEY=VALUE", help="A setting of Y only.")
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with 1 if the plans differ.")
    ] = False,
    html: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a page with both plans side by side."),
    ] = None,
    json: AsJson = False,
    costs: Costs = None,
    rows: Rows = None,
) -> None:
    """Say what differs between two plans: waits, slots, orders, requirements, period.

    \b
    `protection` lists what only a path of other orderings protects now, and what no longer.
      stepweave graph diff quickstart quickstart --set-y depth=1
      stepweave graph diff async drafter_stream
      stepweave graph diff async async --set-y slots.staging=1 --exit-code
      stepweave graph diff quickstart quickstart --set-x depth=1 --html difference.html
    """
    from .change import pairs
    from .diff import Chosen, diff
    from .reporting import Exit
    from .settings import overrides

    common = overrides(settings)
    sides = [
        Chosen(config, {**common, **pairs(option, own)}, costs, rows)
        for config, own, option in (
            (before, before_settings, "--set-x"),
            (after, after_settings, "--set-y"),
        )
    ]
    raise Exit(diff(sides[0], sides[1], json, exit_code, html))


@graph_app.command("whatif")
def graph_whatif(
    config: Config,
    scale: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=F", help="The ops of a node, or one op, take F times as long."),
    ] = None,
    cost: Annotated[
        list[str] | None, typer.Option(metavar="OP=US", help="The op takes so many µs.")
    ] = None,
    slots: Annotated[
        list[str] | None, typer.Option(metavar="VALUE=N", help="The value has N slots.")
    ] = None,
    settings: Settings = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="A,B,C or FROM:TO:STEPS of scale.NAME, cost.OP, slots.VALUE, rows (of --costs) or "
            "any setting. Given twice: a table.",
        ),
    ] = None,
    keep_plan: Annotated[
        bool,
        typer.Option("--keep-plan", help="Time the same orders, waits and slots."),
    ] = False,
    rank: Annotated[
        bool, typer.Option("--rank", help="With a change: which op of the changed plan matters.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The sweep as .svg, .csv or .json."),
    ] = None,
    json: AsJson = False,
    costs: Costs = None,
    rows: Rows = None,
) -> None:
    """Say what another duration, slot count or setting would do; or which op is worth the effort.

    \b
    Without any change: for each op how the period follows it, exactly, from the cycles.
      stepweave graph whatif abstract_decode
      stepweave graph whatif quickstart --set depth=1
      stepweave graph whatif quickstart --set depth=1 --rank
      stepweave graph whatif abstract_decode --scale forward=0.5 --cost bitmask.host=2000
      stepweave graph whatif abstract_decode --sweep scale.forward=0.1:1:10 -o sweep.svg
      stepweave graph whatif quickstart --sweep depth=1,2,3 --sweep cost.forward.device=100,1000
      stepweave graph whatif async_eagle3_grammar --costs llama_8b --sweep rows=1,8,32,128
    """
    from .change import Change, Replanner
    from .sweeps import sweep as read_sweep
    from .whatif import whatif

    change = Change.read(settings or (), scale or (), cost or (), slots or ())
    whatif(
        Replanner(config, costs, rows, keep_plan),
        change,
        [read_sweep(each) for each in sweep or ()],
        output,
        rank=rank,
        as_json=json,
    )
