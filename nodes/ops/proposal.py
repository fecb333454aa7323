"""What every drafter shares: a proposal with explicit validity, made and published on the device.

What a row is offered is a function of its own tokens alone, and no drafter asks the host anything.
A row that cannot be drafted for gets −1, an explicit none; a skipped step changes nobody's drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ...backends.kernels import runs_on
from ...models.attention import AttentionBatch
from ...models.paged_cache import PagedCache
from ...policies.acceptance import Acceptance
from ...sampling.draw import draw
from ...sampling.noise import Purpose, of_window
from ..data import DraftTable, Inputs, Kept, Proposal, Sampled, SampleRows
from .forcing import with_forced
from .likelihoods import likelihoods
from .places import ahead
from .results import WrongResult, check_integers
from .transfer import upload
from .windows import Agree

Propose = Callable[[], Proposal | None]


@torch.inference_mode()
def published(
    inputs: Inputs,
    before: DraftTable,
    draft_probs: Tensor | None,
    propose: Propose,
    agree: Agree | None = None,
    forced: Tensor | None = None,
    sampled: Sampled | None = None,
) -> DraftTable:
    """The drafts of every row after `propose`; rows that it is not asked for keep theirs.

    What grammars force, `forced[S, W, L]` after the positions that were `sampled`, takes the place
    of other drafts. What drafts were drawn from goes to `draft_probs[R, k, V]`, where somebody
    compares; the drafts go through `agree`, if it is given. Raises `WrongResult` for a proposal of
    another shape.
    """
    proposal, sample = propose(), inputs.sample
    if sample is None:
        return before
    if proposal is not None:
        _check(proposal, len(sample.request_slot), before.tokens.shape[1])
    if forced is not None and sampled is not None and sample.draft_width:
        trees, width = before.branches is not None, sample.draft_width
        proposal = with_forced(proposal, forced, sampled, width, trees=trees)
    if proposal is not None and draft_probs is not None:
        drawn_from = _drawn_from(proposal, draft_probs)
        draft_probs[:, : drawn_from.shape[1]].index_copy_(0, sample.request_slot, drawn_from)
    if proposal is not None and agree is not None:
        own: tuple[Tensor, ...] = (proposal.tokens,)
        own += () if proposal.valid is None else (proposal.valid,)
        own += () if proposal.branches is None else (proposal.branches,)
        tokens, *others = agree(*own)
        branches = None if proposal.branches is None else others.pop()
        proposal = replace(
            proposal, tokens=tokens, valid=others[0] if others else None, branches=branches
        )
    return publish(before, sample, proposal)


def _drawn_from(proposal: Proposal, like: Tensor) -> Tensor:
    """What drafts were drawn from, `[S, n, V]` in the type of `like[R, k, V]`.

    Those that were not drawn are certain: what stays in their slots is of earlier drafts.
    """
    if proposal.log_probs is not None:
        return proposal.log_probs.to(like.dtype)
    vocab = like.shape[2]
    sole = like.new_full((*proposal.tokens.shape, vocab), -torch.inf)
    return sole.scatter_(2, proposal.tokens.clamp(0, vocab - 1)[..., None], 0.0)


def _check(proposal: object, rows: int, most: int) -> None:
    """Raise `WrongResult` for what is no proposal for so many rows, of so many drafts at most."""
    if not isinstance(proposal, Proposal):
        raise WrongResult(f"a drafter must return a `Proposal` or None, not {proposal!r:.60}")
    tokens = proposal.tokens
    offered = tokens.shape[-1] if isinstance(tokens, Tensor) and tokens.dim() else most
    check_integers("`tokens` of the proposal", tokens, (rows, min(offered, most)))
    if proposal.valid is not None:
        check_integers("`valid` of the proposal", proposal.valid, (rows,))


def publish(before: DraftTable, sample: SampleRows, proposal: Proposal | None) -> DraftTable:
    """The table with the rows of `sample` renewed: −1 where a draft is not valid or not wanted."""
    rows, k = len(sample.request_slot), before.tokens.shape[1]
    if proposal is None:
        fresh = before.tokens.new_full((rows, k), -1)
    else:
        fresh, n = proposal.tokens, proposal.tokens.shape[1]
        if proposal.valid is not None or not sample.whole or n > sample.draft_width:
            meant = sample.draft_limit
            if proposal.valid is not None:
                meant = torch.minimum(proposal.valid, meant)
            draft_index = torch.arange(n, device=fresh.device)
            fresh = fresh.masked_fill(draft_index >= meant[:, None], -1)
        if n < k:
            fresh = F.pad(fresh, (0, k - n), value=-1)
    branches = before.branches
    if branches is not None and proposal is not None and proposal.branches is not None:
        theirs = F.pad(proposal.branches, (0, branches.shape[2] - proposal.branches.shape[2]))
        branches = branches.index_copy(0, sample.request_slot, theirs)
    return DraftTable(
        tokens=before.tokens.index_copy(0, sample.request_slot, fresh),
        tags=before.tags.index_copy(0, sample.request_slot, sample.tags),
        branches=branches,
    )


@dataclass(frozen=True, slots=True)
class FirstPass:
    """What a drafter computes before its first draft: L tokens of its rows, row by row.

    `long[L]` and `row_blocks` as in `Inputs`.
    """

    ids: Tensor  # [L]
    positions: Tensor  # [L], −1 for a masked token
    cache_slots: Tensor  # [L] where the drafter's cache keeps its keys and values
    query_lens: tuple[int, ...]  # tokens of each row
    last: Tensor  # [S] the token of each sampling row whose logits give the first draft
    long: Tensor | None = None
    row_blocks: tuple[int, ...] | None = None

    def without_padding(self, kept: Kept) -> tuple[FirstPass, Tensor]:
        """The same pass over the tokens of `kept` only, and their indices in this one, `[L']`."""
        token_index = upload(kept.token_index, self.ids.device)
        moved = torch.zeros_like(self.ids).index_copy_(
            0, token_index, torch.arange(len(token_index), device=token_index.device)
        )
        shorter = FirstPass(
            self.ids[token_index],
            self.positions[token_index],
            self.cache_slots[token_index],
            kept.query_lens,
            moved[self.last],
            None if self.long is None else self.long[token_index],
            self.row_blocks,
        )
        return shorter, token_index

    def batch(self, blocks: Tensor, cache: PagedCache) -> AttentionBatch:
        """What attention must know of this pass; `blocks[R, B]`: block tables of its rows."""
        return AttentionBatch(
            query_lens=self.query_lens,
            block_tables=blocks,
            positions=self.positions,
            slots=self.cache_slots,
            cache=cache,
            long=self.long,
            blocks=self.row_blocks,
        )


Next = Callable[[Tensor, AttentionBatch], Tensor]
"""One more pass of a drafter over one token `ids[S]` of each row: logits `[S, V]`."""


def chain(
    rule: Acceptance,
    vocab_size: int,
    inputs: Inputs,
    logits: Tensor,
    positions: Tensor,
    reach: int,
    cache: PagedCache,
    following: Next,
    *,
    input_is_ahead: int,
    context_length: int | None = None,
) -> Proposal:
    """Draft token by token, from the `logits[S, V]` of a first pass on.

    Tokens are chosen as `rule` wants: the best ones, drawn with the target's noise, or drawn with
    noise of their own, and then the proposal says from what. `positions[S]`: where the first pass
    ended, by the drafter's own count; a drafter whose input at position p is the token at p + a
    says `input_is_ahead` = a. It has no position from `reach` on: rows that come there are offered
    no more. If that is no less than the `context_length` that a text may have, the host may know
    that none does, and then nothing is masked. `following(ids[S], batch)` is one more pass, over
    one token of each row: its logits `[S, V]`. Raises nothing of its own.
    """
    sample = inputs.sample
    assert sample is not None, "tokens were sampled for these rows"
    rows, width = len(sample.window_start), sample.draft_width
    # By the host, for all rows.
    checked = sample.whole and context_length is not None and reach >= context_length
    blocks = inputs.blocks_of_samples
    limit = None if checked else reach
    every, masked, slots, valid = ahead(
        blocks, positions, width, cache.block_size, limit, sample.draft_limit
    )
    tokens: list[Tensor] = []
    log_probs: list[Tensor] = []
    batch: AttentionBatch | None = None
    for draft in range(width):
        if draft:
            at, slot = masked[:, draft], slots[:, draft]
            if batch is None:
                long = inputs.long_rows
                batch = AttentionBatch(
                    (1,) * rows, blocks, at, slot, cache, long, masked=not checked
                )
            else:
                batch = batch.then(at, slot)
            logits = following(tokens[-1], batch)
        logits = logits[:, :vocab_size]
        token, drawn_from = _choose(
            rule, sample, logits, every[:, draft], input_is_ahead + 1, draft
        )
        tokens.append(token)
        if drawn_from is not None:
            log_probs.append(drawn_from)
    return Proposal(
        torch.stack(tokens, dim=1), valid, torch.stack(log_probs, dim=1) if log_probs else None
    )


def at_once(
    rule: Acceptance,
    vocab_size: int,
    sample: SampleRows,
    logits: Sequence[Tensor],
    positions: Tensor,
) -> Proposal:
    """Drafts that do not depend on each other, each of the next of the `logits[S, V]`.

    The first are of the token that is two behind the hidden states at `positions[S]`, since the
    next was sampled from these. Tokens are chosen as by `chain`. Raises nothing of its own.
    """
    chosen = [
        _choose(rule, sample, each[:, :vocab_size], positions, place + 2, place)
        for place, each in enumerate(logits)
    ]
    drawn_from = [each for _, each in chosen if each is not None]
    return Proposal(
        torch.stack([token for token, _ in chosen], dim=1),
        None,
        torch.stack(drawn_from, dim=1) if drawn_from else None,
    )


def _choose(
    rule: Acceptance,
    sample: SampleRows,
    logits: Tensor,
    positions: Tensor,
    ahead: int,
    place: int,
) -> tuple[Tensor, Tensor | None]:
    """The drafter's token for each row at a `place` of its window, and what it was drawn from: the
    token so many `ahead` of the absolute `positions[S]`.

    Where the acceptance rule couples target and drafter, the draft is drawn with the very noise
    that the target will use at that position, so that equal distributions agree always. Where it
    compares distributions, the draft is drawn with noise of its own, and of its window: a draft
    that was judged and not kept must not come again because of its noise.
    """
    draws = rule.compares
    if not (draws or rule.couples) or (sample.greedy and not draws):
        return logits.argmax(dim=-1), None
    at = torch.sub(positions, sample.prompt).add_(ahead)
    if not (draws or sample.cut) and runs_on(logits):
        from ...sampling.kernels import choose

        token = choose.sample(
            logits, sample.temperature, sample.min_p, sample.seeds, at, Purpose.TARGET
        )
        return token, None
    log_probs = likelihoods(sample, logits[:, None], lambda: at[:, None], normalized=draws)[:, 0]
    greedy = sample.temperature <= 0
    if not draws:
        return draw(log_probs, sample.seeds, at, greedy, Purpose.TARGET), None
    first = at - place  # the output position of the window's first draft
    token = draw(log_probs, sample.seeds, first, greedy, of_window(Purpose.DRAFT, place))
    return token, log_probs
