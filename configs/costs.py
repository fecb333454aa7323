"""Costs files: how long each op takes, measured or assumed, by batch size.

A file is read like any other config, so an error has line and column. It may know ops that a
pipeline lacks, and lack ops that it has; `Costs.of` says so when the two are brought together.
"""

from __future__ import annotations

import difflib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ..graph.errors import did_you_mean
from ..graph.ranks import declared_name
from ..graph.step_graph import StepGraph, Vertex
from ..nodes.node_config import Microseconds, Name
from .errors import ConfigError, Mark, existing_file
from .part import Part
from .shipped_costs import SHIPPED, shipped_costs
from .validated import validated
from .yaml_source import read_yaml

MAX_ROWS = 1 << 20

Text = Annotated[str, Field(min_length=1, max_length=4096)]


class Point(Part):
    """How long an op took at one batch size, in µs; the median is what plans are made with."""

    p50: Microseconds
    p10: Microseconds | None = None
    p90: Microseconds | None = None
    mean: Microseconds | None = None
    samples: int | None = Field(default=None, ge=1, description="Steps that were timed.")


def _batch_size(text: str) -> str:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= MAX_ROWS):
        raise ValueError(f"{text!r} is not a batch size: write a whole number from 1 on")
    if text.startswith("0"):
        raise ValueError(f"{text!r} begins with a zero: write {int(text)}")
    return text


def _median_alone(value: Any) -> Any:
    return {"p50": value} if isinstance(value, int | float) else value


Curve = dict[
    Annotated[str, AfterValidator(_batch_size)],
    Annotated[Point, BeforeValidator(_median_alone, json_schema_input_type=Microseconds | Point)],
]
"""µs at some batch sizes; straight lines between them."""


class OpCosts(Part):
    """How long one op takes: the sum of what it takes by rows and by query tokens."""

    us: Microseconds | None = Field(default=None, description="µs at every batch size.")
    rows: Curve = Field(default_factory=dict, max_length=256, description="µs by number of rows.")
    tokens: Curve = Field(
        default_factory=dict, max_length=256, description="µs by number of query tokens."
    )

    @model_validator(mode="after")
    def _says_something(self) -> OpCosts:
        if self.us is None and not self.rows and not self.tokens:
            raise ValueError("has no duration: write a number, or `rows: {1: …, 8: …}`")
        return self

    def at(self, rows: int, tokens: int) -> float:
        """µs of a step with so many rows and query tokens."""
        return (
            (self.us or 0.0) + _interpolated(self.rows, rows) + _interpolated(self.tokens, tokens)
        )

    def outside(self, rows: int, tokens: int) -> Iterator[str]:
        """For each batch size that lies beyond what is known: what was done about it."""
        for curve, size, unit in ((self.rows, rows, "rows"), (self.tokens, tokens, "tokens")):
            known = sorted(int(each) for each in curve)
            if known and size > known[-1]:
                how = "continued in a straight line" if len(known) > 1 else "taken as it is there"
                yield f"beyond the largest known batch of {known[-1]} {unit}, {how}"
            elif known and size < known[0]:
                yield f"below the smallest known batch of {known[0]} {unit}, taken as it is there"


def _interpolated(curve: Mapping[str, Point], size: int) -> float:
    """Straight lines between the points; flat before the first, on along the last line."""
    points = sorted((int(at), point.p50) for at, point in curve.items())
    if not points:
        return 0.0
    if size <= points[0][0] or len(points) == 1:
        return points[0][1]
    right = min(max(1, bisect_right([at for at, _ in points], size)), len(points) - 1)
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    along = (size - x0) / (x1 - x0)
    found = y0 * (1 - along) + y1 * along
    return max(found, y1) if size > x1 else found


def _number_alone(value: Any) -> Any:
    return {"us": value} if isinstance(value, int | float) else value


NumberOrCosts = Annotated[
    OpCosts, BeforeValidator(_number_alone, json_schema_input_type=Microseconds | OpCosts)
]


class LinkCosts(Part):
    """What a message or collective takes, where `ops` does not say."""

    latency_us: Microseconds = Field(default=0.0, description="µs before the first byte is there.")
    gb_per_s: float = Field(
        gt=0, le=1e6, allow_inf_nan=False, description="Bandwidth in 10⁹ bytes a second."
    )

    def us(self, nbytes: int) -> float:
        """µs for so many bytes of each member."""
        return self.latency_us + nbytes / (self.gb_per_s * 1e3)


