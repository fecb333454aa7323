"""Draft windows verified, the next tokens drawn, the hand-off written: on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ...backends.kernels import active, runs_on
from ...graph.errors import StepweaveError
from ...policies.acceptance import Acceptance
from ...policies.registry import called
from ...sampling.allowed import are_allowed
from ...sampling.logprobs import Logprobs, token_logprobs
from ...sampling.stand_ins import StandIns, widened
from ...sampling.trees import drafted
from ...sampling.windows import DEPTH, PARENT, Verified, Windows
from ..data import Inputs, Mask, Progress, PromptTargets, Sampled, SampleRows
from .edits import edited, masked
from .history import History
from .likelihoods import likelihoods
from .results import WrongResult, check_integers

Agree = Callable[..., tuple[Tensor, ...]]
"""The same tensors as every rank of a group has them."""


class MissingMask(StepweaveError):
    """A structured row would have been sampled without its mask."""

    code = "SW-MISSING-MASK"


def draw(
    rule: Acceptance,
    rows: SampleRows,
    logits: Tensor,
    mask: Mask | None,
    history: History,
    draft_log_probs: Tensor | None = None,
) -> Sampled:
    """Tokens of each row's window. `logits[S, W, V]`; `mask` as published.

    `draft_log_probs[R, k, V]`: by request slot, what pending drafts were drawn from, if they were.

    Raises `MissingMask` where a row has a grammar and the step has no masks, or not as many.
    """
    count, width, vocab = logits.shape
    if rows.structured and (mask is None or len(mask.valid) != count):
        raise MissingMask(
            "a row with a grammar came without its mask; it is not sampled, since its "
            "grammar would not be enforced"
        )
    valid = rows.valid if mask is None else torch.minimum(rows.valid, mask.valid)
    chain = rows.branches is None
    straight = runs_on(logits) and chain and rule.exact and (rows.greedy or not rows.cut)
    # Kernels mask on their way. But bans give way to a mask, so they must see what it leaves; what
    # is masked twice is the same.
    edits_mask = rows.edits.bans_any or not straight
    scores, stand_ins = edited(rows, logits, history, mask if edits_mask else None)
    left = None if edits_mask and scores is not logits else mask
    judged = valid
    if draft_log_probs is not None:
        draft_log_probs = draft_log_probs[rows.request_slot, : width - 1]
        if mask is not None:
            # Where a grammar cuts depends on what was drawn. To judge that draft too, which has
            # no probability left, draws its successor from the residual, as it must be.
            judged = torch.minimum(rows.valid, mask.valid + 1)
    if straight:
        verified = _verified_by_kernels(rows, scores, stand_ins, left, judged)
    else:
        if left is not None:
            scores = _masked(scores, left)
        if rows.greedy:
            flat = scores.reshape(count * width, vocab)
            scores = widened(flat, stand_ins).view(count, width, vocab)
        else:
            scores = _filtered(rule, rows, scores, stand_ins)
        verified = _forced(rows, _verified(rule, rows, scores, judged, draft_log_probs))
    tokens, counts, paths = verified.tokens, verified.counts, verified.paths
    if rows.branches is not None:
        allowed = None if mask is None else allowed_drafts(mask, rows.drafts, rows.branches)
        valid = drafted(rows.drafts, rows.branches, vocab, allowed)
    logprobs = None
    if rows.logprobs >= 0:
        if paths is not None:
            logits = logits.gather(1, paths[..., None].expand_as(logits))
        logprobs = token_logprobs(logits.reshape(-1, vocab), tokens.reshape(-1), rows.logprobs)
    return Sampled(tokens, counts, valid, logprobs, paths=paths)


def allowed_drafts(mask: Mask, drafts: Tensor, branches: Tensor) -> Tensor:
    """`[S, k]` bool: which of `drafts[S, k]` are allowed after their parents.

    By the masks of the places, in trees of `branches[S, 3, W]`. Raises nothing of its own.
    """
    lines = mask.lines
    if lines is None:
        lines = torch.arange(len(mask.bits), device=drafts.device).view(len(drafts), -1)
    return are_allowed(mask.bits, lines.gather(1, branches[:, PARENT, 1:]), drafts)


def _verified_by_kernels(
    rows: SampleRows,
    logits: Tensor,
    stand_ins: StandIns | None,
    mask: Mask | None,
    judged: Tensor,
) -> Verified:
    """Windows verified by kernels, without scores of the size of the logits in between."""
    from ...sampling.kernels import verify

    tokens, counts = verify.coupled(
        logits,
        None if mask is None else mask.bits,
        rows.drafts,
        judged,
        rows.seeds,
        rows.window_start + 1 - rows.prompt,
        rows.temperature,
        lines=None if mask is None else mask.lines,
        stand_ins=stand_ins,
        min_p=rows.min_p,
        forced=rows.forced,
        any_random=not rows.greedy,
    )
    return Verified(tokens, counts)


def _masked(logits: Tensor, mask: Mask) -> Tensor:
    """`logits[S, W, V]` with the masks applied."""
    rows, width, vocab = logits.shape
    flat = logits.reshape(rows * width, vocab)
    lines = None if mask.lines is None else mask.lines.flatten()
    return masked(flat, mask.bits, lines).view(rows, width, vocab)


def _filtered(
    rule: Acceptance, rows: SampleRows, logits: Tensor, stand_ins: StandIns | None
) -> Tensor:
    """The log-probabilities `[S, W, V]` that the requests ask for.

    Where they are only drawn from, they are not normalized: rounding there would differ from that
    of a draw straight from the logits, and a row's tokens must not depend on its company.
    """

    def at() -> Tensor:
        behind = torch.arange(logits.shape[1], device=logits.device)
        first = (rows.window_start + 1 - rows.prompt)[:, None]
        return first + (behind if rows.branches is None else rows.branches[:, DEPTH])

    return likelihoods(rows, logits, at, normalized=not rule.exact, stand_ins=stand_ins)


def _verified(
    rule: Acceptance,
    rows: SampleRows,
    scores: Tensor,
    judged: Tensor,
    draft_log_probs: Tensor | None,
) -> Verified:
    """What the rule settles. Raises `WrongResult` for what is not of the right type or shape."""
    verified = rule.verify(
        Windows(
            target=scores,
            drafts=rows.drafts,
            valid=judged,
            seeds=rows.seeds,
            positions=rows.window_start + 1 - rows.prompt,
            greedy=rows.temperature == 0,
            draft_log_probs=draft_log_probs,
            any_random=not rows.greedy,
            branches=rows.branches,
        )
    )
    name = called("acceptance", rule)
    if not isinstance(verified, Verified):
        raise WrongResult(f"{name}: `verify` must return a `Verified`, not {verified!r:.60}")
    count, width = scores.shape[:2]
    check_integers(f"{name}: `tokens` of what `verify` returns", verified.tokens, (count, width))
    check_integers(f"{name}: `counts` of what `verify` returns", verified.counts, (count,))
    if rows.branches is not None:
        check_integers(f"{name}: `paths` of what `verify` returns", verified.paths, (count, width))
    return verified


def _forced(rows: SampleRows, verified: Verified) -> Verified:
    """A resumed row's next token is settled already: hand it on instead of drawing."""
    if rows.forced is None:
        return verified
    forced, tokens = rows.forced >= 0, verified.tokens
    first = torch.where(forced, rows.forced, tokens[:, 0])
    return Verified(
        torch.cat([first[:, None], tokens[:, 1:]], dim=1),
        torch.where(forced, 1, verified.counts),
        verified.paths,
    )


