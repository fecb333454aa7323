"""Texts by drafts of every origin are distributed as the target's, and a wrong rule would show.

The target and its drafter are tables: what comes after a token. Drafts are made and published by
the code of the nodes, judged by the rules, and the step goes on from what was settled, for many
texts side by side. What came out is compared with the chances of whole texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from math import log
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stepweave.models.attention import AttentionBatch
from stepweave.models.translated import TranslatedLM
from stepweave.nodes.data import DraftTable, Proposal, Sampled
from stepweave.nodes.ops import expand as growing
from stepweave.nodes.ops import forcing
from stepweave.nodes.ops import proposal as proposing
from stepweave.nodes.ops.draft_eagle import one_head
from stepweave.nodes.ops.expand import expand
from stepweave.nodes.ops.grow import Begun, grow
from stepweave.nodes.ops.proposal import chain, published
from stepweave.nodes.tree import GrownTree, Growth, ListedTree, Tree
from stepweave.policies.acceptance import Acceptance, Block, Rejection
from stepweave.sampling.noise import Purpose, gumbel, of_window
from stepweave.sampling.windows import PARENT, Windows
from tests.policies.test_acceptance import chi_square, distributions, limit

MANY, SOME, FEW = 100_000, 25_000, 8_000
"""Texts of a test, at night and by day, and of one that looks for a fault."""
LENGTH, PROMPT, BLOCK = 4, 5, 4
TEMPERATURE, MIN_P = 0.8, 0.05
RULES: dict[str, Acceptance] = {"rejection": Rejection(), "block": Block()}

X, Y, A, B, AB, C, BC = range(7)
VOCAB = 7
START = VOCAB
"""What stands before a text, in the tables."""
SPELLED = ("x", "y", "a", "b", "ab", "c", "bc")
MAY_FOLLOW = {X: "abc", Y: "abc", A: "bc", B: "c", AB: "c", C: "xy", BC: "xy", START: "xy"}
"""The grammar: x or y, then abc, and again. After abc there is a choice."""
WRITTEN = {"abc": (A, B, C), "bc": (B, C), "c": (C,), "xy": ()}
"""How its tokenizer cuts what is forced: abc in three, where the target may say ab, or bc."""

Draft = Callable[[Acceptance, Any, Tensor, Tensor], Proposal | None]
"""Drafts for a rule, with a step's inputs: after `last[S]` tokens, from output positions `done[S]`
on."""


def tables(seed: int, *, grammar: bool) -> Tensor:
    """`[V + 1, V]`: log-probabilities of the next token, after each and at the start."""
    if not grammar:
        return distributions(VOCAB + 1, VOCAB, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(VOCAB + 1, VOCAB, generator=draw)
    for token, text in MAY_FOLLOW.items():
        starts = tuple(text) if text == "xy" else (text,)
        for next_token, spelled in enumerate(SPELLED):
            fits = any(each.startswith(spelled) for each in starts)
            logits[token, next_token] += 0.0 if fits else -torch.inf
    return logits.log_softmax(dim=-1)


@cache
def forced_after() -> Tensor:
    """`[V + 1, L]`: what must come after each token, −1 behind it."""
    found = torch.full((VOCAB + 1, 3), -1)
    for token, text in MAY_FOLLOW.items():
        tokens = WRITTEN[text]
        found[token, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    return found


def sampling(done: Tensor, seeds: Tensor, k: int) -> Any:
    """The inputs of a step all of whose rows sample."""
    rows = len(done)
    sample = SimpleNamespace(
        request_slot=torch.arange(rows),
        window_start=PROMPT + done - 1,
        draft_width=k,
        draft_limit=torch.full((rows,), k),
        prompt=torch.full((rows,), PROMPT),
        seeds=seeds,
        temperature=torch.full((rows,), TEMPERATURE, dtype=torch.float64),
        top_k=torch.zeros(rows, dtype=torch.int64),
        top_p=torch.ones(rows, dtype=torch.float64),
        min_p=torch.full((rows,), MIN_P, dtype=torch.float64),
        any_top_k=False,
        any_top_p=False,
        xtc=None,
        greedy=False,
        whole=False,
        tags=torch.zeros(rows, 2, dtype=torch.int64),
    )
    blocks = torch.arange(1, 13).expand(rows, -1)
    return SimpleNamespace(sample=sample, blocks_of_samples=blocks, long_rows=None)


CACHE: Any = SimpleNamespace(block_size=BLOCK)


@dataclass(frozen=True)
class Case:
    """Where drafts come from, how many at most, and what the rule is told of them.

    `draws`: the drafter may draw them; `forces`: a grammar does, too.
    """

    drafts: Draft
    k: int
    draws: bool = True
    forces: bool = False
    tree: bool = False

    @property
    def target(self) -> Tensor:
        return tables(31, grammar=self.forces)


Q = tables(47, grammar=False) + 0.5 * tables(31, grammar=True).clamp(min=-6)
"""`[V + 1, V]`: the logits of the drafter, which knows the target a little."""


def one_by_one(rule: Acceptance, inputs: Any, last: Tensor, done: Tensor, k: int = 3) -> Proposal:
    """Drafts of a small model."""

    def following(tokens: Tensor, batch: AttentionBatch) -> Tensor:
        return Q[tokens]

    at = PROMPT + done - 1
    return chain(rule, VOCAB, inputs, Q[last], at, 48, CACHE, following, input_is_ahead=0)


def begun(rule: Acceptance, inputs: Any, last: Tensor, done: Tensor) -> Begun:
    """Where a tree begins, of a head that reads a token ahead."""

    def following(ids: Tensor, states: Tensor, batch: AttentionBatch) -> tuple[Tensor, Tensor]:
        return Q[ids], states

    at, states = PROMPT + done - 2, torch.zeros(len(last), 1)
    by_head = one_head(following)
    return Begun(rule, VOCAB, inputs, Q[last], states, at, 48, CACHE, by_head, 1, 48)


LISTED = Tree.of([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])
GROWTHS = {
    "level": GrownTree(Growth(width=2, depth=3, children=3), 7),
    "all": GrownTree(Growth(width=1, depth=4, children=3, among="all"), 7),
    "wide": GrownTree(Growth(width=3, depth=2, children=4), 9),
}


def listed(rule: Acceptance, inputs: Any, last: Tensor, done: Tensor) -> Proposal:
    return grow(begun(rule, inputs, last, done), ListedTree(LISTED, LISTED.branches()))


def grown(tree: GrownTree, rule: Acceptance, inputs: Any, last: Tensor, done: Tensor) -> Proposal:
    return expand(begun(rule, inputs, last, done), tree)


def nothing(rule: Acceptance, inputs: Any, last: Tensor, done: Tensor) -> None:
    return None


OWN = ("y", "<s>", "ab", "x", "c", "zz", "b")
"""What the tokens of another vocabulary spell: of the target's it lacks a and bc."""
OTHER_Q = distributions(len(OWN), len(OWN), seed=53)
COMMON = [(OWN.index(each), SPELLED.index(each)) for each in SPELLED if each in OWN]


