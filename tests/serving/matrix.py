"""The matrix of features, and what runs one cell of it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, cast

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from stepweave.graph.parameters import Resource
from stepweave.models.cache_dtype import CacheDType
from stepweave.models.causal_lm import CausalLM
from stepweave.nodes.draft_model import DRAFT_MODEL, VOCABULARIES
from stepweave.nodes.ops.vocabularies import spelled
from stepweave.nodes.tree import Growth
from stepweave.nodes.values import TOKENIZER
from stepweave.policies.acceptance import Acceptance, Block, Coupled, Rejection, Typical
from stepweave.policies.chosen import Policies
from stepweave.policies.drafting import ByAcceptance, ByRows, Drafting, Full
from stepweave.policies.fastest import Fastest
from stepweave.policies.resumption import Cheaper
from stepweave.requests.request import Request, SamplingParams
from stepweave.requests.totals import Totals
from stepweave.serving.engine import Engine
from stepweave.structured.grammar import GrammarSpec
from stepweave.testing.engines import (
    EOS,
    VOCAB,
    Method,
    TinyConfig,
    fitted,
    tiny_engine,
    tiny_pair,
    tiny_request,
)
from stepweave.testing.models import tiny_model, tiny_tokenizer
from tests.serving.reference import Expected, expected
from tests.serving.rounding import rounding

METHODS: tuple[str | None, ...] = (
    *(None, "draft_model", "eagle", "eagle3", "mtp"),
    *("medusa", "ngram", "suffix", "eagle3 tree", "mtp grown", "mtp modules", "modules tree"),
)
"""Drafters, some of them with trees, or with several modules."""

TREES: dict[str, tuple[Method, tuple[tuple[int, ...], ...] | Growth, int]] = {
    "eagle3 tree": ("eagle3", ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)), 6),
    "mtp grown": ("mtp", Growth(width=2, depth=3, children=3, among="all"), 6),
    "mtp level": ("mtp", Growth(width=2, depth=3, children=3), 8),
    "eagle tree": ("eagle", ((0,), (1,), (0, 0), (1, 0)), 4),
    "modules tree": ("mtp", ((0,), (1,), (0, 0), (0, 0, 0)), 4),
    "medusa tree": ("medusa", ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0)), 6),
}
MODULES = {"mtp modules": 3, "modules tree": 3}
"""How many modules that predict further tokens there are, for four drafts."""
OTHER = "other vocabulary"
"""A drafter that is a smaller model, with a tokenizer of its own."""

DRAFTED: tuple[str, ...] = tuple(
    dict.fromkeys([*(each for each in METHODS if each), *TREES, OTHER])
)
"""Every drafter, to be combined with what decides about drafts."""

DEPTHS = (1, 2, 3)

RULES: dict[str, Acceptance] = {
    "coupled": Coupled(),
    "rejection": Rejection(),
    "block": Block(),
    "typical": Typical(),
}
DRAFTING: dict[str, Drafting] = {
    "full": Full(),
    "by_acceptance": ByAcceptance(windows=4, every=2),
    "by_rows": ByRows(tokens=8),
    "fastest": Fastest(),
}

SCHEMA = GrammarSpec.from_request(
    {
        "json": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
            "required": ["a", "b"],
        }
    }
)
REGEX = GrammarSpec.from_request({"regex": "[a-z]{2,9}( [0-9]{1,3}){0,2}"})
TAG = GrammarSpec.from_request(
    {
        "structural_tag": {
            "type": "structural_tag",
            "format": {
                "type": "sequence",
                "elements": [
                    {"type": "const_string", "value": "call "},
                    {
                        "type": "tag",
                        "begin": "<f>",
                        "content": {
                            "type": "json_schema",
                            "json_schema": {"type": "array", "items": {"type": "boolean"}},
                            "max_whitespace_cnt": 1,
                        },
                        "end": "</f>",
                    },
                ],
            },
        }
    }
)
GRAMMARS: dict[str, list[GrammarSpec | None]] = {
    "no grammar": [None],
    "schema": [SCHEMA],
    "regex": [REGEX],
    "structural tag": [TAG],
    "mixed": [None, SCHEMA, TAG, REGEX],
}

SAMPLING: dict[str, list[SamplingParams]] = {
    "plain": [SamplingParams()],
    "penalties": [
        SamplingParams(repetition_penalty=0.5),
        SamplingParams(presence_penalty=1.1, frequency_penalty=0.7),
        SamplingParams(logit_bias=((105, 3.0), (49, 2.0), (298, 4.5)), repetition_penalty=1.4),
        SamplingParams(presence_penalty=2.0, frequency_penalty=-0.3),
    ],
    "bad words": [SamplingParams(bad_words=("?",))],  # the words come from the plain output
    "logprobs": [SamplingParams(logprobs=3), SamplingParams(logprobs=0), SamplingParams()],
    "prompt logprobs": [SamplingParams(prompt_logprobs=2), SamplingParams()],
    "seeded": [
        SamplingParams(temperature=0.9, seed=11, top_k=40, top_p=0.95),
        SamplingParams(temperature=1.0, seed=12, min_p=0.05),
        SamplingParams(temperature=0.7, seed=13),
        SamplingParams(),
    ],
    "min tokens": [SamplingParams(min_tokens=8)],  # the stop tokens come from the plain output
    "repetition": [
        # The penalty, which favours what was written before, makes texts repeat themselves.
        SamplingParams(repetition_penalty=0.25, no_repeat_ngram_size=2),
        SamplingParams(
            repetition_penalty=0.25, dry_multiplier=3.0, dry_base=2.0, dry_allowed_length=1
        ),
        SamplingParams(temperature=1.0, seed=3, xtc_probability=0.7, xtc_threshold=0.004),
        SamplingParams(
            temperature=0.8,
            seed=4,
            xtc_probability=0.5,
            xtc_threshold=0.003,
            repetition_penalty=0.25,
            no_repeat_ngram_size=2,
            dry_multiplier=1.0,
            dry_allowed_length=1,
            dry_penalty_last_n=9,
        ),
    ],
    "mixes": [
        SamplingParams(temperature=0.8, seed=5, repetition_penalty=1.2, logprobs=1),
        SamplingParams(prompt_logprobs=0, frequency_penalty=1.0, min_tokens=3),
        SamplingParams(temperature=1.0, seed=6, min_p=0.02, draft_tokens=1, bad_words=("?",)),
        SamplingParams(draft_tokens=0, presence_penalty=2.0, logprobs=2),
    ],
}
CHANGES_TOKENS = {"penalties", "bad words", "seeded", "min tokens", "repetition", "mixes"}

SITUATIONS: dict[str, TinyConfig] = {
    "chunked prefill": TinyConfig(token_budget=9),
    "preemption": TinyConfig(),  # with blocks to admit all requests, but not to finish them
    "swap": TinyConfig(swap=16),  # the same, and who gives way keeps its blocks on the host
    "prefix cache": TinyConfig(prefix_cache=True),
    "short drafter context": TinyConfig(),
}
MORE_SITUATIONS: dict[str, TinyConfig] = {
    **SITUATIONS,
    "cheaper": TinyConfig(swap=16),  # who gives way keeps blocks if copies cost less than tokens
    "forks": TinyConfig(fork=True),  # the requests are completions of one prompt
    "forks swapped": TinyConfig(fork=True, swap=16),  # and give way, with blocks they share
    "forced": TinyConfig(),  # what grammars force is drafted, with rows that give way
    "long prompt": TinyConfig(token_budget=120),  # of more keys than one tile, beside short ones
}
SHORT_OF_BLOCKS = ("preemption", "swap", "cheaper", "forks swapped", "forced")
SWAPPED = ("swap", "forks swapped")
FORKED = ("forks", "forks swapped")
JUMP_FORWARD: dict[str, Any] = {"nodes.jump_forward.after": "bitmask"}
CHEAPER = Cheaper(block_us=1, token_us=1, start_us=2)
KEPT: tuple[CacheDType, ...] = ("int8", "auto")
"""Number formats of the caches, the target's and its drafter's."""
CONTEXT = 96
LENGTHS = (14, 10, 17, 12)


@dataclass(frozen=True)
class Cell:
    """One combination of features; `depth` is what it is compared with depth 1 at."""

    depth: int
    method: str | None
    grammar: str
    sampling: str
    situation: str
    kept: CacheDType = "auto"
    drafting: str = "full"
    rule: str = "coupled"

    def __str__(self) -> str:
        parts = (f"d{self.depth}", self.method or "none", self.grammar, self.sampling)
        decided = [each for each in (self.drafting, self.rule) if each not in ("full", "coupled")]
        return "-".join((*parts, self.situation, self.kept, *decided))

    @property
    def policies(self) -> Policies:
        chosen = Policies(drafting=DRAFTING[self.drafting], acceptance=RULES[self.rule])
        return replace(chosen, resumption=CHEAPER) if self.situation == "cheaper" else chosen


def in_turn(cell: Cell, n: int) -> bool:
    """Whether it is one of every n cells: any two features meet in some of them."""
    axes: list[tuple[Sequence[Any], Any]] = [
        *((METHODS, cell.method), (list(GRAMMARS), cell.grammar), (list(SAMPLING), cell.sampling)),
        *((list(SITUATIONS), cell.situation), (KEPT, cell.kept)),
    ]
    return sum(axis.index(value) for axis, value in axes) % n == 0


@dataclass(frozen=True)
class CellRequest:
    """One request of a cell, before it is made."""

    prompt: tuple[int, ...]
    params: SamplingParams
    bad_words: tuple[tuple[int, ...], ...] = ()
    dry_breakers: tuple[int, ...] = ()


@dataclass
class Outcome:
    """What one run of a cell came to."""

    requests: list[Request]
    preemptions: int
    prefix_hits: int
    swapped_out: int
    swapped_in: int
    forked_tokens: int


@cache
def target(kept: CacheDType) -> object:
    return rounding(tiny_pair(torch.float64, context=CONTEXT)[0], kept)


@cache
def plainly(asked: CellRequest, kept: CacheDType = "auto") -> Expected:
    """The reference's answer. Kept: many cells ask the same."""
    return expected(
        target(kept),
        asked.prompt,
        asked.params,
        bad_words=asked.bad_words,
        dry_breakers=asked.dry_breakers,
        context=CONTEXT,
    )