class CostsFile(Part):
    """What a costs file says."""

    version: Literal[1] = Field(default=1, description="Version of this format.")
    basis: Literal["measured", "assumed"] = Field(
        description="Whether the numbers were measured or assumed."
    )
    describes: Text = Field(description="Model and machine, as text for readers.")
    device: Text | None = Field(default=None, description="The device that ran the device ops.")
    executor: Text | None = Field(default=None, description="The executor that ran the pipeline.")
    versions: dict[Name, Text] = Field(default_factory=dict, max_length=64)
    date: Text | None = None
    notes: tuple[Text, ...] = Field(default=(), max_length=64)
    sources: tuple[Text, ...] = Field(default=(), max_length=64)
    batch: int | None = Field(
        default=None,
        ge=1,
        le=MAX_ROWS,
        description="Number of rows assumed when --rows is not given.",
    )
    period_us: Curve = Field(
        default_factory=dict, max_length=256, description="The measured time per step, by rows."
    )
    launch_latency_us: dict[Name, Microseconds] = Field(
        default_factory=dict,
        max_length=256,
        description="By node: µs from the start of the launch of its device op until that op "
        "can start.",
    )
    link: LinkCosts | None = Field(
        default=None,
        description="Between ranks: how long a comm node takes for its `bytes`.",
    )
    ops: dict[Name, NumberOrCosts] = Field(
        min_length=1, max_length=4096, description="Durations by op, as in `forward.device: 4000`."
    )
    kinds: dict[Name, dict[Name, NumberOrCosts]] = Field(
        default_factory=dict,
        max_length=256,
        description="By node kind: durations of ops that replace those in `ops` where a node "
        "is of that kind.",
    )


@dataclass(frozen=True)
class OpTimes:
    """A costs file brought to one graph and one batch size: all that a planner needs."""

    costs: Mapping[str, float]  # µs by op of the graph; ops that the file lacks are not in it
    launch_latency_us: Mapping[str, float]  # by node of the graph
    rows: int
    tokens: int
    notes: tuple[str, ...]  # what was missing, not wanted, or beyond what is known
    complete: bool  # it knows every op of the graph

    def on(self, graph: StepGraph) -> StepGraph:
        """The graph with the launch latencies."""
        nodes = tuple(
            replace(node, launch_latency_us=self.launch_latency_us[node.name])
            if node.name in self.launch_latency_us
            else node
            for node in graph.nodes
        )
        return replace(graph, nodes=nodes) if self.launch_latency_us else graph


@dataclass(frozen=True)
class Costs:
    """A costs file and its name."""

    name: str
    file: CostsFile

    @property
    def label(self) -> str:
        """What every reader has to know of these numbers, in a few words."""
        basis = "ASSUMED, not measured" if self.file.basis == "assumed" else "measured"
        when = f", {self.file.date}" if self.file.date else ""
        return f"{self.name} ({basis}{when}): {self.file.describes}"

    @property
    def origin(self) -> str:
        """The same in fewer words, to stand beside a period."""
        if self.file.basis == "assumed":
            return f"{self.name}: ASSUMED, not measured"
        where = f" on {self.file.device}" if self.file.device else ""
        when = f", {self.file.date}" if self.file.date else ""
        return f"{self.name}: measured{where}{when}"

    @property
    def batch(self) -> int:
        """The rows that are meant where nobody says: the file's, else the most that it knows."""
        known = [int(size) for op in self.file.ops.values() for size in op.rows]
        return self.file.batch or max(known, default=1)

    def of(self, graph: StepGraph, *, rows: int | None = None, window: int = 1) -> OpTimes:
        """What ops of `graph` take in a step of `rows` rows, each of `window` query tokens."""
        rows = rows or self.batch
        tokens = rows * window
        found: dict[str, float] = {}
        beyond: dict[str, list[str]] = {}
        for name, vertex in graph.vertices.items():
            if (op := self.op_costs(declared_name(graph, name), vertex)) is not None:
                found[name] = op.at(rows, tokens)
                for said in op.outside(rows, tokens):
                    beyond.setdefault(said, []).append(name)
            elif (us := self._meeting_us(vertex)) is not None:
                found[name] = us
        latencies = self.file.launch_latency_us
        return OpTimes(
            costs=MappingProxyType(found),
            launch_latency_us=MappingProxyType(
                {n.name: latencies[n.name] for n in graph.nodes if n.device and n.name in latencies}
            ),
            rows=rows,
            tokens=tokens,
            complete=len(found) == len(graph.vertices),
            notes=(
                *self._mismatch(graph, found),
                *(f"{said}: {', '.join(ops)}" for said, ops in beyond.items()),
            ),
        )

    def op_costs(self, name: str, vertex: Vertex) -> OpCosts | None:
        """What the file says of an op, first of all for the kind of its node."""
        return self.file.kinds.get(vertex.node.kind, {}).get(name) or self.file.ops.get(name)

    def _meeting_us(self, vertex: Vertex) -> float | None:
        """How long the phases of a comm node take: it enters at once, and leaves by the link."""
        comm, link = vertex.node.comm, self.file.link
        if comm is None or link is None or vertex.op.phase not in ("enter", "leave"):
            return None
        return link.us(comm.nbytes) if vertex.op.phase == "leave" else 0.0

    def _mismatch(self, graph: StepGraph, found: Mapping[str, float]) -> Iterator[str]:
        """Ops of the one that the other does not know; a likely slip of the pen is named."""
        ours = dict.fromkeys(declared_name(graph, name) for name in graph.vertices)
        missing = [name for name in ours if name not in {declared_name(graph, n) for n in found}]
        kinds = {vertex.node.kind for vertex in graph.vertices.values()}
        of_kinds = (ops for kind, ops in self.file.kinds.items() if kind in kinds)
        known = {*self.file.ops, *(op for ops in of_kinds for op in ops)}
        slips = {
            name: close[0]
            for name in sorted(known - ours.keys())
            if (close := difflib.get_close_matches(name, missing, n=1, cutoff=0.8))
        }
        for name, near in slips.items():
            yield f"warning: {name!r} is not an op of this pipeline (did you mean {near!r}?)"
        if missing:
            yield f"warning: no cost for {', '.join(missing)}: hints or defaults are used"
        foreign = sorted(known - ours.keys() - slips.keys())
        if foreign:
            yield f"not in this pipeline: {', '.join(foreign)}"


