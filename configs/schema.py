"""What a pipeline file may say, key by key. The JSON Schema for editors is made from this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from ..backends.registry import HOST, backend_of_name
from ..executors.names import streams_behind
from ..graph.arguments import MAX_DISTANCE
from .abstract import MAX_NODES, AbstractGraph, Microseconds, Name, ReadText
from .places import Device, Executor
from .prompts import PromptLine

Order = Literal["keep", "search"]
Identifier = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Part):
    """The model that decodes."""

    name: Identifier = Field(
        default="embedded",
        description="`embedded`, a directory, or a hub name. Weights are read from "
        "safetensors files only.",
    )
    dtype: Literal["auto", "float32", "float64", "bfloat16", "float16"] = Field(
        default="auto",
        description="Number format of weights and caches. auto: the checkpoint's; float32 for "
        "the embedded model, as in its published figures.",
    )
    device: Device = Field(
        default="auto",
        description="The device that holds weights and caches, also those of drafters and "
        "heads: `cpu`, `cuda`, `cuda:1` … auto: that of the executor's streams, the CPU if it has "
        "none.",
    )
    invariant: bool = Field(
        default=True,
        description="Use arithmetic whose results do not depend on how many rows a step has, "
        "so that every depth gives the same bits.",
    )
    compile: Literal["off", "layer"] = Field(
        default="off",
        description="layer: torch.compile compiles the decoder layers when they are loaded, "
        "also those of drafters and heads; all layers of a kind share one "
        "compilation. This takes seconds to minutes, is meant for GPUs, and needs "
        "`invariant: false`.",
    )
    merge: bool | None = Field(
        default=None,
        description="Merge linear layers that read the same input into one matrix product: "
        "queries, keys and values; gate and up. Needs `invariant: false`. null: merge "
        "if `compile` is not off.",
    )
    prompt_format: Literal["auto", "text", "chat"] = Field(
        default="auto",
        description="How a plain `prompt` is read. text: the model continues it. chat: it is "
        "a user's turn in the chat template. auto: chat for the embedded model, text "
        "for any other.",
    )

    @model_validator(mode="after")
    def _invariant_means_as_it_is(self) -> ModelConfig:
        if self.invariant and (self.compile != "off" or self.merge):
            asked = "compile: layer" if self.compile != "off" else "merge: true"
            raise ValueError(
                f"`{asked}` changes the order of sums, which `invariant: true` forbids; set "
                "invariant: false, or leave it out"
            )
        return self


Method = Literal["draft_model", "eagle", "eagle3", "ngram", "custom"]

EMBEDDED_DRAFTERS: Mapping[str, str] = {
    "draft_model": "embedded-draft",
    "eagle": "embedded-eagle",
    "eagle3": "embedded-eagle3",
}
"""The drafter of the embedded model for each method that needs one."""


class SpeculationConfig(_Part):
    """How tokens are drafted for the model to verify."""

    method: Method = Field(
        default="draft_model",
        description="The kind of drafter. draft_model: a smaller causal LM. eagle, eagle3: a "
        "head on the model's hidden states. ngram: the tokens that followed the last "
        "tokens where they occurred earlier in the text. custom: the kind that node "
        "`draft` names.",
    )
    model: Identifier | None = Field(
        default=None,
        description="The drafter or head: a directory, or a hub name. null: the drafter of "
        "the embedded model.",
    )
    tokens: int = Field(
        default=3, ge=1, le=16, description="Tokens drafted per step and row, at most."
    )
    acceptance: Literal["coupled", "rejection"] = Field(
        default="coupled",
        description="How drafts are accepted. coupled: with the same seed, the tokens are the "
        "same with and without speculation. rejection: rejection sampling, which "
        "keeps the distribution but not the tokens.",
    )
    padded: bool = Field(
        default=True,
        description="true: the drafter's shapes do not depend on how many drafts were "
        "accepted, so nothing waits for that count. false: the drafter computes "
        "accepted tokens only, and the host waits for their number.",
    )
    synthetic_acceptance: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = Field(
        default=None,
        min_length=1,
        max_length=16,
        description="For benchmarks only: the draft at each position is accepted with this "
        "probability, whichever token it is. The output is then not the model's.",
    )

    @model_validator(mode="after")
    def _a_model_where_one_is_needed(self) -> SpeculationConfig:
        if self.method in ("ngram", "custom") and self.model is not None:
            raise ValueError(f"method {self.method} takes no model, but {self.model!r} is given")
        if self.method == "ngram" and not self.padded:
            raise ValueError(
                "padded: false does not apply to method ngram, which computes no batches: "
                "leave it out"
            )
        return self

    @property
    def drafter(self) -> str | None:
        """Name or path of the drafter or head; None where the method has none."""
        return self.model or EMBEDDED_DRAFTERS.get(self.method)


class StructuredConfig(_Part):
    """Grammars that output must follow, asked for per request."""

    backend: Literal["auto", "xgrammar", "llguidance"] = Field(
        default="auto",
        description="The grammar library. auto: each grammar is served by the library that "
        "serves it exactly; the output's `notes` name it.",
    )
    any_whitespace: bool = Field(
        default=False,
        description="Allow any whitespace between the parts of JSON output, as the model chooses.",
    )
    strict: bool = Field(
        default=True,
        description="true: a grammar is refused if a part of it would not be enforced. false: "
        "it is used, and the output's `warnings` name that part.",
    )
    reasoning_end: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None,
        description="The text that ends a reasoning section, such as </think>. The grammar "
        "applies after it. A request can turn this off with `reasoning: false`.",
    )
    compile_limit_s: float | None = Field(
        default=20.0,
        gt=0,
        le=3600,
        description="Seconds of processor time that compiling one grammar may take. The "
        "grammar is first compiled in a separate process as a trial. null: no trial "
        "and no limit.",
    )
    compile_workers: int = Field(
        default=1, ge=1, le=64, description="Number of grammars compiled at the same time."
    )
    cache_bytes: int = Field(
        default=64 << 20, ge=0, le=1 << 40, description="Bytes of compiled grammars kept for reuse."
    )


class SchedulerConfig(_Part):
    """How many requests run at once, and with how much memory."""

    max_rows: int = Field(default=16, ge=1, le=1024, description="Requests in one step, at most.")
    token_budget: int = Field(
        default=256, ge=1, le=1 << 20, description="Tokens in one step, at most."
    )
    block_size: int = Field(default=16, ge=1, le=1024, description="Tokens per KV block.")
    num_blocks: int = Field(default=512, ge=1, le=1 << 24, description="Number of KV blocks.")
    max_queue: int = Field(
        default=4096, ge=1, le=1 << 20, description="Requests that may wait; more are refused."
    )
    prefix_cache: bool = Field(
        default=True, description="Reuse keys and values between prompts with the same beginning."
    )
    admission: Literal["eager", "just_in_time"] = Field(
        default="eager",
        description="When a step is scheduled. eager: as soon as the host can. just_in_time: "
        "as late as the device's work in flight allows, so that a new request waits "
        "less.",
    )


class NodeConfig(_Part):
    """A node of the decode step: what differs from its kind's defaults, or a node of its own."""

    name: Name = Field(description="Name of the node.")
    kind: Name | None = Field(
        default=None, description="A registered node kind. null: the kind with the node's name."
    )
    after: Name | None = Field(
        default=None, description="For a node that is added: the node after which it is listed."
    )
    actor: Name | None = Field(
        default=None, description="The host thread that runs it, or launches its device op."
    )
    stream: Name | None = Field(default=None, description="The stream that runs its device op.")
    offset: int | None = Field(
        default=None,
        ge=-MAX_DISTANCE,
        le=MAX_DISTANCE,
        description="For a node that is added: in iteration t it acts on step t − offset.",
    )
    reads: dict[Name, ReadText] = Field(
        default_factory=dict,
        max_length=256,
        description="By parameter of the kind: the value it reads in this pipeline, as "
        "`value` or `value@-1`.",
    )
    host_cost_us: Microseconds | None = Field(
        default=None, description="Assumed duration of its host ops in µs."
    )
    device_cost_us: Microseconds | None = Field(
        default=None, description="Assumed duration of its device ops in µs."
    )
    launch_latency_us: Microseconds | None = Field(
        default=None, description="µs from the start of the launch until the device op can start."
    )
    allow_sync: bool | None = Field(
        default=None, description="true: its host ops may wait for the device."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, max_length=256, description="Settings that the node kind defines."
    )
    _line: int | None = PrivateAttr(default=None)

    @property
    def line(self) -> int | None:
        """Where the file mentions this node."""
        return self._line


