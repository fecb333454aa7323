"""Draft trees: which of their paths a rule follows, and the tokens along it.

A window's place 0 is the row's last token, its places 1 … k are drafts, each behind its parent. A
tensor of *branches* `[R, 3, W]` has a line each of parents, depths, and ancestors as the bits of
one number, the place's own among them. A draft that is no token ends its path and no other.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .windows import BITS, DEPTH, PARENT, Verified, Windows


def real(drafts: Tensor, vocab: int) -> Tensor:
    """`[R, W]` bool: the places that have a token: the root, and `drafts[R, k]` below `vocab`."""
    return F.pad((drafts >= 0) & (drafts < vocab), (1, 0), value=True)


def rooted(passes: Tensor, branches: Tensor) -> Tensor:
    """`[R, W]` bool: the places for which, as for all their ancestors, `passes[R, W]` holds.

    `branches[R, 3, W]`. It holds at the root. Raises nothing.
    """
    place = torch.arange(passes.shape[1], device=passes.device)
    having = (passes.to(torch.int64) << place).sum(dim=1, keepdim=True)
    return passes & ((branches[:, BITS] & ~having) == 0)


def deepest(places: Tensor, branches: Tensor) -> Tensor:
    """`[R]`: of `places[R, W]`, bool, the first of those that are deepest.

    `branches[R, 3, W]`. Raises nothing.
    """
    count = places.shape[1]
    first = count - torch.arange(count, device=places.device)
    return (branches[:, DEPTH] * (count + 1) + first).masked_fill(~places, -1).argmax(dim=1)


def path_to(place: Tensor, branches: Tensor) -> Tensor:
    """`[R, W]`: the places from the root to `place[R]`, then others.

    `branches[R, 3, W]`. Raises nothing.
    """
    bits = branches[:, BITS].gather(1, place[:, None])
    every = torch.arange(branches.shape[2], device=place.device)
    return (((bits >> every) & 1) ^ 1).argsort(dim=1, stable=True)


def depth_of(place: Tensor, branches: Tensor) -> Tensor:
    """`[R]`: how deep `place[R]` is, by `branches[R, 3, W]`. Raises nothing."""
    return branches[:, DEPTH].gather(1, place[:, None])[:, 0]


def at_parents(values: Tensor, branches: Tensor) -> Tensor:
    """`[R, k]`: of each draft what `values[R, W]` says of its parent, by `branches[R, 3, W]`.

    Raises nothing.
    """
    return values.gather(1, branches[:, PARENT, 1:])


def drafted(drafts: Tensor, branches: Tensor, vocab: int, allowed: Tensor | None = None) -> Tensor:
    """`[R]`: how many `drafts[R, k]` may be considered: tokens that come after such only.

    `branches[R, 3, W]`; `allowed[R, k]` bool: what a grammar says of each after its parent. Raises
    nothing.
    """
    passes = real(drafts, vocab)
    if allowed is not None:
        passes = passes & F.pad(allowed, (1, 0), value=True)
    return rooted(passes, branches).sum(dim=1) - 1


def with_ancestors(past: Tensor, drafts: Tensor, branches: Tensor, window_start: Tensor) -> Tensor:
    """`[R, W, C + k]`: before each place, the text `past[R, C]` and the drafts on the way to it.

    The text ends at `window_start[R]`, the place of the root; `branches[R, 3, W]`. Behind one of
    `drafts[R, k]` that is no token stands what nobody may read. Raises nothing.
    """
    rows, k = drafts.shape
    width, length = k + 1, past.shape[1]
    text = F.pad(past.to(torch.int64), (0, width), value=-1)  # the last column takes the rest
    text = text[:, None].repeat(1, width, 1)
    every = torch.arange(width, device=drafts.device)
    paths = (((branches[:, BITS, :, None] >> every) & 1) ^ 1).argsort(dim=2, stable=True)
    on_path = (every <= branches[:, DEPTH, :, None]) & (every > 0)
    columns = torch.where(on_path, window_start[:, None, None] + every, length + k)
    tokens = F.pad(drafts, (1, 0))[:, None].expand(rows, width, width).gather(2, paths)
    return text.scatter(2, columns.clamp(max=length + k), tokens)[:, :, : length + k]


def along(windows: Windows, place: Tensor, token: Tensor) -> Verified:
    """The drafts on the way to `place[R]`, and `token[R]` after them. Raises nothing."""
    assert windows.branches is not None, "the windows are trees"
    kept, path = depth_of(place, windows.branches), path_to(place, windows.branches)
    tokens = F.pad(windows.drafts, (1, 0)).gather(1, path).roll(-1, dims=1)
    tokens = tokens.scatter(1, kept[:, None], token[:, None])
    return Verified(up_to(tokens, kept), kept + 1, path)


def up_to(tokens: Tensor, kept: Tensor) -> Tensor:
    """`[R, k + 1]`: the first `kept[R]` + 1 of `tokens[R, k + 1]`, then -1. Raises nothing."""
    if tokens.shape[1] == 1:
        return tokens
    window_positions = torch.arange(tokens.shape[1], device=tokens.device)
    return tokens.masked_fill(window_positions > kept[:, None], -1)


def keep_chosen(windows: Windows, chosen: Tensor) -> Verified:
    """The longest path of drafts that are the tokens `chosen[R, W]` at their parents, and one more.

    Raises nothing.
    """
    branches, drafts = windows.branches, windows.drafts
    assert branches is not None, "the windows are trees"
    equal = F.pad(drafts == at_parents(chosen, branches), (1, 0), value=True)
    passes = rooted(equal & real(drafts, windows.target.shape[-1]), branches)
    place = deepest(passes, branches)
    return along(windows, place, chosen.gather(1, place[:, None])[:, 0])