@cache
def speaking() -> TranslatedLM:
    """A small model with that vocabulary, in the target's."""

    def forward(
        ids: Tensor, batch: Any, rows: Any = None, pieces: None = None
    ) -> tuple[Tensor, Tensor]:
        return OTHER_Q[ids], ids[:, None]

    told = {"rope_switch": None, "keeps_states": False, "notes": ()}
    model: Any = SimpleNamespace(name="small", device=torch.device("cpu"), forward=forward, **told)
    return TranslatedLM.of(model, [each.encode() for each in OWN], [s.encode() for s in SPELLED])


def in_other_words(rule: Acceptance, inputs: Any, last: Tensor, done: Tensor) -> Proposal:
    model, at = speaking(), PROMPT + done - 1

    def following(tokens: Tensor, batch: AttentionBatch) -> Tensor:
        return model.forward(tokens, batch)[0]

    begins = model.forward(last.clamp(max=VOCAB - 1), None)[0]  # type: ignore[arg-type]
    return chain(rule, VOCAB, inputs, begins, at, 48, CACHE, following, input_is_ahead=0)


CASES: dict[str, Case] = {
    "forced, and drafts behind": Case(one_by_one, 3, forces=True),
    "forced alone": Case(nothing, 3, draws=False, forces=True),
    "forced alone, of who may draw": Case(nothing, 3, forces=True),
    "forced in a tree": Case(listed, len(LISTED.parents), forces=True, tree=True),
    "other vocabulary": Case(in_other_words, 3),
    **{
        f"grown {name}": Case(partial(grown, each), each.most, tree=True)
        for name, each in GROWTHS.items()
    },
}


