"""Families of other forms in the engine: experts, latent attention, layers with states.

Each has the tokens of its own `generate` at every depth, with drafts that are refused, and with
grammars.
"""

import itertools
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from stepweave.models.errors import ModelError
from stepweave.models.recurrent import RowStates
from stepweave.models.support import plain_experts
from stepweave.requests.request import RequestOutput, SamplingParams
from stepweave.serving.llm import LLM
from stepweave.testing import tiny_tokenizer
from stepweave.testing.models import tiny_medusa
from tests.models.families import save_family
from tests.models.paged_rows import own_greedy
from tests.models.test_mtp import LAYOUTS, module_weights, with_more, write

COUNT = 14
WITH_EXPERTS = ("mixtral", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss", "glm4_moe")
LATENT = ("deepseek_v3", "deepseek_v2", "glm4_moe_lite")
WITH_STATES = ("qwen3_next", "falcon_h1", "lfm2")
KEYS = {
    "scheduler.num_blocks": "120",
    "scheduler.block_size": "4",
    "scheduler.max_rows": "3",
    "model.dtype": "float64",
    "model.invariant": "false",
    "torch_threads": "1",
}


def sampled(always: str, *others: str) -> list[Any]:
    """One family, and others at night."""
    return [always, *(pytest.param(each, marks=pytest.mark.nightly) for each in others)]


GRAMMAR: dict[str, Any] = {"structured_outputs": {"regex": "[a-d]{3,9}( [0-9]{1,6}){2}"}}


@dataclass(frozen=True)
class Saved:
    """A tiny model, and what its own `generate` makes of the prompts, in double precision."""

    folder: Path
    answers: list[tuple[int, ...]]
    banned: list[int]  # a token in the middle of each answer
    turned: list[tuple[int, ...]]  # the answers without it, which begin as the others do


@cache
def saved(family: str) -> Saved:
    folder = Path(mkdtemp(prefix=f"{family}-"))
    save_family(family, folder)
    load: Any = AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype=torch.float64, attn_implementation="eager")
    plain_experts(model)

    def own(prompt: list[int], **how: Any) -> tuple[int, ...]:
        return tuple(own_greedy(model, prompt, COUNT, **how))

    answers = [own(prompt) for prompt in prompts()]
    banned = [answer[5 + at] for at, answer in enumerate(answers)]
    turned = [
        own(prompt, suppress_tokens=[token])
        for prompt, token in zip(prompts(), banned, strict=True)
    ]
    return Saved(folder, answers, banned, turned)


def prompts() -> list[list[int]]:
    """ASCII, since texts are compared too; the longest are computed in chunks."""
    draw = random.Random(7)
    some = [draw.randrange(2, 90) for _ in range(6)]
    return [some[:2], some * 4, [5], some + some[:3], [draw.randrange(2, 90) for _ in range(23)]]


def served(family: str, pipeline: str, **keys: str) -> LLM:
    overrides = {**KEYS, "model.name": str(saved(family).folder), **keys}
    return LLM(pipeline=pipeline, overrides=overrides)


def said(llm: LLM, each: Sequence[SamplingParams] = (), **params: Any) -> list[RequestOutput]:
    asked = [
        replace(one, max_tokens=COUNT, ignore_eos=True, **params)
        for one in each or [SamplingParams()] * len(prompts())
    ]
    outputs = llm.generate(prompts(), asked)
    assert [output.error for output in outputs] == [None] * len(outputs)
    return outputs


ROOM: dict[str, dict[str, str]] = {
    "plenty": {},
    "few blocks": {"scheduler.num_blocks": "12", "nodes.draft.tokens": "2"},
    "small chunks": {"scheduler.token_budget": "8"},
}