def assumed_costs() -> tuple[str, ...]:
    """Those of models and devices that the costs are assumed for, not measured on."""
    return tuple(name for name in shipped_costs() if load_costs(name).file.basis == "assumed")


def load_costs(name: str | Path) -> Costs:
    """The costs file of a path or shipped name. Raises `ConfigError` listing all that is wrong."""
    path = _find(str(name))
    source = read_yaml(path, str(name))
    file = validated(CostsFile, source)
    return Costs(path.stem if path.parent == SHIPPED else str(name), file)


def _find(name: str) -> Path:
    if (found := existing_file(name, Path())) is not None:
        return found
    path = Path(name)
    stem = path.name.removesuffix(".yaml")
    if path.parent == Path() and stem in shipped_costs():
        return SHIPPED / f"{stem}.yaml"
    near = did_you_mean(stem, shipped_costs()) if path.parent == Path() else ""
    raise ConfigError.at(Mark(name), f"no such costs file or shipped profile{near}", "SW-NO-FILE")


def costs_text(file: CostsFile, heading: str = "") -> str:
    """A costs file as text, `heading` as comments above it."""
    return "".join(f"# {line}\n" for line in heading.splitlines()) + to_yaml(file)


def to_yaml(file: CostsFile) -> str:
    """The YAML of a costs file: one line for each batch size, so that files compare well."""
    data = file.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    data = {"version": file.version, **data}
    ops = data.pop("ops")
    lines = [
        line
        for key, value in data.items()
        for line in (_curve(key, value, "") if key == "period_us" else _entry(key, value))
    ]
    lines.append("ops:")
    for name, op in ops.items():
        if op.keys() == {"us"}:
            lines.append(f"  {name}: {json.dumps(op['us'])}")
            continue
        lines.append(f"  {name}:")
        for key, value in op.items():
            lines += _curve(key, value, "    ") if key != "us" else [f"    us: {json.dumps(value)}"]
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Any) -> list[str]:
    return [f"{key}: {json.dumps(value, ensure_ascii=False)}"]


def _curve(key: str, points: Mapping[str, Any], indent: str) -> list[str]:
    """A mapping of batch sizes to points."""
    return [
        f"{indent}{key}:",
        *(f"{indent}  {size}: {_flow(point)}" for size, point in points.items()),
    ]


def _flow(point: Mapping[str, float]) -> str:
    if point.keys() == {"p50"}:
        return json.dumps(point["p50"])
    return "{" + ", ".join(f"{key}: {json.dumps(value)}" for key, value in point.items()) + "}"