def of_prompt(prompt: PromptTargets, logits: Tensor) -> Logprobs:
    """Log-probabilities of the prompt tokens asked for, from `logits[P, V]`."""
    return token_logprobs(logits, prompt.targets, prompt.top)


def hand_on(progress: Progress, rows: SampleRows, sampled: Sampled, history: History) -> Progress:
    """The progress after this step: requests that did not sample keep theirs."""
    if active(rows.window_start.device):
        from ...sampling.kernels import hand_on as kernel

        return Progress(
            *kernel.hand_on(
                sampled.tokens,
                sampled.counts,
                rows.window_start,
                rows.request_slot,
                history.tokens,
                progress.last_token,
                progress.computed,
            )
        )
    positions, last = rows.window_start[:, None] + 1, sampled.tokens[:, 0]
    if sampled.tokens.shape[1] > 1:
        positions, last = _places(rows, sampled)
    history.write(rows.request_slot[:, None].expand_as(positions), positions, sampled.tokens)
    return Progress(
        last_token=progress.last_token.index_copy(0, rows.request_slot, last),
        computed=progress.computed.index_copy(
            0, rows.request_slot, rows.window_start + sampled.counts
        ),
    )


def _places(rows: SampleRows, sampled: Sampled) -> tuple[Tensor, Tensor]:
    """Positions `[S, W]` of what was sampled, -1 where there is nothing, and the last tokens."""
    tokens, counts = sampled.tokens, sampled.counts
    behind = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    positions = torch.where(behind <= counts[:, None], rows.window_start[:, None] + behind, -1)
    return positions, tokens.gather(1, counts[:, None] - 1)[:, 0]


@torch.inference_mode()
def sample_step(
    rule: Acceptance,
    inputs: Inputs,
    logits: Tensor | None,
    prompt_logits: Tensor | None,
    progress: Progress,
    history: History,
    mask: Mask | None,
    draft_log_probs: Tensor | None,
    agree: Agree | None = None,
) -> tuple[Sampled | None, Progress]:
    """What a step sampled, and the progress after it; None where nothing is asked for.

    `logits[S, W, V]`, `prompt_logits[P, V]`, `draft_log_probs[R, k, V]`. What is sampled goes
    through `agree`, if it is given. Raises `MissingMask`, and `WrongResult` for what the rule may
    not return.
    """
    prompt = None
    if inputs.prompt is not None and prompt_logits is not None:
        prompt = of_prompt(inputs.prompt, prompt_logits)
    if inputs.sample is None or logits is None:
        if prompt is None:
            return None, progress
        none = inputs.ids.new_empty(0)
        return Sampled(none[:, None], none, none, prompt=prompt), progress
    sampled = draw(rule, inputs.sample, logits, mask, history, draft_log_probs)
    if agree is not None:
        own = (sampled.tokens, sampled.counts, sampled.drafted)
        paths = () if sampled.paths is None else (sampled.paths,)
        tokens, counts, judged, *path = agree(*own, *paths)
        sampled = replace(
            sampled, tokens=tokens, counts=counts, drafted=judged, paths=path[0] if path else None
        )
    return replace(sampled, prompt=prompt), hand_on(progress, inputs.sample, sampled, history)