OF_LATENTS: dict[str, dict[str, str]] = {
    "swapped": {**ROOM["few blocks"], "nodes.swap.after": "schedule", "nodes.swap.blocks": "16"},
    "expanded": {"model.kv_cache_form": "expanded"},
    "invariant": {"model.invariant": "true", "model.dtype": "float32"},
}
CELLS = (
    *itertools.product(WITH_EXPERTS + LATENT + WITH_STATES, ("1", "2", "3"), ROOM),
    *itertools.product(LATENT, ("1", "2", "3"), OF_LATENTS),
)
ALWAYS = (
    ("qwen3_next", "3", "few blocks"),
    ("deepseek_v3", "2", "swapped"),
    ("lfm2", "2", "small chunks"),
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("family", "depth", "room"),
    [pytest.param(*cell, marks=() if cell in ALWAYS else pytest.mark.nightly) for cell in CELLS],
)
def test_tokens_are_those_of_generate_with_drafts_that_are_refused(
    family: str, depth: str, room: str
) -> None:
    expected = saved(family)
    with served(family, "async_suffix", depth=depth, **(ROOM | OF_LATENTS)[room]) as llm:
        greedy = said(llm)
        # It drafts from these texts now, so drafts are right up to the token that is banned.
        turned = said(llm, [SamplingParams(logit_bias={token: -100}) for token in expected.banned])
        assert (llm.engine.totals.swapped_out > 0) == (room == "swapped")
    assert [output.token_ids for output in greedy] == expected.answers
    assert [output.token_ids for output in turned] == expected.turned
    drafted = sum(output.drafted for output in turned)
    assert 0 < sum(output.accepted for output in turned) < drafted


@pytest.mark.parametrize("family", sampled("lfm2", "deepseek_v3", "qwen3_moe", *WITH_STATES[:2]))
def test_grammars_hold_and_tokens_do_not_depend_on_depth_or_drafts(family: str) -> None:
    found = []
    for pipeline, depth in (("async_grammar", "1"), ("async_jump_forward", "2")):
        # No process that tries them: it takes longer to start than all of this.
        keys = {"depth": depth, "nodes.bitmask.compile_limit_s": "null"}
        with served(family, pipeline, **keys) as llm:
            outputs = said(llm, **GRAMMAR)
            found.append([output.token_ids for output in outputs])
    assert found[1] == found[0]
    assert sum(output.accepted for output in outputs) > 0
    allowed = re.compile("[a-d]{1,9}( [0-9]{0,6}){0,2}")
    assert all(allowed.fullmatch(output.text) for output in outputs)


@pytest.mark.parametrize("family", sampled("lfm2", *WITH_STATES[:2]))
def test_a_model_with_states_shares_no_prefixes_and_says_why_it_cannot_be_cut(family: str) -> None:
    with served(family, "async") as llm:
        assert said(llm)[1].cached_tokens == said(llm)[1].cached_tokens == 0
        assert any("layers with states keep" in note for note in llm.engine.model.notes)
    with pytest.raises(ModelError, match=r"model\.invariant: false"):
        served(family, "async", **{"model.invariant": "true", "model.dtype": "float32"})
    with pytest.raises(ModelError, match="only blocks are copied"):
        served(family, "async_swap", **{"nodes.draft": "null"})
    with pytest.raises(ModelError, match="where drafts are refused"):
        served(family, "async_speculation", **{"nodes.draft.model": str(saved(family).folder)})


@pytest.mark.parametrize("family", sampled("lfm2", *WITH_STATES[:2]))
def test_checking_mode_finds_no_access_to_states_that_is_not_declared(family: str) -> None:
    with served(family, "async_ngram", check="strict", executor="serial") as llm:
        assert [output.token_ids for output in said(llm)] == saved(family).answers
    keys = {"nodes.draft.model": str(medusa_of(family)), "nodes.draft.tree": TREE, **KEEPING_PATHS}
    how = {"nodes.draft.tokens": "7", "check": "strict", "executor": "serial"}
    with served(family, "async_medusa", **keys, **how) as llm:
        assert [output.token_ids for output in said(llm)] == saved(family).answers


@cache
def medusa_of(family: str) -> Path:
    """A folder with Medusa heads, fitted to what the family's tiny model says."""
    load: Any = AutoModelForCausalLM.from_pretrained
    target = load(saved(family).folder, dtype=torch.float32, attn_implementation="eager")
    heads = tiny_medusa(target, HEADS).network
    folder = Path(mkdtemp(prefix=f"{family}-medusa-"))
    stated = {"medusa_num_heads": HEADS, "medusa_num_layers": 1}
    (folder / "config.json").write_text(json.dumps(stated))
    save_file(dict(heads.state_dict()), folder / "medusa_lm_head.safetensors")
    return folder