def written(case: Case, rule: Acceptance, rows: int) -> tuple[Tensor, float]:
    """Texts `[rows, LENGTH]`, by one step after the other; which part of the drafts was kept."""
    k, target = case.k, case.target
    seeds, each = torch.arange(rows) * 7919 + 13, torch.arange(rows)
    done, window = torch.zeros(rows, dtype=torch.int64), torch.full((rows, 1), START)
    texts = torch.full((rows, LENGTH + k + 2), -1)
    table = DraftTable.empty(rows, k, tree=case.tree)
    probs = torch.zeros(rows, k, VOCAB) if case.draws else None
    drafts = torch.zeros(rows, 0, dtype=torch.int64)
    branches = None
    kept = judged = 0
    while int(done.min()) < LENGTH:
        width = window.shape[1]
        verified = rule.verify(
            Windows(
                target[window.clamp(min=0)],
                drafts,
                torch.full((rows,), width - 1),
                seeds,
                done,
                torch.zeros(rows, dtype=torch.bool),
                None if probs is None else probs[:, : width - 1],
                branches=branches,
            )
        )
        tokens, counts = verified.tokens, verified.counts
        live = done < LENGTH
        kept += int((counts[live] - 1).sum())
        judged += int((drafts[live] >= 0).sum())
        at = torch.arange(width)
        real = (at < counts[:, None]) & live[:, None]
        texts.scatter_(1, torch.where(real, done[:, None] + at, LENGTH + k + 1), tokens)
        done = torch.where(live, done + counts, done)
        last = tokens.gather(1, counts[:, None] - 1)[:, 0]
        inputs = sampling(done, seeds, k)
        table = published(
            inputs,
            table,
            probs,
            partial(case.drafts, rule, inputs, last, done),
            forced=forced_after()[window.clamp(min=0)] if case.forces else None,
            sampled=Sampled(tokens, counts, counts - 1, paths=verified.paths),
        )
        drafts, branches = table.tokens[each], table.branches
        window = F.pad(drafts, (1, 0))
        window[:, 0] = last
    return texts[:, :LENGTH], kept / judged


def chances(target: Tensor) -> Tensor:
    """`[V ^ LENGTH]`, of all texts."""
    after = target[:VOCAB].double().exp()
    found = target[START].double().exp()
    for _ in range(LENGTH - 1):
        found = (found.view(-1, VOCAB)[..., None] * after).flatten()
    return found


def statistic(case: Case, rule: Acceptance, rows: int) -> tuple[float, float]:
    """Chi-square of the texts, as a part of what about 1 in 10 000 exceeds; the part of the drafts
    that was kept.

    A text that the target cannot write is an error.
    """
    texts, kept = written(case, rule, rows)
    expected = rows * chances(case.target)
    place = torch.tensor([VOCAB**each for each in reversed(range(LENGTH))])
    counts = torch.bincount((texts * place).sum(dim=1), minlength=VOCAB**LENGTH)
    return chi_square(counts, expected) / limit(int((expected >= 8).sum()) + 1), kept


