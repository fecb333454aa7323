"""Draft trees that grow where the drafter is sure (EAGLE-2: Li et al. 2024, arXiv:2406.16858).

In each pass the likeliest nodes are expanded, by the probability of the whole way to them; of all
nodes found, the likeliest are offered. No shape depends on what is likely: a pass has so many
nodes, a tree so many, and which they are is data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ..data import Proposal
from ..tree import GrownTree
from .grow import Begun, Nodes, scored

_ROOT = -1


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Nodes of each row, n of them."""

    tokens: Tensor  # [S, n], −1 where there is none
    sure: Tensor  # [S, n] log-probability of the way to each
    depth: Tensor  # [S, n]
    by: Tensor  # [S, n] which of those expanded is its parent, 0 the root
    parent: Tensor  # [S, n] which of those found it is

    def and_then(self, more: _Nodes) -> _Nodes:
        """These, then `more`."""
        pairs = zip(_parts(self), _parts(more), strict=True)
        return _Nodes(*(torch.cat(pair, dim=1) for pair in pairs))

    def at(self, index: Tensor) -> _Nodes:
        """Those of `index[S, m]`."""
        return _Nodes(*(each.gather(1, index) for each in _parts(self)))


def _parts(nodes: _Nodes) -> tuple[Tensor, ...]:
    return nodes.tokens, nodes.sure, nodes.depth, nodes.by, nodes.parent


def expand(begun: Begun, tree: GrownTree) -> Proposal:
    """Draft trees that grow as `tree` says.

    Where the rule compares distributions, drafts are the likeliest tokens and not drawn: a tree
    whose shape depends on what was drawn would not keep the target's distribution. Raises nothing
    of its own.
    """
    rule, sample, positions = begun.rule, begun.sample, begun.positions
    rows, width, growth = len(positions), sample.draft_width, tree.growth
    places = begun.places(tree.most, whole=width == tree.most)
    root = torch.zeros_like(positions[:, None])
    # Of the nodes expanded, the root first: their hidden states, and their ancestors among them.
    states, bits = begun.states[:, None], torch.ones_like(root)
    logits = begun.logits[:, None, : begun.vocab_size]
    newest = _Nodes(root, root.to(torch.float32), root, root, root + _ROOT)
    found = _children(begun, newest, root, newest.parent, logits, growth.each)
    waiting = found.sure  # what is left to be expanded; the rest is at −inf
    for start in range(1, growth.least, growth.width):
        here = slice(start, start + growth.width)
        best = waiting.sort(dim=1, descending=True, stable=True).indices[:, : growth.width]
        newest = found.at(best)
        own = torch.arange(start, here.stop, device=root.device).expand(rows, -1)
        ancestors = bits.gather(1, newest.by) | (torch.ones_like(own) << own)
        masked = places.masked[:, here]
        entering = states.gather(1, newest.by[..., None].expand(-1, -1, states.shape[2]))
        logits, leaving = begun.following(
            begun,
            Nodes(
                ids=newest.tokens.clamp(min=0),
                states=entering,
                parents=newest.by,
                masked=masked,
                slots=places.slots[:, here],
                bits=ancestors,
                depth=newest.depth,
                width=here.stop,
            ),
        )
        states = torch.cat([states, leaving], dim=1)
        bits = torch.cat([bits, ancestors], dim=1)
        # What has no place, or was expanded before, has no children of any account.
        sure = waiting.gather(1, best).masked_fill(masked < 0, -torch.inf)
        logits = logits[..., : begun.vocab_size]
        newest = replace(newest, sure=sure)
        more = _children(begun, newest, own, best, logits, growth.each)
        waiting = waiting.scatter(1, best, -torch.inf)
        if growth.among == "level":
            waiting = torch.full_like(waiting, -torch.inf)
        waiting = torch.cat([waiting, more.sure], dim=1)
        found = found.and_then(more)
    depth = growth.depth
    return _offered(found, depth, width, begun.vocab_size if rule.compares else None, places.valid)


def _children(
    begun: Begun,
    nodes: _Nodes,
    own: Tensor,
    index: Tensor,
    logits: Tensor,
    count: int,
) -> _Nodes:
    """`count` children of each of the n `nodes`, by their `logits[S, n, V]`.

    The nodes are `own[S, n]` of those expanded, and `index[S, n]` of those found.
    """
    depth = nodes.depth + 1
    at = begun.output_position(0)[:, None] + depth
    scores = scored(begun.rule, begun.sample, logits, at)
    best = scores.topk(count, dim=-1)
    likely = (best.values - scores.logsumexp(dim=-1, keepdim=True)).to(torch.float32)
    none = best.values == -torch.inf
    sure = nodes.sure[..., None] + likely.masked_fill(none, -torch.inf)

    def each(of_node: Tensor) -> Tensor:
        return of_node[..., None].expand_as(sure).flatten(1)

    tokens = best.indices.masked_fill(none, -1)
    return _Nodes(tokens.flatten(1), sure.flatten(1), each(depth), each(own), each(index))


def _offered(
    found: _Nodes, depth: int, width: int, one_of: int | None, valid: Tensor | None
) -> Proposal:
    """The `width` likeliest of all nodes, parents before their children; none is below `depth`.

    `one_of`: the vocabulary, where it is said what they were drawn from: nothing else.
    """
    tokens, sure, rows = found.tokens, found.sure, len(found.tokens)
    # No way is likelier than its beginning, and where both are equal the beginning is found first.
    best = sure.sort(dim=1, descending=True, stable=True).indices[:, :width]
    place = torch.arange(1, width + 1, device=best.device).expand(rows, -1)
    placed = torch.zeros_like(tokens).scatter(1, best, place)
    parents = found.parent.gather(1, best)
    parents = torch.where(parents == _ROOT, 0, placed.gather(1, parents.clamp(min=0)))
    parents = F.pad(parents, (1, 0))
    own = torch.ones_like(parents) << torch.arange(width + 1, device=best.device)
    bits, depths = own, F.pad(found.depth.gather(1, best), (1, 0))
    for _ in range(depth):
        bits = own | bits.gather(1, parents)
    # What could not be expanded has children of no account.
    drafts = tokens.gather(1, best).masked_fill(sure.gather(1, best) == -torch.inf, -1)
    sole = None
    if one_of is not None:
        sole = sure.new_full((rows, width, one_of), -torch.inf)
        sole.scatter_(2, drafts.clamp(min=0)[..., None], 0.0)
    return Proposal(drafts, valid, sole, torch.stack([parents, depths, bits], dim=1))
