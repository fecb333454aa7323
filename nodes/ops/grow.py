"""Draft trees: passes of a drafter over one level after the other, and the choices behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ...models.attention import AttentionBatch
from ...models.paged_cache import PagedCache
from ...models.tree_rows import TreeRows
from ...policies.acceptance import Acceptance
from ...sampling.noise import Purpose, gumbel, of_window
from ..data import Inputs, Proposal, SampleRows
from ..tree import ListedTree, Tree
from .likelihoods import likelihoods
from .places import Ahead, ahead, cache_slots_of


@dataclass(frozen=True, slots=True)
class Nodes:
    """n nodes of each row's tree. Those of one pass have one depth, or each has its own."""

    ids: Tensor  # [S, n]
    states: Tensor  # [S, n, H] of their parents
    parents: Tensor  # [S, n] places of these
    masked: Tensor  # [S, n] position of each one's place, −1: not meant, as in `Ahead`
    slots: Tensor  # [S, n] of these
    bits: Tensor  # [S, n] its ancestors and itself, among `width` places
    depth: Tensor  # [S, n]
    width: int

    def and_then(self, more: Nodes) -> Nodes:
        """These, then `more`, which have ancestors among as many places or more."""
        joined = {
            each.name: torch.cat([getattr(self, each.name), getattr(more, each.name)], dim=1)
            for each in fields(self)
            if each.name != "width"
        }
        return Nodes(width=more.width, **joined)


Following = Callable[["Begun", Nodes], tuple[Tensor, Tensor]]
"""One more pass, over nodes behind those of the passes before: logits `[S, n, V]`, and their hidden
states `[S, n, H]`.
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

    def batch(self, nodes: Nodes, back: int = 0) -> AttentionBatch:
        """A pass over nodes, row by row. `back`: so many positions before, keys and all.

        A row whose text has no such positions is masked. Raises nothing of its own.
        """
        rows, n = nodes.masked.shape
        starts, slots, masked = self.positions - back, nodes.slots, nodes.masked < 0
        if back:
            masked, starts = masked | (starts < 0)[:, None], starts.clamp(min=0)
            places = (nodes.masked - back).masked_fill(masked, -1)
            slots = cache_slots_of(self.inputs.blocks_of_samples, places, self.cache.block_size)
        at = (starts[:, None] + nodes.depth).masked_fill(masked, -1)
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
                starts=starts.repeat_interleave(n, output_size=rows * n),
                bits=nodes.bits.flatten(),
                width=nodes.width,
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
        above = [shape.parents[place - 1] for place in inner]
        parents, depths, bits = (
            torch.stack([line[place] for place in inner]).expand_as(masked)
            for line in tree.branches.unbind()
        )
        logits, states = begun.following(
            begun,
            Nodes(
                ids=torch.stack([tokens[place] for place in inner], dim=1).clamp(min=0),
                states=torch.stack([known[place][1] for place in above], dim=1),
                parents=parents,
                masked=masked,
                slots=slots,
                bits=bits,
                depth=depths,
                width=width + 1,
            ),
        )
        by_place = zip(logits[..., : begun.vocab_size].unbind(1), states.unbind(1), strict=True)
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
