"""A small random engine for tests: of ours, and of the nodes and policies you write.

The drafter is the first layer of the target, whose later layers are scaled down, so that drafts
are accepted at a realistic rate without training anything.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import nn
from transformers import PreTrainedModel

from ..backends import device_called
from ..configs.load import load_config
from ..configs.schema import PipelineConfig
from ..graph.parameters import Resource
from ..models.cache_dtype import CacheDType
from ..models.causal_lm import CausalLM
from ..models.stage_lm import StageLM
from ..models.tokenizer import StreamDecoder
from ..nodes.draft_model import DRAFT_MODEL
from ..nodes.eagle import HEAD
from ..nodes.links import Links
from ..nodes.medusa import MEDUSA
from ..nodes.mtp import MTP
from ..nodes.tree import Growth
from ..nodes.values import LINKS
from ..policies.chosen import Policies
from ..requests.request import Request, SamplingParams
from ..requests.stopping import StopChecker
from ..requests.table import Limits
from ..serving.engine import Engine
from ..serving.pipeline import compiled
from ..serving.plans import Steer, stay
from ..structured.xgrammar_backend import XGrammarBackend
from .models import tiny_eagle, tiny_medusa, tiny_model, tiny_mtp, tiny_tokenizer

Method = Literal["draft_model", "eagle", "eagle3", "mtp", "medusa", "ngram", "suffix"]

VOCAB = 320
EOS = 0


def tiny_pair(
    dtype: torch.dtype, *, scale: float = 0.15, seed: int = 0, context: int = 96
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A target of three layers and a drafter that is its first layer."""
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "max_position_embeddings": context}
    target = tiny_model("llama", seed, dtype, **sizes)
    drafter = tiny_model("llama", seed, dtype, **{**sizes, "num_hidden_layers": 1})
    weights = target.state_dict()
    with torch.no_grad():
        for name, weight in weights.items():
            deep = not name.startswith("model.layers.0.") and "layers" in name
            if deep and ("o_proj" in name or "down_proj" in name):
                weight.mul_(scale)
    drafter.load_state_dict({name: weights[name] for name in drafter.state_dict()})
    return target, drafter


@cache
def tiny_grammars() -> XGrammarBackend:
    """Grammars over the vocabulary of `tiny_tokenizer`."""
    return XGrammarBackend(tiny_tokenizer(VOCAB), VOCAB, (EOS,))


@dataclass(frozen=True)
class TinyConfig:
    """What a tiny engine is built with: one cell of the matrix of features."""

    depth: int = 1
    executor: str = "serial"
    device: str = "cpu"
    draft_tokens: int = 0
    method: Method = "draft_model"
    modules: int = 1  # that predict further tokens, of `method` mtp
    padded: bool = True
    structured: bool = False
    policies: Policies = field(default_factory=Policies)
    prefix_cache: bool = False
    num_blocks: int = 200
    token_budget: int = 64
    max_rows: int = 4
    context: int = 96
    dtype: torch.dtype = torch.float64
    invariant: bool = False
    order: Literal["keep", "search"] = "search"
    check: Literal["off", "strict"] = "off"
    tree: tuple[tuple[int, ...], ...] | Growth | None = None  # of `draft_tokens` nodes
    cache_dtype: CacheDType = "auto"
    fork: bool = False  # copy the last block of a prompt for each of its completions
    swap: int = 0  # host blocks of requests that give way; 0: they are computed again


@cache
def tiny_pipeline(config: TinyConfig) -> PipelineConfig:
    """The shipped pipeline `base` with the nodes that `config` asks for."""
    return _pipeline(config, {})


def _pipeline(config: TinyConfig, settings: Mapping[str, Any]) -> PipelineConfig:
    nodes: dict[str, Any] = {}
    if config.swap:
        nodes["swap"] = {"after": "schedule", "blocks": config.swap}
    if config.fork:
        nodes["fork"] = {"after": "schedule"}
    if config.structured:
        nodes["bitmask"] = {"after": "forward"}
    if config.draft_tokens:
        nodes["draft"] = {
            "kind": config.method,
            "after": "sample" if config.padded else "d2h_counts",
            "tokens": config.draft_tokens,
        }
        if config.tree is not None:
            nodes["draft"]["tree"] = (
                config.tree.model_dump()
                if isinstance(config.tree, Growth)
                else [list(path) for path in config.tree]
            )
            nodes["keep_path"] = {"after": "sample"}
        if not config.padded:
            nodes["d2h_counts"] = {"after": "sample"}
    left_out = {
        key for key in settings if key.removeprefix("nodes.") in nodes and not settings[key]
    }
    nodes = {name: node for name, node in nodes.items() if f"nodes.{name}" not in left_out}
    settings = {key: value for key, value in settings.items() if key not in left_out}
    found = load_config(
        "base",
        {
            "depth": config.depth,
            "order": config.order,
            "scheduler.max_rows": config.max_rows,
            "scheduler.token_budget": config.token_budget,
            "nodes": nodes,
            **settings,
        },
    )
    assert isinstance(found, PipelineConfig)
    return found


