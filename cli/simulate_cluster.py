"""`stepweave simulate --cluster`: layouts of a model over devices, under a load, on paper."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..clusters.comparison import Comparison, compare, layouts_of
from ..clusters.file import Cluster, load_cluster
from ..clusters.goal import Limit
from ..clusters.layout import Layout, LayoutConfig
from ..clusters.words import about, figures, heading, legend, spent, verdict
from ..configs.errors import ConfigError, Mark
from ..configs.yaml_source import Located
from .output import check_writable, save
from .reporting import say
from .settings import overrides
from .wrapping import columns, paragraph, table, whole_items

if TYPE_CHECKING:
    from .verbs import SimulateOptions

_OF_A_PLAN = ("costs", "rows", "jitter", "compare", "tokens_per_step", "steps", "pp")


def simulate_cluster(asked: SimulateOptions, name: str) -> None:
    """Simulate the layouts of a cluster file, and print what they come to."""
    for option in _OF_A_PLAN:
        if getattr(asked, option):
            said = "is for one plan, without --cluster; a cluster's costs are in its file"
            raise ConfigError.at(Mark(f"--{option.replace('_', '-')}"), said)
    form = _form(asked.output)
    cluster = load_cluster(name, _settings(asked))
    layouts = [_layout(text) for text in asked.layout or ()] or layouts_of(cluster)
    limits = [Limit.of(text) for text in asked.limit or ()]
    with _progress(cluster, len(layouts)) as told:
        found = compare(
            cluster, layouts, goal=asked.goal or "throughput", limits=limits, progress=told
        )
    print(json.dumps(found.to_json()) if asked.json else _text(found), end="\n" * asked.json)
    if form is not None and asked.output is not None:
        save(asked.output, form(found))
        say(f"written to {asked.output}")


def _settings(asked: SimulateOptions) -> dict[str, Any]:
    """Of the cluster file: those of --set, and what other options say."""
    found: dict[str, Any] = dict(overrides(asked.settings))
    if asked.trace is not None:
        found["load.trace"] = Located(str(asked.trace.absolute()), Mark(f"--trace {asked.trace}"))
        found.setdefault("load.rate", "null")
        found.setdefault("load.requests", "null")
    if asked.config:
        found["pipeline"] = Located(asked.config, Mark(asked.config))
    if asked.seed is not None:
        found["load.seed"] = str(asked.seed)
    return found


def _layout(text: str) -> LayoutConfig:
    """`8x1x2`: tensor 8, pipeline 1, replicas 2. Raises `ConfigError`."""
    sizes = text.lower().split("x")
    if not 1 <= len(sizes) <= 3 or not all(
        size.isascii() and size.isdecimal() and 1 <= int(size[:9]) <= 4096 for size in sizes
    ):
        said = "write it as TENSORxPIPELINExREPLICAS, as in 4x2x1; what is left out is 1"
        raise ConfigError.at(Mark(f"--layout {text}"), said)
    tensor, pipeline, replicas = map(int, (*sizes, "1", "1")[:3])
    return LayoutConfig(tensor=tensor, pipeline=pipeline, replicas=replicas)


# --- what is printed ------------------------------------------------------------------------------


def _text(found: Comparison) -> str:
    width = columns()
    lines = [*paragraph(heading(found), width), ""]
    for line in about(found):
        lines += paragraph(line[9:], width, label=line[:9])
    lines += ["", "latencies in ms", *_table(figures(found), width)]
    lines += ["", "where the time of the devices goes", *_table(spent(found.found), width)]
    for line in legend(found.found):
        lines += paragraph(line, width, indent=2)
    lines.append("")
    for line in verdict(found):
        lines += paragraph(line, width)
    return "\n".join(lines) + "\n"


def _table(rows: list[tuple[str, ...]], width: int) -> list[str]:
    """A column for each layout where a row for each would be too wide."""
    lines = table(rows, right=range(1, len(rows[0])), indent=0)
    if max(map(len, lines)) <= width:
        return lines
    turned = [("", *(f"{place}" for place in range(1, len(rows))))]
    turned += [tuple(column) for column in list(zip(*rows, strict=True))[1:]]
    names = [f"{place}: {row[0]}" for place, row in enumerate(rows[1:], start=1)]
    return [
        *whole_items(names, width),
        *table(turned, width, right=range(1, len(rows)), indent=0),
    ]


def _json(found: Comparison) -> str:
    return json.dumps(found.to_json(), indent=2) + "\n"


def _svg(found: Comparison) -> str:
    from ..clusters.picture import picture

    return picture(found)


_FORMS: Mapping[str, Callable[[Comparison], str]] = MappingProxyType(
    {".json": _json, ".svg": _svg, ".txt": _text}
)


def _form(path: Path | None) -> Callable[[Comparison], str] | None:
    """What a file of that ending holds. Raises `ConfigError` before anything is computed."""
    if path is None:
        return None
    if path.suffix not in _FORMS:
        known = ", ".join(_FORMS)
        raise ConfigError.at(
            Mark(f"--output {path}"), f"a cluster's figures are written as {known}"
        )
    check_writable(path)
    return _FORMS[path.suffix]


@contextmanager
def _progress(cluster: Cluster, layouts: int) -> Iterator[Callable[[Layout, int], None]]:
    """A bar on stderr, of the requests of all layouts, where somebody looks at a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda layout, ended: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    shown = (TextColumn("simulating {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *shown,
        TextColumn("{task.completed} requests"),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(cluster.name, total=None)
        yield lambda layout, ended: bar.update(task, description=f"{layout}", completed=ended)
