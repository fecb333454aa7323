"""What a step sampled as a few tensors of integers, whose shapes every stage knows beforehand."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...models.causal_lm import CausalLM
from ...models.errors import ModelError
from ...sampling.logprobs import Logprobs
from ..data import DraftTable, Progress, Sampled, StagedStep
from ..links import Links

Shape = tuple[int, ...]


@torch.inference_mode()
def tell_sampled(
    links: Links,
    step: int,
    staged: StagedStep,
    sampled: Sampled | None,
    progress: Progress,
    *,
    trees: bool,
) -> None:
    """Tell the other stages. `trees`: drafts may be one. Raises what ends the group."""
    said = [progress.last_token, progress.computed]
    if sampled is not None:
        said += [sampled.tokens, sampled.counts, sampled.drafted]
        said += [] if sampled.paths is None else [sampled.paths]
        for found in (sampled.logprobs, sampled.prompt):
            said += [] if found is None else list(_as_integers(found))
    assert [tuple(each.shape) for each in said] == list(_shapes(staged, progress, trees)), (
        "the shapes of what is told are those that every stage expects"
    )
    links.tell(step, *said)


@torch.inference_mode()
def hear_sampled(
    links: Links, step: int, staged: StagedStep, progress: Progress, *, trees: bool
) -> tuple[Sampled | None, Progress]:
    """The same on the other side. Raises what ends the group."""
    heard = list(links.hear(step, list(_shapes(staged, progress, trees)), progress.last_token))
    progress, rest = Progress(heard[0], heard[1]), heard[2:]
    if not rest:
        return None, progress
    tokens, counts, drafted, *more = rest
    paths = more.pop(0) if _has_paths(staged, trees) else None
    logprobs = _from_integers(more[:4]) if staged.samples and staged.logprobs >= 0 else None
    prompt = _from_integers(more[-4:]) if staged.prompt else None
    return Sampled(tokens, counts, drafted, logprobs, prompt, paths), progress


def _has_paths(staged: StagedStep, trees: bool) -> bool:
    """Whether some row of the step may have been offered a tree."""
    return trees and staged.samples > 0 and staged.width > 1


def _shapes(staged: StagedStep, progress: Progress, trees: bool) -> Iterator[Shape]:
    yield from (tuple(progress.last_token.shape), tuple(progress.computed.shape))
    rows, width = staged.samples, staged.width if staged.samples else 1
    if not rows and not staged.prompt:
        return
    yield from ((rows, width), (rows,), (rows,))
    if _has_paths(staged, trees):
        yield (rows, width)
    if rows and staged.logprobs >= 0:
        yield from _logprob_shapes(rows * width, staged.logprobs)
    if staged.prompt:
        yield from _logprob_shapes(staged.prompt, staged.prompt_logprobs)


def _logprob_shapes(count: int, top: int) -> Iterator[Shape]:
    yield from ((count,), (count,), (count, top), (count, top))


def _as_integers(found: Logprobs) -> Iterator[Tensor]:
    yield found.logprob.view(torch.int32).to(torch.int64)
    yield found.rank
    yield found.top_tokens
    yield found.top_logprobs.contiguous().view(torch.int32).to(torch.int64)


def _from_integers(said: list[Tensor]) -> Logprobs:
    logprob, rank, top_tokens, top_logprobs = said
    return Logprobs(
        logprob.to(torch.int32).view(torch.float32),
        rank,
        top_tokens,
        top_logprobs.to(torch.int32).view(torch.float32),
    )


def parts(drafts: DraftTable) -> list[Tensor]:
    """What there is to tell of `drafts`, in the order of its fields: each `[R, ...]`."""
    found = [drafts.tokens, drafts.tags]
    return found if drafts.branches is None else [*found, drafts.branches]


BEFORE = -1
"""The step of what is said before the first one."""

MOST_WATCHED = 64
"""Layers whose hidden states a drafter may ask for."""


def watch_alike(links: Links, target: CausalLM) -> None:
    """Let every stage keep the hidden states that the drafter reads, which the last one knows.

    Raises `ModelError` where there are too many, and what ends the group.
    """
    said = torch.full((MOST_WATCHED,), -1, dtype=torch.int64, device=target.device)
    if links.stage.last:
        watched = target.watched or ()
        if len(watched) > MOST_WATCHED:
            raise ModelError(
                f"{target.name}: its drafter reads {len(watched)} layers; stages hand on "
                f"{MOST_WATCHED} at most"
            )
        said[: len(watched)] = torch.tensor(watched, dtype=torch.int64)
        links.tell(BEFORE, said)
        return
    [heard] = links.hear(BEFORE, [said.shape], said)
    target.record_features([layer for layer in heard.tolist() if layer >= 0] or None)
