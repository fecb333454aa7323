"""A drafter with another vocabulary drafts the tokens that both have, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.models.attention import AttentionBatch
from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import ModelError, UnsupportedModel
from stepweave.models.fitting import fit_drafter
from stepweave.models.translated import TranslatedLM
from stepweave.nodes.draft_model import SPEAKING_MODEL
from stepweave.nodes.ops.vocabularies import END, spelled
from stepweave.policies.acceptance import Rejection
from stepweave.policies.chosen import Policies
from stepweave.requests.params import SamplingParams
from stepweave.serving.engine import Engine
from stepweave.testing.engines import (
    EOS,
    VOCAB,
    TinyConfig,
    serve,
    tiny_engine,
    tiny_pair,
    tiny_requests,
)
from stepweave.testing.models import tiny_model, tiny_tokenizer
from tests.models.families import built, tiny_config

NAMES = [f"token {number}".encode() for number in range(VOCAB)]
"""What the tokens of the tiny target spell here."""
BASE = TinyConfig(draft_tokens=3)
ASKED = [
    SamplingParams(max_tokens=20),
    SamplingParams(max_tokens=15, temperature=0.8, seed=3, top_k=30),
    SamplingParams(max_tokens=11),
]


def in_other_words(kept: Sequence[int]) -> CausalLM:
    """The tiny drafter with the tokens of `kept` alone, in that order."""
    _, drafter = tiny_pair(torch.float64)
    config: Any = drafter.config
    sizes = {"vocab_size": len(kept), "max_position_embeddings": config.max_position_embeddings}
    other = tiny_model("llama", 0, torch.float64, **sizes, num_hidden_layers=1)
    index = torch.tensor(kept)
    weights = {
        name: each[index] if name in ("model.embed_tokens.weight", "lm_head.weight") else each
        for name, each in drafter.state_dict().items()
    }
    other.load_state_dict(weights)
    return CausalLM.wrap(other, invariant=False)


def engine_with(kept: Sequence[int], config: TinyConfig = BASE) -> Engine:
    speaking = TranslatedLM.of(in_other_words(kept), [NAMES[token] for token in kept], NAMES)
    return tiny_engine(config, resources={SPEAKING_MODEL: speaking})


def outcome(engine: Engine) -> tuple[list[list[int]], list[tuple[int, int]]]:
    requests = tiny_requests(ASKED)
    tokens = serve(engine, requests)
    assert [request.error for request in requests] == [None] * len(requests)
    return tokens, [(request.drafted, request.accepted) for request in requests]


def shuffled() -> list[int]:
    return [
        int(token) for token in torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))
    ]


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_the_same_tokens_by_other_numbers_draft_the_same(rule: str) -> None:
    policies = Policies(acceptance=Rejection()) if rule == "rejection" else Policies()
    config = replace(BASE, policies=policies)
    assert outcome(engine_with(shuffled(), config)) == outcome(tiny_engine(config))


def test_tokens_that_are_not_common_are_not_drafted_and_no_token_changes() -> None:
    kept = [token for token in shuffled() if token % 3]
    plain, _ = outcome(tiny_engine(TinyConfig()))
    _, whole = outcome(tiny_engine(BASE))
    found = set()
    for depth, executor in ((1, "serial"), (2, "threads"), (3, "threads")):
        tokens, counts = outcome(engine_with(kept, replace(BASE, depth=depth, executor=executor)))
        assert tokens == plain
        found.add(tuple(counts))
    assert len(found) == 1
    accepted = sum(accepted for _, accepted in found.pop())
    assert 0 < accepted < sum(accepted for _, accepted in whole)


def rows(tokens: int, model: TranslatedLM) -> AttentionBatch:
    where = torch.arange(tokens)
    cache = model.new_cache(3, 4)
    return AttentionBatch((tokens,), torch.tensor([[1, 2]]), where, where + 4, cache)


def logits_of(model: TranslatedLM, ids: list[int]) -> Tensor:
    return model.forward(torch.tensor(ids), rows(len(ids), model))[0]


def test_logits_are_those_of_the_common_tokens_and_minus_infinity_elsewhere() -> None:
    kept = [5, 9, 4, 300]
    own = in_other_words(kept)
    model = TranslatedLM.of(
        own, [b"five", b"nine", b"mine", b"\xff"], [*NAMES[:-2], b"nine", b"five"]
    )
    assert model.vocab_size == VOCAB
    found = logits_of(model, [VOCAB - 1, VOCAB - 2])
    alone = own.forward(torch.tensor([0, 1]), rows(2, model))[0]
    assert torch.equal(found[:, VOCAB - 1], alone[:, 0])
    assert torch.equal(found[:, VOCAB - 2], alone[:, 1])
    assert bool((found[:, : VOCAB - 2] == -torch.inf).all())
    assert model.notes[-1] == "drafts 2 of 320 tokens: those that both vocabularies have"


def test_a_token_that_is_not_common_is_read_as_its_last_part() -> None:
    own = in_other_words([0, 1, 2, 3])
    model = TranslatedLM.of(own, [b"a", b"b", b"ab", END], [b"xab", b"b", b"zz", END])
    wanted = own.forward(torch.tensor([2, 1, 0, 3]), rows(4, model))[0]
    found = logits_of(model, [0, 1, 2, 3])
    assert torch.equal(found[:, 1], wanted[:, 1])
    assert torch.equal(found[:, 3], wanted[:, 3])


def test_vocabularies_with_hardly_a_token_in_common_are_refused() -> None:
    own = in_other_words(range(40))
    others = [f"other {number}".encode() for number in range(40)]
    with pytest.raises(ModelError, match="have only 1 tokens in common, of 40 and 40"):
        TranslatedLM.of(own, [*others[:39], b"same"], [*NAMES[:39], b"same"])


def test_what_tokens_spell_is_read_off_the_tokenizer() -> None:
    tokenizer = tiny_tokenizer(VOCAB)
    found = spelled(tokenizer, VOCAB + 3, [0])
    assert found[0] == END
    assert found[1] == "<pad>"
    assert found[-3:] == [b"", b"", b""], "tokens that the tokenizer does not have"
    word = tokenizer(" the")["input_ids"]
    assert b"".join(bytes(found[token]) for token in word) == b" the"


def test_a_vocabulary_without_an_end_of_a_text_spells_the_rest_alike() -> None:
    tokenizer = tiny_tokenizer()
    size = len(tokenizer)
    ended, endless = (spelled(tokenizer, size, ends) for ends in ((EOS,), ()))
    assert ended[EOS] == END
    assert END not in endless
    assert ended[:EOS] + ended[EOS + 1 :] == endless[:EOS] + endless[EOS + 1 :]


def test_a_drafter_whose_layers_keep_states_is_refused_in_another_vocabulary_too() -> None:
    config = tiny_config("lfm2")
    assert config is not None
    model = CausalLM.wrap(built(config, torch.float32), invariant=False)
    names = [f"token {number}".encode() for number in range(model.vocab_size)]
    target = CausalLM.wrap(tiny_model("llama", vocab_size=model.vocab_size), invariant=False)
    for drafter in (model, TranslatedLM.of(model, names, names)):
        with pytest.raises(UnsupportedModel, match="keep states"):
            fit_drafter(drafter, target)