@cache
def other_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE with other words than `tiny_tokenizer`, and other numbers for its bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "<unk>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = "Seven sleepy sheep slept on the shore, and then the sea."
    tokenizer.train_from_iterator([text], trainer)
    wrap: Any = PreTrainedTokenizerFast
    found: PreTrainedTokenizerFast = wrap(tokenizer_object=tokenizer, eos_token="<eos>")
    return found


def speaking_otherwise(context: int | None) -> dict[Resource[Any], object]:
    """The tiny drafter in the words of `other_tokenizer`: each has the weights of its equal.

    Some words of either tokenizer are none of the other.
    """
    own, theirs = other_tokenizer(), tiny_tokenizer(VOCAB)
    size, end = len(own), own.get_vocab()["<eos>"]
    place = {each: token for token, each in enumerate(spelled(theirs, VOCAB, (EOS,)))}
    kept = torch.tensor([place.get(each, 1) for each in spelled(own, size, (end,))])
    _, drafter = tiny_pair(torch.float64, context=CONTEXT)
    sizes: dict[str, Any] = {"vocab_size": size, "max_position_embeddings": context or CONTEXT}
    other = tiny_model("llama", 0, torch.float64, **sizes, num_hidden_layers=1, eos_token_id=end)
    ends = ("model.embed_tokens.weight", "lm_head.weight")
    weights = drafter.state_dict().items()
    other.load_state_dict({name: each[kept] if name in ends else each for name, each in weights})
    return {DRAFT_MODEL: CausalLM.wrap(other, invariant=False), VOCABULARIES: (own, theirs)}