class PipelineConfig(_Part):
    """A decode pipeline: model, features, placement."""

    version: Literal[1] = Field(default=1, description="Version of this format.")
    model: ModelConfig = Field(default_factory=ModelConfig)
    speculation: SpeculationConfig | None = Field(
        default=None, description="Speculative decoding. null: none."
    )
    structured: StructuredConfig | None = Field(
        default=None, description="Structured outputs. null: none."
    )
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig)
    depth: int = Field(
        default=2, ge=1, le=8, description="Steps in flight at the same time; 1 is synchronous."
    )
    executor: Executor = Field(
        default="threads",
        description="serial: one thread, no overlap; the reference. threads: threads run the "
        "ops and overlap. cuda, or the name of another backend: threads and the streams of its "
        "device run the ops and overlap.",
    )
    graphs: bool = Field(
        default=True,
        description="With executor cuda, or another on streams that capture: consecutive device "
        "ops are captured as graphs, and decode steps are padded to a few batch sizes for them. "
        "Other executors ignore this key.",
    )
    nvtx: bool = Field(
        default=False,
        description="With executor cuda, or another on streams: each op is named `node/step` for "
        "profilers such as Nsight.",
    )
    torch_threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] | None = Field(
        default="auto",
        description="Threads inside a torch operation. null: torch's default. auto: 1 for the "
        "embedded model, whose operations are too small to split; null for any other.",
    )
    check: Literal["off", "strict"] = Field(
        default="off",
        description="strict: the run ends with an error if a node does anything that it did "
        "not declare. For tests; it costs time.",
    )
    order: Order = Field(
        default="search",
        description="keep: the driver issues nodes in the listed order. search: the compiler "
        "chooses the driver's order.",
    )
    actors: tuple[Name, ...] = Field(
        default=("driver", "grammar"), description="The host threads that nodes may name."
    )
    streams: tuple[Name, ...] = Field(
        default=("compute", "copy", "draft"), description="The streams that nodes may name."
    )
    slots: dict[Name, Annotated[int, Field(ge=1, le=MAX_DISTANCE)]] = Field(
        default_factory=dict,
        max_length=4096,
        description="By value: its number of slots "
        "(physical copies). Not given: the compiler derives it.",
    )
    costs: dict[Name, Microseconds] = Field(
        default_factory=dict,
        max_length=4096,
        description="Assumed durations of ops in µs, as in `forward.device: 4000`.",
    )
    nodes: tuple[NodeConfig, ...] = Field(
        default=(),
        max_length=MAX_NODES,
        description="Changes to the nodes of the decode "
        "step, matched by name, and nodes that are added.",
    )
    prompts: tuple[PromptLine, ...] = Field(
        default=(),
        max_length=10_000,
        description="Prompts that `run` uses when --prompt and --prompts are not given.",
    )

    @field_validator("nodes")
    @classmethod
    def _one_entry_per_node(cls, nodes: tuple[NodeConfig, ...]) -> tuple[NodeConfig, ...]:
        names = [node.name for node in nodes]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"node {twice!r} is listed twice")
        return nodes

    @model_validator(mode="after")
    def _a_custom_drafter_is_named(self) -> PipelineConfig:
        if self.speculation is not None and self.speculation.method == "custom":
            kind = next((node.kind for node in self.nodes if node.name == "draft"), None)
            if kind is None:
                raise ValueError(
                    "speculation.method custom needs the kind of the drafter: "
                    "nodes: [{name: draft, kind: …}]"
                )
        return self

    @model_validator(mode="after")
    def _streams_are_those_of_the_device(self) -> PipelineConfig:
        device, streams = self.model.device, streams_behind(self.executor)
        if streams is not None and device != "auto" and backend_of_name(device) is not streams:
            raise ValueError(
                f"executor {self.executor} runs on the streams of a device {streams.name}, but "
                f"model.device is {device}; leave the device out, or use executor threads"
            )
        return self

    @property
    def foreign_drafter(self) -> str | None:
        """What is wrong where the drafter is that of the embedded model, and the model another."""
        drafter = None if self.speculation is None else self.speculation.drafter
        if self.model.name == "embedded" or drafter not in EMBEDDED_DRAFTERS.values():
            return None
        return (
            f"model.name is {self.model.name!r}, but the drafter is {drafter!r}, which drafts for "
            "the embedded model only; set speculation.model to a drafter of that model, or go on "
            "without one: --set speculation=null"
        )

    @property
    def threads_in_torch(self) -> int | None:
        """Threads inside a torch operation; None: torch's own number."""
        if self.torch_threads == "auto":
            return 1 if self.model.name == "embedded" else None
        return self.torch_threads

    @property
    def captured(self) -> bool:
        """Whether graphs are captured: not where sizes depend on what was accepted."""
        static = self.speculation is None or self.speculation.padded
        streams = streams_behind(self.executor)
        return streams is not None and streams.captures and self.graphs and static

    @property
    def device(self) -> str:
        """Where the model is to lie: `cpu`, or on the device of the executor's streams."""
        if self.model.device != "auto":
            return self.model.device
        return HOST if streams_behind(self.executor) is None else self.executor

    @model_validator(mode="after")
    def _a_window_fits_the_budget(self) -> PipelineConfig:
        window = 1 + (self.speculation.tokens if self.speculation else 0)
        if self.scheduler.token_budget < window:
            raise ValueError(
                f"scheduler.token_budget {self.scheduler.token_budget} is less than the {window} "
                "tokens that one row decodes at once: a row gets its whole window or none"
            )
        return self


def json_schema() -> dict[str, Any]:
    """JSON Schema of a config file, a pipeline or an abstract graph."""
    from pydantic.json_schema import models_json_schema

    _, schema = models_json_schema(
        [(PipelineConfig, "validation"), (AbstractGraph, "validation")],
        title="Stepweave pipeline",
        ref_template="#/$defs/{model}",
    )
    for model in (PipelineConfig, AbstractGraph):
        definition = schema["$defs"][model.__name__]
        definition["properties"]["extends"] = {
            "type": "string",
            "description": "The config that this one changes: a shipped name, or a path "
            "relative to this file.",
        }
    # A file that extends another may leave out whatever that one says.
    graph = schema["$defs"]["AbstractGraph"]
    graph["anyOf"] = [{"required": graph.pop("required")}, {"required": ["extends"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "anyOf": [{"$ref": "#/$defs/PipelineConfig"}, {"$ref": "#/$defs/AbstractGraph"}],
    }
