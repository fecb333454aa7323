"""One request at a time, in the plainest loop there is: what every pipeline must equal.

The whole model runs over the whole text for every token, with no cache; logits go through the
processors and warpers of transformers; grammar masks are the grammar library's own. Of ours there
is the keyed noise alone, which has published test vectors of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import xgrammar as xgr
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from stepweave.requests.request import SamplingParams
from stepweave.sampling.noise import Purpose, gumbel, uniform
from stepweave.structured.grammar import GrammarSpec
from stepweave.testing.engines import EOS, VOCAB
from stepweave.testing.models import tiny_tokenizer
from tests.sampling import plain_edits


@dataclass
class Expected:
    """What a request must come to: tokens, and log-probabilities `[N, V]` of the plain model."""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[Tensor] = field(default_factory=list)
    prompt_log_probs: Tensor | None = None  # [P − 1, V]: of the prompt's tokens from the second on


def expected(
    model: Any,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    bad_words: Sequence[Sequence[int]] = (),
    dry_breakers: Sequence[int] = (),
    context: int = 96,
) -> Expected:
    """Decode one request. `model` is the Hugging Face model itself."""
    found = Expected()
    room = min(params.max_tokens, context - len(prompt))
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    matcher, mask = None, xgr.allocate_token_bitmask(1, VOCAB)
    if params.grammar is not None:
        matcher = xgr.GrammarMatcher(compiled(params.grammar))
    ids = list(prompt)
    while len(found.tokens) < room:
        with torch.inference_mode():
            every = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()
        if found.prompt_log_probs is None:
            found.prompt_log_probs = every[: len(prompt) - 1].log_softmax(dim=-1)
        found.log_probs.append(every[-1].log_softmax(dim=-1))
        allowed = None
        if matcher is not None:
            matcher.fill_next_token_bitmask(mask)
            bits = mask[0, :, None] >> torch.arange(32, dtype=torch.int32) & 1
            allowed = bits.flatten()[:VOCAB].bool()
        scores = _processed(
            every[-1:], ids, len(prompt), params, bad_words, dry_breakers, stops, allowed
        )
        token = _chosen(scores, params, len(found.tokens), ids)
        ids.append(token)
        found.tokens.append(token)
        if matcher is not None:
            assert matcher.accept_token(token)
        if token in stops:
            break
    return found


def _processed(
    logits: Tensor,
    ids: Sequence[int],
    prompt: int,
    params: SamplingParams,
    bad_words: Sequence[Sequence[int]],
    dry_breakers: Sequence[int],
    stops: set[int],
    allowed: Tensor | None,
) -> Tensor:
    """Scores `[1, V]` in the order that `SamplingParams` documents."""
    so_far: Any = torch.tensor([list(ids)])
    scores: Any = logits.clone()
    if params.logit_bias:
        bias: Any = {(token,): float(value) for token, value in params.biases}
        scores = SequenceBiasLogitsProcessor(bias)(so_far, scores)
    if params.repetition_penalty != 1:
        scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(so_far, scores)
    for token in range(VOCAB):
        count = list(ids[prompt:]).count(token)
        scores[0, token] -= count * params.frequency_penalty + (count > 0) * params.presence_penalty
    if params.dry_multiplier:
        taken = plain_edits.dry(
            ids,
            params.dry_multiplier,
            params.dry_base,
            params.dry_allowed_length,
            params.dry_penalty_last_n,
            dry_breakers,
        )
        for token, penalty in taken.items():
            scores[0, token] -= penalty
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    bans: Any = LogitsProcessorList()
    if bad_words:
        bans.append(NoBadWordsLogitsProcessor([list(word) for word in bad_words]))
    if params.no_repeat_ngram_size:
        bans.append(NoRepeatNGramLogitsProcessor(params.no_repeat_ngram_size))
    if params.min_tokens and stops:
        eos: Any = sorted(stops)
        bans.append(MinNewTokensLengthLogitsProcessor(prompt, params.min_tokens, eos))
    banned = bans(so_far, scores.clone())
    chosen: Tensor = banned if banned.isfinite().any() else scores
    return chosen


def _chosen(scores: Tensor, params: SamplingParams, position: int, ids: Sequence[int]) -> int:
    if params.temperature == 0:
        return int(scores.argmax())
    warpers: Any = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(MinPLogitsWarper(params.min_p))
    warped = warpers(torch.tensor([list(ids)]), scores).log_softmax(dim=-1)
    key = torch.tensor([params.seed]), torch.tensor([position])
    if params.xtc_probability and uniform(*key, Purpose.XTC).item() < params.xtc_probability:
        warped[0, plain_edits.xtc(warped[0].exp().tolist(), params.xtc_threshold)] = -torch.inf
    noise = gumbel(*key, Purpose.TARGET, VOCAB)
    return int((warped + noise).argmax())


@cache
def compiled(grammar: GrammarSpec) -> Any:
    """The grammar, compiled by the library's own functions."""
    info = xgr.TokenizerInfo.from_huggingface(
        tiny_tokenizer(VOCAB), vocab_size=VOCAB, stop_token_ids=[EOS]
    )
    compiler = xgr.GrammarCompiler(info)
    match grammar.kind:
        case "json":
            return compiler.compile_json_schema(grammar.source, any_whitespace=False)
        case "regex":
            return compiler.compile_regex(grammar.source)
        case "choice":
            choices = " | ".join(f'"{choice}"' for choice in grammar.choices)
            return compiler.compile_grammar(f"root ::= {choices}")
        case "structural_tag":
            return compiler.compile_structural_tag(grammar.source)
        case _:
            return compiler.compile_grammar(grammar.source)
