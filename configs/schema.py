"""What a pipeline file may say, key by key. The JSON Schema for editors is made from this."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    Field,
    SerializeAsAny,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from ..backends.executor_names import streams_behind
from ..backends.registry import HOST, backend_of_name
from ..graph.arguments import MAX_DISTANCE
from ..graph.errors import GraphError
from ..models.cache_dtype import CacheDType, CacheForm
from ..nodes.bitmask import GrammarOptions
from ..nodes.d2h_counts import KIND as COUNTS
from ..nodes.draft_model import DraftModelOptions
from ..nodes.eagle import EagleOptions
from ..nodes.eagle3 import Eagle3Options
from ..nodes.medusa import MedusaOptions
from ..nodes.mtp import EMBEDDED_MODULE
from ..nodes.node_config import Microseconds, Name, NodeConfig
from ..nodes.options import DrafterOptions, ModelName, Options
from ..nodes.registry import kind, known_kinds
from ..policies.errors import PolicyError
from ..policies.policy import Policy
from ..policies.registry import DECISIONS, default, loadable, policy_class
from ..requests.keys import AdapterName
from .abstract import MAX_NODES, AbstractGraph
from .names import NodeName
from .node_keys import node_model, reading_model
from .part import Part, model_name
from .places import Device, Executor
from .prompts import PromptLine

Order = Literal["keep", "search"]
OptionsModel = TypeVar("OptionsModel", bound=Options)


class ParallelConfig(Part):
    """How a model is spread over several processes, each with a device of its own: its ranks."""

    tensor: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Ranks that share each layer of the model: its heads and its columns. The "
        "number of key-value heads must be a multiple. Needs `invariant: false`.",
    )
    pipeline: int = Field(
        default=1,
        ge=1,
        le=8,
        description="Ranks that have some of the layers each: the stages of the model. Each works "
        "on another step, so `depth` steps are in flight: one more than stages hides what lies "
        "between them. Needs `policies: {scheduling: groups}`.",
    )
    silence_s: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="Seconds after which a rank that says nothing counts as gone, and the group "
        "ends.",
    )

    @property
    def ranks(self) -> int:
        """Processes in all."""
        return self.tensor * self.pipeline

    @model_validator(mode="after")
    def _one_kind(self) -> ParallelConfig:
        if self.tensor > 1 and self.pipeline > 1:
            raise ValueError(
                "a model is divided by `tensor` or by `pipeline`, and not yet by both: leave one "
                "of them out"
            )
        return self


class ModelConfig(Part):
    """The model that decodes."""

    name: ModelName = Field(
        default="embedded",
        description="`embedded`, a directory, or a hub name. Weights are read from "
        "safetensors files only.",
    )
    dtype: Literal["auto", "float32", "float64", "bfloat16", "float16"] = Field(
        default="auto",
        description="Number format of weights and caches. auto: the checkpoint's; float32 for "
        "the embedded model, as in its published figures.",
    )
    kv_cache_dtype: CacheDType = Field(
        default="auto",
        description="Number format of the KV caches, also those of drafters and heads. auto: "
        "`dtype`. int8, float8_e4m3: 8 bits, with a scale for each token and head; they take about "
        "half the memory of 16 bits, and change the text a little. Attention computes in `dtype` "
        "all the same.",
    )
    kv_cache_form: CacheForm = Field(
        default="auto",
        description="What a model with latent attention (DeepSeek and others) keeps of a token. "
        "latent: the latent that keys and values of all heads are made of, many times less; "
        "attention computes with it as it is. expanded: keys and values of each head. auto: "
        "latent where the model has it, but expanded with `adapters`.",
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
        "so that every depth gives the same bits. On a GPU, false if it is left out.",
    )
    compile: Literal["off", "layer", "auto"] = Field(
        default="off",
        description="layer: torch.compile compiles the decoder layers when they are loaded, "
        "also those of drafters and heads; all layers of a kind share one "
        "compilation. This takes seconds to minutes, is meant for GPUs, and needs "
        "`invariant: false`. auto: the same on a device with Triton kernels, but off with "
        "`invariant: true`, and with a note where the compiler refuses them. On a GPU, auto if it "
        "is left out.",
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

    adapters: dict[AdapterName, ModelName] = Field(
        default={},
        max_length=256,
        description="LoRA adapters by name, each a folder in PEFT's layout. A request asks for one "
        "by its name (`adapter`; over HTTP as its `model`), and rows of several share a step. The "
        "model's layers stay as they are: neither merged nor compiled, on one rank.",
    )

    parallel: ParallelConfig = Field(default_factory=ParallelConfig)

    @property
    def target_cache_form(self) -> CacheForm:
        """Of the model itself: an adapter may be for the map that is absorbed with latents."""
        return "expanded" if self.adapters and self.kv_cache_form == "auto" else self.kv_cache_form

    @model_validator(mode="after")
    def _adapted_layers_are_plain(self) -> ModelConfig:
        if self.adapters:
            asked = f"parallel: {self.parallel.ranks} ranks" if self.parallel.ranks > 1 else None
            asked = asked or ("compile: layer" if self.compile == "layer" else None)
            asked = asked or ("merge: true" if self.merge else None)
            if asked is not None:
                raise ValueError(
                    f"`{asked}` changes the layers that `adapters` add to; leave one of them out"
                )
        return self

    @model_validator(mode="after")
    def _ranks_compute_as_the_model_does(self) -> ModelConfig:
        if self.parallel.tensor == 1:
            return self
        asked = "invariant: true" if self.invariant else None
        asked = asked or ("compile: layer" if self.compile == "layer" else None)
        asked = asked or ("merge: true" if self.merge else None)
        if asked is not None:
            raise ValueError(
                f"`{asked}` replaces parts of the model that {self.parallel.tensor} ranks share; "
                "leave it out, or use one rank"
            )
        return self

    @model_validator(mode="after")
    def _invariant_means_as_it_is(self) -> ModelConfig:
        if self.invariant and (self.compile == "layer" or self.merge):
            asked = "compile: layer" if self.compile == "layer" else "merge: true"
            raise ValueError(
                f"`{asked}` changes the order of sums, which `invariant: true` forbids; set "
                "invariant: false, or leave it out"
            )
        return self


class SchedulerConfig(Part):
    """How many requests run at once, and with how much memory."""

    max_rows: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Requests in one step, at most. On a GPU, 128 if it is left out.",
    )
    token_budget: int = Field(
        default=256,
        ge=1,
        le=1 << 20,
        description="Tokens in one step, at most. On a GPU, 4096 if it is left out.",
    )
    block_size: int = Field(default=16, ge=1, le=1024, description="Tokens per KV block.")
    num_blocks: Annotated[int, Field(ge=1, le=1 << 24)] | Literal["auto"] = Field(
        default=512,
        description="Number of KV blocks. auto: as many as fit into the memory that is free once "
        "the model is loaded, at most twice what `max_rows` requests can fill. On a GPU, auto if "
        "it is left out.",
    )
    max_queue: int = Field(
        default=4096, ge=1, le=1 << 20, description="Requests that may wait; more are refused."
    )
    max_context: int | None = Field(
        default=None,
        ge=2,
        le=1 << 30,
        description="Tokens of a prompt and its output, at most. Default: the model's context.",
    )
    prefix_cache: bool = Field(
        default=True, description="Reuse keys and values between prompts with the same beginning."
    )


class PolicyConfig(Part):
    """A policy by its name; its options stand beside. The name alone is short for `{kind: name}`.

    A policy that was read is also an instance of the policy's own class.
    """

    kind: Name = Field(description="Name of the policy.")


def policy_model(decision: str, name: str) -> type[PolicyConfig]:
    """What a file may say of that policy: `kind`, and its options. Raises `PolicyError`."""
    return _policy_model(decision, name, policy_class(decision, name))


@cache
def _policy_model(decision: str, name: str, made: type[Policy]) -> type[PolicyConfig]:
    bases: Any = (PolicyConfig, made)
    model: type[PolicyConfig] = create_model(
        model_name(name, decision), __base__=bases, __doc__=made.__doc__
    )
    return model


def _read_policy(decision: str, chosen: object) -> object:
    """A policy that is plain data, its name alone or a mapping, by the model of its name."""
    given = {"kind": chosen} if isinstance(chosen, str) else chosen
    if not isinstance(given, Mapping):
        return given
    try:
        model = policy_model(decision, str(given.get("kind", default(decision))))
    except PolicyError as error:
        raise ValueError(error.message) from error
    return model.model_validate({"kind": default(decision), **given})


def _usual_policy(decision: str) -> PolicyConfig:
    """The default of a decision: nothing of it needs validation, for which a model is built."""
    name = default(decision)
    return policy_model(decision, name).model_construct(kind=name)


def _chosen(decision: str, description: str) -> Any:
    return Field(default_factory=lambda: _usual_policy(decision), description=description)


class PoliciesConfig(Part):
    """Decisions that the engine leaves to a policy."""

    admission: SerializeAsAny[PolicyConfig] = _chosen(
        "admission",
        "When a step is scheduled. eager: as soon as the host can. just_in_time: as late as the "
        "device's work in flight allows, so that a new request waits less.",
    )
    scheduling: SerializeAsAny[PolicyConfig] = _chosen(
        "scheduling",
        "How the tokens of a step are split among requests. decodes_first: prompts fill what is "
        "left. shared: a part of them is for prompts. groups: no row is in two steps at a time.",
    )
    preemption: SerializeAsAny[PolicyConfig] = _chosen(
        "preemption",
        "Which request gives its blocks back when there are too few. last_come: the one that came "
        "last. fewest_tokens: the one with the fewest tokens to compute again.",
    )
    resumption: SerializeAsAny[PolicyConfig] = _chosen(
        "resumption",
        "Where a node `swap` keeps the blocks of requests that give way: which of them it keeps. "
        "kept: whatever there is room for. cheaper: what takes longer to compute again than to "
        "copy, by given costs.",
    )
    drafting: SerializeAsAny[PolicyConfig] = _chosen(
        "drafting",
        "How many drafts a row is offered. full: as many as the drafter makes. by_rows: fewer the "
        "more requests run. by_acceptance: what the row's own windows say is worth its cost. "
        "fastest: what gives most tokens per second by the periods of a plan.",
    )
    acceptance: SerializeAsAny[PolicyConfig] = _chosen(
        "acceptance",
        "Which drafts are kept. coupled: with the same seed, the tokens are the same with and "
        "without a drafter. rejection: rejection sampling, which keeps the distribution but not "
        "the tokens. block: the same for whole windows, which keeps more. typical: what is likely "
        "enough, which does not keep the distribution. synthetic: at given `rates`, for benchmarks "
        "only.",
    )
    stopping: SerializeAsAny[PolicyConfig] = _chosen(
        "stopping",
        "When a request ends sooner than it asks. as_asked: never. repetition: once it repeats "
        "itself.",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _by_its_name(cls, chosen: object, info: ValidationInfo) -> object:
        return _read_policy(str(info.field_name), chosen)


class PlanConfig(Part):
    """Another form of the step: what of its plan is different."""

    depth: int | None = Field(
        default=None, ge=1, le=8, description="Its `depth`. null: that of the pipeline."
    )
    actors: dict[Name, Name] = Field(
        default_factory=dict,
        max_length=MAX_NODES,
        description="By node: the host thread that runs it there, in place of its `actor`.",
    )
    without: tuple[Name, ...] = Field(
        default=(),
        max_length=MAX_NODES,
        description="Nodes that its steps do without: drafters, where the acceptance policy is "
        "exact.",
    )
    from_rows: int = Field(
        default=1,
        ge=1,
        le=1 << 20,
        description="It is for steps with so many requests or more. Of all plans, those with the "
        "greatest number that is reached are compared with each other.",
    )


EMBEDDED_DRAFTERS = (
    *(
        options.model_fields["model"].default
        for options in (DraftModelOptions, EagleOptions, Eagle3Options, MedusaOptions)
    ),
    EMBEDDED_MODULE,
)
"""Names of the drafters that were made for the embedded model."""


def _or_auto(schema: dict[str, Any]) -> None:
    """A number that may also be said to follow by itself."""
    number = {key: schema.pop(key) for key in ("type", "minimum", "maximum") if key in schema}
    schema["anyOf"] = [number, {"const": "auto", "type": "string"}]


class PipelineConfig(Part):
    """A decode pipeline: model, features, placement. `load_config` makes one of a file's keys."""

    version: Literal[2] = Field(default=2, description="Version of this format.")
    model: ModelConfig = Field(default_factory=ModelConfig)
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig)
    policies: PoliciesConfig = Field(default_factory=PoliciesConfig)
    depth: int = Field(
        default=2,
        ge=1,
        le=8,
        description="Steps in flight at the same time; 1 is synchronous. auto: 2 to begin with, "
        "and `plans` of depth 1 and 3 beside those that the file has.",
        json_schema_extra=_or_auto,
    )
    plans: dict[Name, PlanConfig] = Field(
        default_factory=dict,
        max_length=8,
        description="Other forms of the step by name, on one rank. The engine goes over to one of "
        "them between two steps, without draining, where steps take less time then, as predicted "
        "and then as measured.",
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
        "With executor serial or threads on a CPU: their operations are recorded and done again "
        "without the Python between them. Models on several ranks ignore this key.",
    )
    pieces: Annotated[int, Field(ge=0, le=1 << 16)] | Literal["auto"] = Field(
        default="auto",
        description="With `graphs`: the most tokens of a step with prompts whose model is captured "
        "in pieces, between which attention runs as usual, but for layouts of rows that come up "
        "often on a CPU. Steps are rounded up to a few sizes for them. 0: such steps run without "
        "graphs. auto: on a CPU 256 for a model with less than 64 MiB of weights, whose operations "
        "take no longer than to call them, and 0 for a larger one; on a GPU 512.",
    )
    nvtx: bool = Field(
        default=False,
        description="With executor cuda, or another on streams: each op is named `node/step` for "
        "profilers such as Nsight.",
    )
    torch_threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] | None = Field(
        default="auto",
        description="Threads inside a torch operation. Of more than the process has processors, as "
        "many as those are made, with a warning. null: torch's default. auto: the "
        "physical cores that the process may use; 1 for a model with less than 64 MiB of weights, "
        "whose operations are too small to split; torch's default if OMP_NUM_THREADS is set, and "
        "for a model that is not on the CPU.",
    )
    check: Literal["off", "strict"] = Field(
        default="off",
        description="strict: the run ends with an error if a node does anything that it did "
        "not declare, and stays with the plan that it begins with. For tests; it costs time.",
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
        default=("compute", "copy", "draft", "masks", "swapping", "encoding"),
        description="The streams that nodes may name.",
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
    nodes: dict[NodeName, SerializeAsAny[NodeConfig]] = Field(
        default_factory=dict,
        max_length=MAX_NODES,
        description="The nodes of a decode step by name, in the order of the plain serial "
        "program. In a file that extends another: what differs; null takes a node out.",
    )
    prompts: tuple[PromptLine, ...] = Field(
        default=(),
        max_length=10_000,
        description="Prompts that `run` uses when --prompt and --prompts are not given.",
    )

    @field_validator("nodes", mode="before")
    @classmethod
    def _of_their_kinds(cls, nodes: object) -> object:
        """Nodes that are plain data, by the models of their kinds."""
        if not isinstance(nodes, Mapping):
            return nodes
        found = dict(nodes)
        for name, node in found.items():
            if isinstance(node, Mapping):
                try:
                    model = reading_model(kind(node.get("kind") or name))
                except GraphError as error:
                    raise ValueError(error.message) from error
                found[name] = model.model_validate({**node, "kind": node.get("kind") or name})
        return found

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
    def forms(self) -> dict[str, PipelineConfig]:
        """The pipeline as each of its other plans has it."""
        return {name: self._as(plan) for name, plan in self.plans.items()}

    def form(self, name: str) -> PipelineConfig:
        """The pipeline as the plan of that name has it; itself for the plan that a run begins with.

        Raises nothing.
        """
        return self._as(self.plans[name]) if name in self.plans else self

    def _as(self, plan: PlanConfig) -> PipelineConfig:
        nodes = {
            name: node.model_copy(update={"actor": plan.actors[name]})
            if name in plan.actors
            else node
            for name, node in self.nodes.items()
            if name not in plan.without
        }
        depth = self.depth if plan.depth is None else plan.depth
        return self.model_copy(update={"depth": depth, "nodes": nodes, "plans": {}})

    @property
    def captured(self) -> bool:
        """Whether streams capture segments of device ops, which a plan hands over as one."""
        streams = streams_behind(self.executor)
        return streams is not None and streams.captures and self._repeats

    @property
    def recorded(self) -> bool:
        """Whether threads on a CPU record segments of device ops, as the plan has them.

        A compiled layer is one operation of many, which no recording may take apart.
        """
        on_host = streams_behind(self.executor) is None and self.device == HOST
        compiled = self.model.compile != "off" and not self.model.invariant
        return on_host and not compiled and self._repeats

    @property
    def _repeats(self) -> bool:
        """Whether steps come again as they were: not where sizes depend on what was accepted."""
        static = all(node.kind != COUNTS.name for node in self.nodes.values())
        return self.graphs and static and self.ranks == 1

    @property
    def ranks(self) -> int:
        """Processes that run the pipeline together."""
        return self.model.parallel.ranks

    @property
    def drafter(self) -> DrafterOptions | None:
        """The options of the node that drafts; None: the pipeline has none."""
        return self._option(DrafterOptions)

    @property
    def foreign_drafter(self) -> str | None:
        """What is wrong where the drafter is that of the embedded model, and the model another."""
        for name, node in self.nodes.items():
            drafter = getattr(node, "model", None) if isinstance(node, DrafterOptions) else None
            if self.model.name != "embedded" and drafter in EMBEDDED_DRAFTERS:
                return (
                    f"model.name is {self.model.name!r}, but the drafter is {drafter!r}, which "
                    f"drafts for the embedded model only; set nodes.{name}.model to a drafter of "
                    f"that model, or go on without one: --set nodes.{name}=null"
                )
        return None

    @property
    def grammars(self) -> GrammarOptions | None:
        """The options of the node that fills grammar masks; None: the pipeline has none."""
        return self._option(GrammarOptions)

    def _option(self, model: type[OptionsModel]) -> OptionsModel | None:
        for node in self.nodes.values():
            if isinstance(node, model):
                return node
        return None

    @property
    def device(self) -> str:
        """Where the model is to lie: `cpu`, or on the device of the executor's streams."""
        if self.model.device != "auto":
            return self.model.device
        return HOST if streams_behind(self.executor) is None else self.executor


def _by_name_alone(policy: type[BaseModel]) -> bool:
    """Whether no option of the policy has to be given."""
    options = policy.model_fields.items()
    return not any(option.is_required() for name, option in options if name != "kind")


Pipeline = PipelineConfig  # its public name


def json_schema() -> dict[str, Any]:
    """JSON Schema of a config file, a pipeline or an abstract graph.

    It knows the node kinds of the packages that are installed; one that cannot be loaded is left
    out.
    """
    from pydantic.json_schema import models_json_schema

    kinds = {name: node_model(kind(name)) for name in known_kinds()}
    policies = {
        decision: {name: policy_model(decision, name) for name in loadable(decision)}
        for decision in DECISIONS
    }
    models: list[type[BaseModel]] = [
        PipelineConfig,
        AbstractGraph,
        *dict.fromkeys(kinds.values()),
        *(model for named in policies.values() for model in named.values()),
    ]
    _, schema = models_json_schema(
        [(each, "validation") for each in models],
        title="Stepweave pipeline",
        ref_template="#/$defs/{model}",
    )
    for model in models[:2]:
        definition = schema["$defs"][model.__name__]
        definition["properties"]["extends"] = {
            "type": "string",
            "description": "The config that this one changes: a shipped name, or a path "
            "relative to this file.",
        }
    # A file that extends another may leave out whatever that one says.
    graph = schema["$defs"]["AbstractGraph"]
    graph["anyOf"] = [{"required": graph.pop("required")}, {"required": ["extends"]}]
    references = {name: {"$ref": f"#/$defs/{model.__name__}"} for name, model in kinds.items()}
    nodes = schema["$defs"]["PipelineConfig"]["properties"]["nodes"]
    nodes.pop("patternProperties", None)
    # A node is of the kind that it names, else of that of its name, else of the extended file's.
    of_any = [{"type": "null"}, *references.values()]
    by_kind = {"required": ["kind"], "anyOf": of_any[1:]}
    nodes["properties"] = {
        name: {"anyOf": [{"type": "null"}, reference, by_kind]}
        for name, reference in references.items()
    }
    nodes["additionalProperties"] = {"anyOf": of_any}
    for name, of_kind in kinds.items():
        schema["$defs"][of_kind.__name__]["properties"]["kind"]["enum"] = [name]
    for decision, named in policies.items():
        chosen = schema["$defs"]["PoliciesConfig"]["properties"][decision]
        chosen.pop("$ref", None)
        chosen["anyOf"] = [
            {"enum": [name for name, model in named.items() if _by_name_alone(model)]},
            *({"$ref": f"#/$defs/{model.__name__}"} for model in named.values()),
        ]
        for name, model in named.items():
            schema["$defs"][model.__name__]["properties"]["kind"]["enum"] = [name]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "anyOf": [{"$ref": "#/$defs/PipelineConfig"}, {"$ref": "#/$defs/AbstractGraph"}],
    }