def prompts(situation: str) -> list[tuple[int, ...]]:
    """Four prompts; where the prefix cache is tested, they begin alike, and forks have one.

    Of forks that are swapped the first two have one. It is the others that give way.
    """
    draw = random.Random(5)
    shared = tuple(draw.randrange(3, VOCAB) for _ in range(13))
    found = [tuple(draw.randrange(3, VOCAB) for _ in range(length)) for length in (11, 3, 18, 7)]
    if situation == "forks":
        return found[:1] * 4
    if situation == "forks swapped":
        return [found[0], found[0], *found[2:]]
    if situation == "long prompt":
        found[0] = tuple(draw.randrange(3, VOCAB) for _ in range(70))
    return [shared + tail for tail in found] if situation == "prefix cache" else found


def asked(cell: Cell) -> list[CellRequest]:
    """The requests of a cell: as many as prompts, each with the next set of parameters."""
    grammars, settings = GRAMMARS[cell.grammar], SAMPLING[cell.sampling]
    found = []
    for index, prompt in enumerate(prompts(cell.situation)):
        plain = SamplingParams(
            max_tokens=LENGTHS[index], structured_outputs=grammars[index % len(grammars)]
        )
        setting = settings[index % len(settings)]
        params = replace(
            setting, max_tokens=plain.max_tokens, structured_outputs=plain.structured_outputs
        )
        without = plainly(CellRequest(prompt, plain), cell.kept).tokens
        if params.min_tokens and plain.structured_outputs is None:
            # A token that would end the plain output before its time.
            params = replace(params, stop_token_ids=(without[2],))
        words: tuple[tuple[int, ...], ...] = ()
        if params.bad_words:
            words = ((without[1],), tuple(without[3:5]), (without[0], 7, 9))
        breakers = (without[0],) if params.dry else ()
        found.append(CellRequest(prompt, params, words, breakers))
    return found