HEADS = 3
TREE = "[[0], [1], [2], [0, 0], [0, 1], [1, 0], [1, 0, 0]]"
LARGER_ROOM = {
    "plenty": {},
    "few blocks": {"scheduler.num_blocks": "15"},
    "small chunks": {"scheduler.token_budget": "16"},
}
KEEPING_PATHS = {"nodes.keep_path.after": "sample", "nodes.keep_path.stream": "compute"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("room", LARGER_ROOM)
@pytest.mark.parametrize("depth", ["1", "2", "3"])
@pytest.mark.parametrize("family", sampled("lfm2", *WITH_STATES[:2]))
def test_trees_change_no_token_of_a_model_with_states(
    family: str, depth: str, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of what is kept is no first choice, so its states lay elsewhere."""
    moved: list[bool] = []
    banned = saved(family).banned
    own = RowStates.move

    def watched(states: RowStates, slots: Tensor, source: Tensor) -> None:
        moved.append(bool((source != torch.arange(source.shape[1])).any()))
        own(states, slots, source)

    monkeypatch.setattr(RowStates, "move", watched)
    keys = {"nodes.draft.model": str(medusa_of(family)), "nodes.draft.tree": TREE}
    more = {**KEEPING_PATHS, **LARGER_ROOM[room], "nodes.draft.tokens": "7"}
    with served(family, "async_medusa", depth=depth, **keys, **more) as llm:
        greedy = said(llm)
        # Where the first choice is banned the second one is right.
        turned = said(llm, [SamplingParams(logit_bias={token: -100}) for token in banned])
    assert [output.token_ids for output in greedy] == saved(family).answers
    assert [output.token_ids for output in turned] == saved(family).turned
    drafted = sum(output.drafted for output in turned)
    assert 0 < sum(output.accepted for output in turned) < drafted
    assert any(moved)


@cache
def modules_of(family: str, count: int) -> Path:
    """A folder with modules for the family's tiny model: layers of its kind, untrained."""
    folder = Path(mkdtemp(prefix=f"{family}-modules-"))
    larger = with_more(family, count, vocab_size=len(tiny_tokenizer()))
    return write(folder, module_weights(larger, LAYOUTS[family]), {})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("depth", ["1", "2", "3"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("family", ["qwen3_next", "deepseek_v3", "glm4_moe"])
def test_modules_of_the_familys_layout_change_no_token(family: str, count: int, depth: str) -> None:
    keys = {"nodes.draft.model": str(modules_of(family, count)), "nodes.draft.tokens": "3"}
    with served(family, "async_mtp", depth=depth, **keys) as llm:
        outputs = said(llm)
    assert [output.token_ids for output in outputs] == saved(family).answers
    assert sum(output.accepted for output in outputs) < sum(output.drafted for output in outputs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("depth", ["1", "2", "3"])
@pytest.mark.parametrize("family", ["qwen3_next", "deepseek_v3"])
def test_trees_that_grow_change_no_token(family: str, depth: str) -> None:
    """Which place is whose parent is known to the device alone."""
    grown = {"nodes.draft.tree": "{width: 2, depth: 3, children: 3}", "nodes.draft.tokens": "6"}
    keys = {**grown, **KEEPING_PATHS, "nodes.draft.model": str(modules_of(family, 1))}
    with served(family, "async_mtp", depth=depth, **keys) as llm:
        outputs = said(llm)
    assert [output.token_ids for output in outputs] == saved(family).answers
    assert sum(output.accepted for output in outputs) < sum(output.drafted for output in outputs)


@pytest.mark.nightly
@pytest.mark.parametrize("family", LATENT)
def test_completions_share_the_latents_of_their_prompt(family: str) -> None:
    keys = {"nodes.fork.after": "schedule", "nodes.fork.stream": "compute"}
    with served(family, "async_suffix", **keys) as llm:
        found = said(llm, n=2)
        choices = [[choice.token_ids for choice in each.choices] for each in found]
        assert choices == [[answer] * 2 for answer in saved(family).answers]
        assert llm.engine.totals.forked_tokens > 0
