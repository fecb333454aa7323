"""Draft trees: passes of a drafter over one level after the other, and the choices behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...models.attention import AttentionBatch
from ...models.paged_cache import PagedCache
from ...models.tree_rows import TreeRows
from ...policies.acceptance import Acceptance
from ...sampling.noise import Purpose, gumbel, of_window
from ...sampling.windows import BITS
from ..data import Inputs, Proposal, SampleRows
from ..tree import ListedTree, Tree
from .likelihoods import likelihoods
from .places import Ahead, ahead

Following = Callable[[Tensor, Tensor, AttentionBatch], tuple[Tensor, Tensor]]
"""One more pass over tokens `ids[L]`, each after hidden states `[L, H]`: logits `[L, V]`, and the
hidden states `[L, H]` of these tokens.
"""


@dataclass(frozen=True, slots=True)
class Begun:
    """What a tree grows from: a drafter's first pass over the step's tokens, and how it goes on.

    `rule`, `reach`, `input_is_ahead` and `context_length` are as of `chain`.
    """

    rule: Acceptance
    vocab_size: int
    inputs: Inputs
    logits: Tensor  # [S, V] of the root
    states: Tensor  # [S, H]
    positions: Tensor  # [S] where the first pass ended; the keys of place p go p behind
    reach: int
    cache: PagedCache
    following: Following
    input_is_ahead: int
    context_length: int

    @property
    def sample(self) -> SampleRows:
        """The rows that are drafted for."""
        assert self.inputs.sample is not None, "tokens were sampled for these rows"
        return self.inputs.sample

    def output_position(self, depth: int) -> Tensor:
        """`[S]`: that of the drafts of a depth. Raises nothing."""
        return self.positions - self.sample.prompt + (self.input_is_ahead + depth)

    def places(self, count: int, *, whole: bool) -> Ahead:
        """The first `count` places. `whole`: the host knows that all rows have room for them."""
        sample, checked = self.sample, whole and self.reach >= self.context_length
        return ahead(
            self.inputs.blocks_of_samples,
            self.positions,
            count,
            self.cache.block_size,
            None if checked and sample.whole else self.reach,
            sample.draft_limit,
        )

    def batch(
        self, masked: Tensor, slots: Tensor, bits: Tensor, depth: Tensor | int, width: int
    ) -> AttentionBatch:
        """A pass over n nodes of `depth[S, n]`: `masked[S, n]` and `slots[S, n]` as in `Ahead`.

        `bits[S, n]`: their ancestors, among `width` places. Raises nothing of its own.
        """
        rows, n = masked.shape
        at = (self.positions[:, None] + depth).expand(-1, n).masked_fill(masked < 0, -1)
        long = self.inputs.long_rows
        return AttentionBatch(
            (n,) * rows,
            self.inputs.blocks_of_samples,
            at.flatten(),
            slots.flatten(),
            self.cache,
            None if long is None else long.repeat_interleave(n, output_size=rows * n),
            tree=TreeRows(
                rows=rows,
                starts=self.positions.repeat_interleave(n, output_size=rows * n),
                bits=bits.flatten(),
                width=width,
            ),
        )


def grow(begun: Begun, tree: ListedTree) -> Proposal:
    """Draft a tree level by level; all nodes of a level that have children are one pass.

    Raises nothing of its own.
    """
    rule, sample = begun.rule, begun.sample
    width = sample.draft_width
    shape = tree.shape.first(width)
    places = begun.places(width, whole=True)
    known = {0: (begun.logits[:, : begun.vocab_size], begun.states)}
    tokens: dict[int, Tensor] = {}
    drawn: dict[int, Tensor] = {}
    for depth in range(shape.depth):
        level, at = shape.level(depth), begun.output_position(depth + 1)
        _offer(rule, sample, shape, level, at, known, tokens, drawn)
        inner = shape.level(depth + 1)
        if not inner:
            continue
        masked, slots = (
            torch.stack([each[:, place] for place in inner], dim=1)
            for each in (places.masked, places.slots)
        )
        bits = torch.stack([tree.branches[BITS, place] for place in inner]).expand_as(masked)
        ids = torch.stack([tokens[place] for place in inner], dim=1)
        states = torch.stack([known[shape.parents[place - 1]][1] for place in inner], dim=1)
        logits, states = begun.following(
            ids.clamp(min=0).flatten(),
            states.flatten(0, 1),
            begun.batch(masked, slots, bits, depth + 1, width + 1),
        )
        by_place = zip(
            logits.view(*ids.shape, -1)[..., : begun.vocab_size].unbind(1),
            states.view(*ids.shape, -1).unbind(1),
            strict=True,
        )
        known = dict(zip(inner, by_place, strict=True))
    return Proposal(
        _by_place(tokens),
        places.valid,
        _by_place(drawn) if drawn else None,
        tree.branches[:, : width + 1].expand(len(begun.positions), -1, -1),
    )


def at_once(
    rule: Acceptance,
    vocab_size: int,
    sample: SampleRows,
    guesses: Sequence[Tensor],
    positions: Tensor,
    tree: ListedTree,
) -> Proposal:
    """A tree whose nodes depend on their depth alone: the children of each are what `guesses[S, V]`
    of the next depth say is likeliest. `positions[S]` as of `proposal.at_once`.
    """
    shape = tree.shape.first(sample.draft_width)
    tokens: dict[int, Tensor] = {}
    drawn: dict[int, Tensor] = {}
    for depth, logits in enumerate(guesses):
        level = shape.level(depth)
        at = positions - sample.prompt + (depth + 2)
        known = {place: (logits[:, :vocab_size], logits) for place in level}
        _offer(rule, sample, shape, level, at, known, tokens, drawn)
    return Proposal(
        _by_place(tokens),
        None,
        _by_place(drawn) if drawn else None,
        tree.branches[:, : len(shape.parents) + 1].expand(len(positions), -1, -1),
    )


def _by_place(of: dict[int, Tensor]) -> Tensor:
    return torch.stack([of[place] for place in sorted(of)], dim=1)


def _offer(
    rule: Acceptance,
    sample: SampleRows,
    shape: Tree,
    level: Sequence[int],
    at: Tensor,
    known: dict[int, tuple[Tensor, Tensor]],
    tokens: dict[int, Tensor],
    drawn: dict[int, Tensor],
) -> None:
    """Add the children of a level's places: tokens `[S]`, and what they were drawn from `[S, V]`.

    They are the tokens of output position `at[S]`.
    """
    if not level:
        return
    most = max(len(shape.children[place]) for place in level)
    logits = torch.stack([known[place][0] for place in level], dim=1)
    chosen, drawn_from = several(rule, sample, logits, at, level, shape, most)
    for index, place in enumerate(level):
        for rank, child in enumerate(shape.children[place]):
            tokens[child] = chosen[:, index, rank]
            if drawn_from is not None:
                drawn[child] = drawn_from[:, index]


def several(
    rule: Acceptance,
    sample: SampleRows,
    logits: Tensor,
    at: Tensor,
    level: Sequence[int],
    shape: Tree,
    count: int,
) -> tuple[Tensor, Tensor | None]:
    """`count` tokens `[S, n, count]` after each of a level's n places, and what they were drawn
    from, `[S, n, V]`, of its `logits[S, n, V]`; −1 where no more may be drawn.

    `at[S]`: their output position. As `proposal.choose` takes the best of scores, with noise or
    without, this takes the best few: with noise they are draws without replacement, in order. A
    greedy row's are its likeliest tokens.
    """
    rows, n, vocab = logits.shape
    noise = None
    if rule.compares:  # with noise of their own, by their parent's place in the window
        every = torch.arange(len(shape.parents) + 1, device=logits.device)
        parent = torch.stack([every[place] for place in level]).repeat(rows)
        first = (at - shape.depths[level[0]]).repeat_interleave(n, output_size=rows * n)
        seeds = sample.seeds.repeat_interleave(n, output_size=rows * n)
        noise = gumbel(seeds, first, of_window(Purpose.DRAFT, parent), vocab).view(logits.shape)
    positions = at[:, None].expand(-1, n)
    log_probs = (
        likelihoods(sample, logits, lambda: positions, normalized=True) if rule.compares else None
    )
    scores = scored(rule, sample, logits, positions, log_probs, noise)
    best = scores.topk(count, dim=-1)
    if log_probs is None and sample.greedy:
        return best.indices, None
    return best.indices.masked_fill(best.values == -torch.inf, -1), log_probs


def scored(
    rule: Acceptance,
    sample: SampleRows,
    logits: Tensor,
    at: Tensor,
    log_probs: Tensor | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """What tokens after each place are chosen by, `[S, n, V]`, of `logits[S, n, V]`.

    The logits themselves in greedy rows, and under rules that neither couple nor compare; else
    log-probabilities, with the target's noise at output positions `at[S, n]` where drafts are
    coupled, or with this `noise[S, n, V]`. `log_probs[S, n, V]`: where they are known already.
    Raises nothing of its own.
    """
    if not (rule.compares or rule.couples) or (sample.greedy and not rule.compares):
        return logits
    if log_probs is None:
        log_probs = likelihoods(sample, logits, lambda: at, normalized=rule.compares)
    if rule.couples:
        seeds = sample.seeds[:, None].expand_as(at).flatten()
        noise = gumbel(seeds, at.flatten(), Purpose.TARGET, logits.shape[2]).view(logits.shape)
    scores = log_probs if noise is None else log_probs + noise
    greedy = (sample.temperature <= 0)[:, None, None]
    return torch.where(greedy, logits.to(scores.dtype), scores)