def just_admitted(requests: Sequence[CellRequest], k: int, shared: bool = False) -> int:
    """Blocks of four tokens that let every request begin, and no more.

    `shared`: the first two have one prompt, and its full blocks in common.
    """
    need = 0
    for each in requests:
        wanted = each.params.draft_tokens
        drafts = k if wanted is None else min(wanted, k)
        need += -(-(len(each.prompt) + 1 + 2 * drafts) // 4)
    return need - len(requests[0].prompt) // 4 if shared else need


def served_by(
    cell: Cell,
    requests: Sequence[CellRequest],
    depth: int,
    executor: str,
    policies: Policies,
    settings: Mapping[str, Any] | None,
    resources: Mapping[Resource[Any], object] | None,
    checked: bool,
) -> Engine:
    """An engine for these requests, with new states: that of an earlier cell, if built alike."""
    config = config_of(cell, requests, executor, checked)
    config = replace(config, depth=depth, policies=policies)
    changed = tuple(sorted((settings or {}).items()))
    asked = (config, cell.method == OTHER, drafter_context(cell), changed)
    return built(*asked, resources) if resources else kept_engine(*asked)


def config_of(
    cell: Cell, requests: Sequence[CellRequest], executor: str, checked: bool = True
) -> TinyConfig:
    """What a cell asks of an engine, but for its depth and policies."""
    base = MORE_SITUATIONS[cell.situation]
    method, tree, k = TREES.get(cell.method or "", (cell.method, None, 3 if cell.method else 0))
    if cell.method in MODULES:
        method, k = "mtp", 4
    if cell.situation in SHORT_OF_BLOCKS:
        base = replace(base, num_blocks=just_admitted(requests, k, cell.situation in FORKED))
    return replace(
        base,
        executor=executor,
        draft_tokens=k,
        method=cast(Method, "draft_model" if method in (None, OTHER) else method),
        modules=MODULES.get(cell.method or "", 1),
        tree=tree,
        structured=cell.grammar != "no grammar",
        context=CONTEXT,
        cache_dtype=cell.kept,
        check="strict" if checked and executor == "serial" else "off",
    )


def drafter_context(cell: Cell) -> int | None:
    """The longest text that the drafter can read; None: that of the target."""
    return 20 if cell.situation == "short drafter context" else None


def built(
    config: TinyConfig,
    speaks_otherwise: bool,
    drafter_context: int | None,
    changed: Sequence[tuple[str, Any]],
    resources: Mapping[Resource[Any], object] | None = None,
) -> Engine:
    given = {
        **(speaking_otherwise(drafter_context) if speaks_otherwise else {}),
        **(resources or {}),
    }
    return tiny_engine(
        config, drafter_context=drafter_context, settings=dict(changed), resources=given
    )


kept_engine = lru_cache(maxsize=16)(built)
"""The engines of the latest cells; neighbours in the matrix often ask for the same."""


def run(
    cell: Cell,
    requests: Sequence[CellRequest],
    *,
    depth: int,
    executor: str,
    policies: Policies | None = None,
    settings: Mapping[str, Any] | None = None,
    brought: Sequence[Sequence[int]] = (),
    resources: Mapping[Resource[Any], object] | None = None,
    checked: bool = True,
) -> Outcome:
    """Serve the cell's requests on a pipeline of that depth, with these changes to its file.

    `brought`: for each request, the tokens of its output that it comes with; none: it begins.
    `resources` that the engine is given besides. `checked`: a serial run is one in checking mode.
    """
    if cell.situation == "forced" and cell.grammar != "no grammar":
        settings = {**JUMP_FORWARD, **(settings or {})}
        resources = {TOKENIZER: tiny_tokenizer(VOCAB), **(resources or {})}
    engine = served_by(
        cell, requests, depth, executor, policies or cell.policies, settings, resources, checked
    )
    made = [
        tiny_request(
            uid,
            each.prompt,
            each.params,
            context=CONTEXT,
            bad_words=each.bad_words,
            dry_breakers=each.dry_breakers,
        )
        for uid, each in enumerate(requests)
    ]
    if cell.situation in FORKED:
        for request in made:
            request.fork_of = 0 if request.prompt_ids == made[0].prompt_ids else None
    for request, tokens in zip(made, brought, strict=False):
        request.resume(tokens)
    engine.reset()
    engine.totals = Totals()
    table = engine.new_table()
    if cell.situation == "prefix cache":
        # The others come when the first one's prompt is settled, and can find it.
        later = [fitted(engine, request) for request in made[1:]]

        def submit_the_rest(*_: object) -> None:
            while later:
                table.submit(later.pop(0))

        made[0].deliver = submit_the_rest
        table.submit(fitted(engine, made[0]))
    else:
        for request in made:
            table.submit(fitted(engine, request))
    engine.run(table)
    totals = table.totals
    return Outcome(
        made,
        table.preemptions,
        table.prefix_hits,
        totals.swapped_out,
        totals.swapped_in,
        totals.forked_tokens,
    )
