"""From a pipeline config to an engine: the models it names, and their sizes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..backends import device_called
from ..backends.registry import backend_of_name
from ..configs.schema import PipelineConfig
from ..graph.errors import shortly
from ..graph.parameters import Resource
from ..models.adapters import adapt
from ..models.causal_lm import CausalLM
from ..models.loading import Loading
from ..models.threads import is_small, let_go, that_run_at_once, threads_for
from ..nodes.values import GROUP, KEEPS_STATES, LINKS, LOADING
from ..policies.admission import Eager
from ..policies.chosen import Policies
from ..requests.inbox import Inbox
from ..requests.limits import Limits
from .cache_size import blocks_of
from .engine import Engine, EngineError
from .pipeline import compiled, policies_of, proved_digests
from .steering import Fastest, terms_of

if TYPE_CHECKING:
    from ..distributed.membership import Membership
    from ..distributed.stage_links import StageLinks


def load_engine(config: PipelineConfig) -> Engine:
    """Load the models and compile the plan, as one rank of a group if the config asks for several.

    Raises `NoDevice`, `ModelError`, `GraphError`, `EngineError` or `GroupError`.
    """
    if config.ranks == 1:
        return _loaded(config, device_called(config.device))
    return _loaded_as_rank(config)


def threads_of(config: PipelineConfig) -> int | None:
    """Threads inside a torch operation; None: torch's own number."""
    asked = config.torch_threads
    if asked != "auto":
        return None if asked is None else that_run_at_once(asked)
    on_host = backend_of_name(config.device).on_host
    return threads_for(config.model.name) if on_host else None


PIECES = 512
"""Tokens of a step with prompts that takes a GPU less time than its launches take the host."""

SMALL_PIECES = 256
"""The same of a small model on a CPU."""


def pieces_of(config: PipelineConfig) -> int:
    """Tokens of the largest step with prompts that is captured in pieces.

    Raises `ModelNotFound`.
    """
    if config.pieces != "auto":
        return config.pieces
    if not backend_of_name(config.device).on_host:
        return PIECES
    return SMALL_PIECES if is_small(config.model.name) else 0


def _loaded_as_rank(config: PipelineConfig) -> Engine:
    """The engine of this rank: what one rank cannot load, no rank has.

    Rank 0 raises what went wrong on it; any other rank tells rank 0, and raises `GroupEnded`. So
    what goes wrong on all of them alike, after they have joined, is said once.
    """
    from ..distributed.start import join  # only here: one rank alone needs none of it
    from .alike import digest_of_rest, models_are_here

    parallel = config.model.parallel
    if parallel.pipeline > 1 and not backend_of_name(config.device).on_host:
        raise EngineError(
            "model.parallel.pipeline is for CPUs so far: on a GPU messages in both directions may "
            "wait for each other; divide the model by model.parallel.tensor"
        )
    group = join(parallel.ranks, config.device, silence_s=parallel.silence_s)
    try:
        group.require_same("pipeline", digest_of_rest(config))
        group.all_have_met()
        here = all(group.gathered(models_are_here(config)))
        if here:  # before they meet in what a model computes, if they can
            _require_same_models(config, group)
        engine = _loaded(config, group.device, group)
        if not here:
            _require_same_models(config, group)
        proved = proved_digests(config)
        group.require_proved(engine.plan.digest, proved or [engine.plan.digest] * parallel.ranks)
    except BaseException as error:
        ended = group.group.end(f"rank {group.group.rank}: {shortly(error)}")
        if group.group.leads or not isinstance(error, Exception):
            raise
        raise ended from error
    return engine


def _require_same_models(config: PipelineConfig, group: Membership) -> None:
    from .alike import digest_of_models

    for key, digest in digest_of_models(config).items():
        group.require_same(f"model ({key})", digest)


def _loaded(
    config: PipelineConfig, device: torch.device, group: Membership | None = None
) -> Engine:
    """What is tried out while a model loads is computed with as many threads as its runs have: it
    is to hold for them, and threads that wait for each other cost a small model seconds.
    """
    before, threads = torch.get_num_threads(), threads_of(config)
    torch.set_num_threads(threads or before)
    try:
        return _built(config, threads, device, group)
    finally:
        torch.set_num_threads(before)
        let_go()  # another thread runs what this one has loaded


def _built(
    config: PipelineConfig, threads: int | None, device: torch.device, group: Membership | None
) -> Engine:
    chosen, parallel = config.model, config.model.parallel
    loading = Loading(
        chosen.dtype, chosen.invariant, chosen.compile, chosen.merge, chosen.kv_cache_form
    )
    of_target = loading
    if chosen.adapters:
        of_target = replace(loading, compile="off", cache_form=chosen.target_cache_form)
    links = None if group is None or parallel.pipeline == 1 else _between_stages(group)
    with nullcontext() if group is None else group.communicators.of_a_library():
        model = of_target.causal_lm(
            chosen.name,
            device,
            shards=parallel.tensor,
            stage=None if links is None else links.stage,
        )
    if chosen.adapters:
        adapt(model, chosen.adapters)
    meeting: dict[Resource[Any], object] = {GROUP: group}
    if links is not None:
        meeting[LINKS] = links
    drafter, scheduler = config.drafter, config.scheduler
    limits = Limits(
        max_rows=scheduler.max_rows,
        token_budget=scheduler.token_budget,
        block_size=scheduler.block_size,
        num_blocks=_least(blocks_of(config, model), group),
        context_length=_context_of(config, model),
        draft_tokens=drafter.tokens if drafter else 0,
        max_queue=scheduler.max_queue,
        cache_dtype=chosen.kv_cache_dtype,
        rope_switch=model.rope_switch,
    )
    return Engine(
        lambda resources: compiled(config, resources),
        model,
        limits,
        resources={LOADING: loading, KEEPS_STATES: model.keeps_states, **meeting},
        inbox=Inbox if group is None else group.inbox,
        witness=group,
        policies=_policies(config, group),
        # A block is of no use without the states behind it, which nobody has kept.
        prefix_cache=scheduler.prefix_cache and not model.keeps_states,
        executor=config.executor,
        graphs=config.captured or config.recorded,
        pieces=pieces_of(config),
        nvtx=config.nvtx,
        check=config.check,
        torch_threads=threads,
        others={name: partial(compiled, form) for name, form in config.forms.items()},
        steer=Fastest(terms_of(config)),
    )


def _between_stages(group: Membership) -> StageLinks:
    from ..distributed.stage_links import StageLinks

    return StageLinks(group.group, group.communicators)


def _least(number: int, group: Membership | None) -> int:
    """Of the numbers of all ranks, which have as much memory as each has."""
    return number if group is None else min(group.gathered(number))


def _policies(config: PipelineConfig, group: Membership | None) -> Policies:
    """Those of the config; only rank 0 has a clock, by which it may hold a step back."""
    found = policies_of(config)
    follows = group is not None and not group.group.leads
    return replace(found, admission=Eager()) if follows else found


def _context_of(config: PipelineConfig, model: CausalLM) -> int:
    """Tokens of the longest request that is served. Raises `EngineError` for more than it has."""
    asked, most = config.scheduler.max_context, model.context_length
    if asked is not None and asked > most:
        raise EngineError(
            f"scheduler.max_context is {asked}, but {config.model.name} has a context of {most} "
            "tokens: lower it, or leave it out"
        )
    return most if asked is None else asked
