"""Cluster files: a model, devices and links, layouts of the one over the others, and a load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ..configs.costs import Text
from ..configs.errors import ConfigError
from ..configs.load import with_settings
from ..configs.part import Part
from ..configs.schema import SchedulerConfig
from ..configs.validated import validated
from ..configs.yaml_source import Located, read_yaml
from ..nodes.node_config import Name
from .layout import LayoutConfig
from .links import unknown_algorithm
from .model_shape import Count, ShapeConfig
from .parts import DeviceConfig, FromZero, LinkConfig, Positive, Share
from .shipped import SHIPPED, cluster_path, part_of, shipped_parts

M = TypeVar("M", bound=BaseModel)
_KINDS = {"model": "models", "device": "devices", "link": "links", "network": "links"}


def _by_name(kind: str, model: type[M]) -> Callable[[Any], Any]:
    """A text is the name of a shipped part; anything else stays, for the model to read."""
    return lambda given: part_of(kind, model, given) if isinstance(given, str) else given


def _all_or_some(value: Any) -> Any:
    if value == []:
        raise ValueError("list a layout at least, or write all")
    return () if value == "all" else tuple(value) if isinstance(value, list) else value


_Layouts = Annotated[
    tuple[LayoutConfig, ...],
    BeforeValidator(_all_or_some, json_schema_input_type=tuple[LayoutConfig, ...] | Literal["all"]),
]
"""Empty for all that are possible."""

_Model = Annotated[
    ShapeConfig,
    BeforeValidator(_by_name("models", ShapeConfig), json_schema_input_type=str | ShapeConfig),
]
_Device = Annotated[
    DeviceConfig,
    BeforeValidator(_by_name("devices", DeviceConfig), json_schema_input_type=str | DeviceConfig),
]
_Link = Annotated[
    LinkConfig,
    BeforeValidator(_by_name("links", LinkConfig), json_schema_input_type=str | LinkConfig),
]


class SpeculationConfig(Part):
    """How drafts fare. How many there are, the pipeline's drafter says."""

    acceptance: float = Field(
        ge=0, le=1, description="Chance that a draft is accepted where those before it were."
    )
    draft_gb: FromZero = Field(
        default=0.0, description="Weights of the drafter, in 10⁹ bytes on each device."
    )


class ClusterScheduler(Part):
    """Limits of each replica; what is left out is that of the pipeline."""

    max_rows: int | None = Field(default=None, ge=1, le=1024, description="Requests in one step.")
    token_budget: int | None = Field(
        default=None, ge=1, le=1 << 20, description="Tokens in one step."
    )
    block_size: int | None = Field(default=None, ge=1, le=1024, description="Tokens per KV block.")
    max_queue: int | None = Field(
        default=None, ge=1, le=1 << 20, description="Requests that may wait at each replica."
    )
    max_context: int = Field(
        default=131072, ge=2, le=1 << 30, description="Tokens of a prompt and its output, at most."
    )

    def over(self, pipeline: SchedulerConfig) -> SchedulerConfig:
        """The pipeline's limits with those that are given here."""
        return pipeline.model_copy(update=self.model_dump(exclude_none=True))


class LoadConfig(Part):
    """The requests: those of a trace, or random ones."""

    trace: Text | None = Field(
        default=None,
        description="A trace to replay, relative to this file: .csv as of Azure, else JSON lines "
        "as of Mooncake.",
    )
    speed_up: Positive = Field(default=1.0, description="Replay it so many times as fast.")
    length_scale: Positive = Field(default=1.0, description="Multiply its lengths by this.")
    requests: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="How many. Default: all of a trace, else 100.",
    )
    rate: Positive | None = Field(
        default=None, description="Random requests a second, on average. null: all at once."
    )
    burstiness: Positive = Field(
        default=1.0, description="Shape of the gamma distribution of gaps; 1: a Poisson process."
    )
    input: Count = Field(default=256, description="Tokens of a random prompt.")
    output: Count = Field(default=128, description="Tokens of a random answer.")
    spread: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Lengths are drawn from 1 − spread to 1 + spread times.",
    )
    seed: int = Field(default=0, ge=0, le=1 << 32, description="Of lengths, gaps and acceptance.")

    @model_validator(mode="after")
    def _a_trace_has_times(self) -> LoadConfig:
        if self.trace is not None and self.rate is not None:
            raise ValueError("a trace has times of its own: use `speed_up` in place of `rate`")
        if self.trace is None and (self.speed_up != 1 or self.length_scale != 1):
            raise ValueError("`speed_up` and `length_scale` are for a trace: name one")
        return self