def tiny_engine(
    config: TinyConfig,
    *,
    drafter_context: int | None = None,
    settings: Mapping[str, Any] | None = None,
    links: Links | None = None,
    resources: Mapping[Resource[Any], object] | None = None,
    others: Mapping[str, Mapping[str, Any]] | None = None,
    steer: Steer = stay,
) -> Engine:
    """An engine of that configuration, on the same weights for every configuration.

    `settings`: changes to its pipeline, as `{"nodes.draft.stream": "draft"}`; `others`: those of
    other plans by name, to which it goes over as `steer` says. `resources` take the place of its
    own. With `links` it has
    one stage of the model. Raises `GraphError`
    or `EngineError` for a configuration of which there is no plan.
    """
    place = device_called(config.device)
    pair = tiny_pair(config.dtype, context=config.context)
    target, draft = (nn.Module.to(model, place) for model in pair)
    brought: dict[Resource[Any], object] = {} if links is None else {LINKS: links}
    if config.draft_tokens and config.method == "draft_model":
        if drafter_context is not None:
            draft.config.max_position_embeddings = drafter_context
        brought[DRAFT_MODEL] = CausalLM.wrap(draft, invariant=config.invariant)
    elif config.draft_tokens and (config.method == "eagle" or config.method == "eagle3"):
        brought[HEAD] = tiny_eagle(
            target, config.method, invariant=config.invariant, context=drafter_context
        )
    elif config.draft_tokens and config.method == "mtp":
        brought[MTP] = tiny_mtp(
            target,
            invariant=config.invariant,
            context=drafter_context,
            modules=config.modules,
        )
    elif config.draft_tokens and config.method == "medusa":
        paths = config.tree if isinstance(config.tree, tuple) else ()
        heads = max(map(len, paths), default=config.draft_tokens)
        brought[MEDUSA] = tiny_medusa(target, heads, invariant=config.invariant)
    pipeline = _pipeline(config, settings) if settings else tiny_pipeline(config)
    limits = Limits(
        max_rows=config.max_rows,
        token_budget=config.token_budget,
        block_size=4,
        num_blocks=config.num_blocks,
        context_length=config.context,
        draft_tokens=config.draft_tokens,
        max_queue=100,
        cache_dtype=config.cache_dtype,
    )
    return Engine(
        lambda resources: compiled(pipeline, resources),
        CausalLM.wrap(target, invariant=config.invariant)
        if links is None
        else StageLM(target, links.stage, invariant=config.invariant),
        limits,
        resources={**brought, **(resources or {})},
        policies=config.policies,
        prefix_cache=config.prefix_cache,
        executor=config.executor,
        check=config.check,
        watchdog_s=120.0,
        others={
            name: partial(compiled, _pipeline(config, {**(settings or {}), **other}))
            for name, other in (others or {}).items()
        },
        steer=steer,
    )


def tiny_request(
    uid: int,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    context: int = 96,
    bad_words: Sequence[Sequence[int]] = (),
    dry_breakers: Sequence[int] = (),
) -> Request:
    """A request over token ids; its grammar is compiled if it has one."""
    room = min(params.max_tokens, context - len(prompt))
    stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else {EOS})
    spec = params.grammar
    return Request(
        uid=uid,
        id=str(uid),
        prompt="",
        prompt_ids=tuple(prompt),
        params=params,
        max_tokens=room,
        stop_token_ids=stops,
        stopper=StopChecker(stops, params.stop, room, min(params.min_tokens, room)),
        bad_words=tuple(map(tuple, bad_words)),
        dry_breakers=tuple(dry_breakers),
        decoder=StreamDecoder(tiny_tokenizer(VOCAB), prompt),
        grammar=None if spec is None else tiny_grammars().compile(spec),
    )


def tiny_requests(
    params: Sequence[SamplingParams], *, seed: int = 5, longest: int = 30, context: int = 96
) -> list[Request]:
    """One request for each of `params`, with random prompts of 1 to `longest` − 1 tokens.

    Raises `ValueError` if `longest` is less than 2.
    """
    rnd = random.Random(seed)
    return [
        tiny_request(
            uid,
            [rnd.randrange(3, VOCAB) for _ in range(rnd.randrange(1, longest))],
            each,
            context=context,
        )
        for uid, each in enumerate(params)
    ]


def fitted(engine: Engine, request: Request) -> Request:
    """The request with the draft window that this engine gives it."""
    wanted, most = request.params.draft_tokens, engine.limits.draft_tokens
    request.window = 1 + (most if wanted is None else min(wanted, most))
    return request


def serve(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
    """Run the requests to their end; the settled tokens of each.

    Each gets the draft window of this engine, but for those that ask for less. Raises `StuckWait`,
    `UndeclaredAccess`, and what is wrong with the plan; an op that fails ends its requests alone.
    """
    table = engine.new_table()
    for request in requests:
        table.submit(fitted(engine, request))
    engine.run(table)
    return [list(request.output_ids) for request in requests]