def rules_of(name: str) -> list[str]:
    """Those that judge such drafts."""
    return ["rejection"] if CASES[name].tree else [*RULES]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [SOME, pytest.param(MANY, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("name", "rule"), [(name, rule) for name in CASES for rule in rules_of(name)]
)
def test_texts_follow_the_target(name: str, rule: str, rows: int) -> None:
    apart, kept = statistic(CASES[name], RULES[rule], rows)
    assert 0.02 < kept < 0.98, "drafts are kept and refused"
    assert apart < 1


def test_where_earlier_drafts_were_drawn_one_that_was_not_is_certain() -> None:
    rows, k = 3, 2
    probs = torch.full((rows, k, VOCAB), VOCAB**-1.0).log()
    inputs = sampling(torch.ones(rows, dtype=torch.int64), torch.arange(rows), k)
    tokens = torch.tensor([[A, B], [C, -1], [X, Y]])
    offered = Proposal(tokens, torch.tensor([2, 1, 2]))
    table = published(inputs, DraftTable.empty(rows, k), probs, lambda: offered)
    assert torch.equal(table.tokens, tokens)
    assert torch.equal(probs.exp()[tokens >= 0], F.one_hot(tokens[tokens >= 0], VOCAB).float())


# --- wrong rules, which the same test finds

Wrong = Callable[[Case, pytest.MonkeyPatch], Case]
"""The case with a fault: in its proposals, in what judges them, or in the code."""


def said_otherwise(case: Case, chances: Callable[[Tensor, Proposal], Tensor]) -> Case:
    """The case with proposals that give other `chances(last, proposal)`, `[S, n, V]`."""

    def drafts(rule: Acceptance, inputs: Any, last: Tensor, done: Tensor) -> Proposal | None:
        proposal = case.drafts(rule, inputs, last, done)
        assert proposal is not None
        return replace(proposal, log_probs=chances(last, proposal))

    return replace(case, drafts=drafts)


def before_each(last: Tensor, proposal: Proposal) -> Tensor:
    """`[S, n]`: the token before each draft."""
    window = torch.cat([last[:, None], proposal.tokens.clamp(min=0)], dim=1)
    if proposal.branches is None:
        return window[:, :-1]
    return window.gather(1, proposal.branches[:, PARENT, 1 : window.shape[1]])


def drawn_from(last: Tensor, proposal: Proposal) -> Tensor:
    """What the drafter draws from."""
    found = Q[before_each(last, proposal)].div(TEMPERATURE).log_softmax(dim=-1)
    rare = found < found.amax(dim=-1, keepdim=True) + log(MIN_P)
    return found.masked_fill(rare, -torch.inf).log_softmax(dim=-1)


def the_likeliest_were_drawn(case: Case, patch: pytest.MonkeyPatch) -> Case:
    return said_otherwise(case, drawn_from)


def a_tree_grows_by_what_was_drawn(case: Case, patch: pytest.MonkeyPatch) -> Case:
    """Each node's children are draws without replacement, and it is said from what."""
    right = growing._children

    def children(given: Begun, nodes: Any, own: Any, index: Any, logits: Tensor, count: int) -> Any:
        n, vocab = logits.shape[1:]
        purpose = of_window(Purpose.DRAFT, nodes.depth * 50 + nodes.tokens.clamp(min=0)).flatten()
        seeds = given.sample.seeds.repeat_interleave(n)
        noise = gumbel(seeds, given.output_position(1).repeat_interleave(n), purpose, vocab)
        return right(
            given, nodes, own, index, logits + TEMPERATURE * noise.view(logits.shape), count
        )

    patch.setattr(growing, "_children", children)
    return said_otherwise(case, drawn_from)


def chances_are_among_all_own_tokens(case: Case, patch: pytest.MonkeyPatch) -> Case:
    own, common = (torch.tensor(each) for each in zip(*COMMON, strict=True))

    def chances(last: Tensor, proposal: Proposal) -> Tensor:
        reads = speaking()._reads[before_each(last, proposal)]
        alone = OTHER_Q[reads].div(TEMPERATURE).log_softmax(dim=-1)[..., own]
        every = torch.full((*alone.shape[:2], VOCAB), -torch.inf)
        return every.index_copy(2, common, alone)

    return said_otherwise(case, chances)


def what_is_forced_was_drawn(case: Case, patch: pytest.MonkeyPatch) -> Case:
    """It has the chance that it had with the drafter."""
    right = forcing.with_forced

    def with_forced(proposal: Proposal | None, *given: Any, **how: Any) -> Proposal:
        found = right(proposal, *given, **how)
        return found if proposal is None else replace(found, log_probs=proposal.log_probs)

    patch.setattr(proposing, "with_forced", with_forced)
    return case


def what_is_forced_has_an_even_chance(case: Case, patch: pytest.MonkeyPatch) -> Case:
    right = forcing.with_forced

    def with_forced(*given: Any, **how: Any) -> Proposal:
        found = right(*given, **how)
        even = torch.full((*found.tokens.shape, VOCAB), VOCAB**-1.0).log()
        return replace(found, log_probs=even)

    patch.setattr(proposing, "with_forced", with_forced)
    return case


WRONG: dict[str, tuple[Wrong, ...]] = {
    "forced, and drafts behind": (what_is_forced_was_drawn,),
    "forced alone, of who may draw": (what_is_forced_has_an_even_chance,),
    "forced in a tree": (what_is_forced_was_drawn,),
    "other vocabulary": (chances_are_among_all_own_tokens,),
    **dict.fromkeys(
        [f"grown {name}" for name in GROWTHS],
        (the_likeliest_were_drawn, a_tree_grows_by_what_was_drawn),
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "rule", "wrong"),
    [(name, rule, each) for name in WRONG for rule in rules_of(name) for each in WRONG[name]],
)
def test_a_wrong_chance_of_a_draft_would_show(
    name: str, rule: str, wrong: Wrong, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart, _ = statistic(wrong(CASES[name], monkeypatch), RULES[rule], FEW)
    assert apart > 1.5