class ClusterConfig(Part):
    """What a cluster file says."""

    version: Literal[1] = Field(default=1, description="Version of this format.")
    describes: Text = Field(description="Model and devices, as text for readers.")
    model: _Model = Field(description="The name of a shipped model, or its shape.")
    device: _Device = Field(description="The name of a shipped device, or its figures.")
    devices: int = Field(default=1, ge=1, le=1024, description="Devices in a node.")
    nodes: int = Field(default=1, ge=1, le=4096, description="Nodes.")
    link: _Link = Field(description="What joins the devices of a node: a shipped name, or figures.")
    network: _Link | None = Field(default=None, description="The same of what joins nodes.")
    all_reduce: Name = Field(
        default="nccl",
        validate_default=True,
        description="The algorithm that the links name so. fastest: whichever is, for each size.",
    )
    memory: Share = Field(default=0.9, description="The part of each device's memory to use.")
    layouts: _Layouts = Field(
        default="all",
        validate_default=True,
        description="Layouts to simulate. all: every one that uses all devices and that the "
        "model's sizes allow.",
    )
    routing: Literal["round_robin", "fewest_tokens"] = Field(
        default="fewest_tokens",
        description="fewest_tokens: a request goes to the replica that got the fewest so far.",
    )
    pipeline: Text = Field(
        default="async", description="The pipeline whose plan is simulated: a name or a path."
    )
    costs: Text = Field(
        description="Costs file or shipped profile, for all but the forward pass: host work, "
        "sampling, drafting, copies."
    )
    scheduler: ClusterScheduler = Field(default_factory=ClusterScheduler)
    speculation: SpeculationConfig | None = Field(
        default=None, description="Needed with a pipeline that drafts."
    )
    load: LoadConfig = Field(default_factory=LoadConfig)

    @model_validator(mode="after")
    def _links_join_all(self) -> ClusterConfig:
        if self.nodes > 1 and self.network is None:
            raise ValueError("`nodes` above 1 need a `network` that joins them, such as ndr")
        return self

    @field_validator("all_reduce")
    @classmethod
    def _some_link_has_it(cls, name: str, info: ValidationInfo) -> str:
        links = [each for field in ("link", "network") if (each := info.data.get(field))]
        said = [text for each in links if (text := unknown_algorithm(name, each))]
        # An algorithm for one node may be unknown between nodes, where NCCL takes its own.
        if said and len(said) == len(links):
            raise ValueError(said[0])
        return name


@dataclass(frozen=True)
class Cluster:
    """A cluster file and its name."""

    name: str
    config: ClusterConfig
    source: Located
    folder: Path  # what its paths are relative to

    @property
    def origin(self) -> str:
        """`llama_70b_h200: Llama-3.3-70B on a node of eight H200`."""
        return f"{self.name}: {self.config.describes}"


def load_cluster(name: str, settings: Mapping[str, Any] | None = None) -> Cluster:
    """The cluster file of a path or shipped name, with `settings` over it.

    Raises `ConfigError` listing all that is wrong.
    """
    path, given = cluster_path(name), settings or {}
    source = with_settings(_opened(read_yaml(path, name), given), given)
    config = validated(ClusterConfig, source)
    shipped = path.parent == SHIPPED
    return Cluster(path.stem if shipped else name, config, source, path.parent)


def _opened(source: Located, settings: Mapping[str, str]) -> Located:
    """The file with a named part in the place of its name, where a setting changes the part."""
    assert isinstance(source.value, dict), "a file is a mapping"
    parts = dict(source.value)
    for key, kind in _KINDS.items():
        named = parts.get(key)
        if named is None or not any(each.startswith(f"{key}.") for each in settings):
            continue
        if isinstance(named.value, str) and named.value in shipped_parts(kind):
            parts[key] = shipped_parts(kind)[named.value].keyed(named.key)
    return Located(parts, source.mark)


def wrong_at(cluster: Cluster, location: tuple[str | int, ...], message: str) -> ConfigError:
    """A `ConfigError` at a key of the file."""
    return ConfigError.at(cluster.source.at(location).mark, message)
