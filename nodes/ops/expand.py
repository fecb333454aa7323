"""Draft trees that grow where the drafter is sure (EAGLE-2: Li et al. 2024, arXiv:2406.16858).

On each level the likeliest nodes are expanded, by the probability of the whole way to them; of all
nodes found, the likeliest are offered. No shape depends on what is likely: a level has so many
nodes, a tree so many, and which they are is data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ...policies.acceptance import Acceptance
from ..data import Proposal, SampleRows
from ..tree import GrownTree
from .grow import Begun, scored

_ROOT = -1


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Nodes of one level of each row, n of them; a *pass place* p is p keys behind the root's."""

    tokens: Tensor  # [S, n], −1 where there is none
    sure: Tensor  # [S, n] log-probability of the way to each
    parent: Tensor  # [S, n] which of all nodes found is its parent
    depth: int


def expand(begun: Begun, tree: GrownTree) -> Proposal:
    """Draft trees that grow as `tree` says.

    Where the rule compares distributions, drafts are the likeliest tokens and not drawn: a tree
    whose shape depends on what was drawn would not keep the target's distribution. Raises nothing
    of its own.
    """
    rule, sample, positions = begun.rule, begun.sample, begun.positions
    rows, width, growth = len(positions), sample.draft_width, tree.growth
    places = begun.places(tree.most, whole=width == tree.most)
    logits, states = begun.logits[:, None, : begun.vocab_size], begun.states[:, None]
    sure = logits.new_zeros(rows, 1, dtype=torch.float32)
    own = torch.full_like(positions[:, None], _ROOT)  # which of all nodes found each one is
    bits = torch.ones_like(own)
    found: list[_Nodes] = []
    for depth in range(1, growth.depth + 1):
        at = begun.output_position(depth)
        tokens, likely = _likeliest(rule, sample, logits, at, growth.width)
        level = _Nodes(
            tokens.flatten(1),
            (sure[..., None] + likely).flatten(1),
            own.repeat_interleave(growth.width, dim=1),
            depth,
        )
        behind = sum(nodes.tokens.shape[1] for nodes in found)
        found.append(level)
        if depth == growth.depth:
            break
        best = level.sure.sort(dim=1, descending=True, stable=True).indices[:, : growth.width]
        by = best // growth.width  # which of the nodes expanded before is its parent
        start = 1 + (depth - 1) * growth.width
        here = slice(start, start + growth.width)
        place = torch.arange(start, start + growth.width, device=bits.device)
        bits = bits.gather(1, by) | (torch.ones_like(place) << place)
        own, sure = best + behind, level.sure.gather(1, best)
        batch = begun.batch(places.masked[:, here], places.slots[:, here], bits, depth, here.stop)
        sure = sure.masked_fill(places.masked[:, here] < 0, -torch.inf)  # it cannot be expanded
        entering = states.gather(1, by[..., None].expand(-1, -1, states.shape[2]))
        ids = level.tokens.gather(1, best).clamp(min=0)
        logits, states = begun.following(ids.flatten(), entering.flatten(0, 1), batch)
        logits = logits.view(rows, growth.width, -1)[..., : begun.vocab_size]
        states = states.view(rows, growth.width, -1)
    return _offered(found, width, begun.vocab_size if rule.compares else None, places.valid)


def _likeliest(
    rule: Acceptance, sample: SampleRows, logits: Tensor, at: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """`count` tokens after each node, `[S, n, count]`, and their log-probabilities."""
    scores = scored(rule, sample, logits, at)
    best = scores.topk(count, dim=-1)
    likely = (best.values - scores.logsumexp(dim=-1, keepdim=True)).to(torch.float32)
    none = best.values == -torch.inf
    return best.indices.masked_fill(none, -1), likely.masked_fill(none, -torch.inf)


def _offered(found: list[_Nodes], width: int, one_of: int | None, valid: Tensor | None) -> Proposal:
    """The `width` likeliest of all nodes, parents before their children.

    `one_of`: the vocabulary, where it is said what they were drawn from: nothing else.
    """
    tokens = torch.cat([nodes.tokens for nodes in found], dim=1)
    sure = torch.cat([nodes.sure for nodes in found], dim=1)
    parent = torch.cat([nodes.parent for nodes in found], dim=1)
    rows = len(tokens)
    # No way is likelier than its beginning, and where both are equal the beginning is found first.
    best = sure.sort(dim=1, descending=True, stable=True).indices[:, :width]
    place = torch.arange(1, width + 1, device=best.device).expand(rows, -1)
    placed = torch.zeros_like(tokens).scatter(1, best, place)
    parents = parent.gather(1, best)
    parents = torch.where(parents == _ROOT, 0, placed.gather(1, parents.clamp(min=0)))
    parents = F.pad(parents, (1, 0))
    own = torch.ones_like(parents) << torch.arange(width + 1, device=best.device)
    bits, depths = own, torch.zeros_like(parents)
    for _ in found:
        bits = own | bits.gather(1, parents)
        depths = (depths.gather(1, parents) + 1).index_fill(1, parents.new_zeros(1), 0)
    # What could not be expanded has children of no account.
    drafts = tokens.gather(1, best).masked_fill(sure.gather(1, best) == -torch.inf, -1)
    sole = None
    if one_of is not None:
        sole = sure.new_full((rows, width, one_of), -torch.inf)
        sole.scatter_(2, drafts.clamp(min=0)[..., None], 0.0)
    return Proposal(drafts, valid, sole, torch.stack([parents, depths, bits], dim=1))
