"""What the tests of the kernels run twice: in their own process, and in Triton's interpreter.

Each function makes its input from a seed, so that both sides get the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stepweave.backends.kernels import runs_on
from stepweave.graph.errors import StepweaveError
from stepweave.nodes.data import Edits, Mask, Progress, SampleRows
from stepweave.nodes.ops.history import History
from stepweave.nodes.ops.windows import draw, hand_on
from stepweave.policies.registry import policy
from stepweave.sampling.stand_ins import StandIns
from stepweave.structured.bitmask import words

VOCAB = 1100
CONTEXT = 12
EXTREMES = torch.tensor([0, -1, 2**63 - 1, -(2**63), 2**32 - 1, 2**32, 77, -(2**31)])
"""Seeds and positions at the edges of their words."""


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits(seed: int, lines: int, vocab: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Coarse, so that there are ties, and with what a broken model may give."""
    g = generator(seed)
    x = torch.randn(lines, vocab, generator=g).mul(4).round().div(2)
    x[torch.rand(lines, vocab, generator=g) < 0.2] = -torch.inf
    if lines > 4:
        x[0] = -torch.inf
        x[1, vocab // 2 :] = torch.nan
        x[2, -1] = torch.inf
        x[3] = 0.0
        x[3, ::2] = -0.0
    return x.to(dtype)


def masks(seed: int, lines: int, vocab: int) -> Tensor:
    """Random ones; the first closes every token, the last allows only one."""
    bits = torch.randint(-(2**31), 2**31, (lines, words(vocab)), generator=generator(seed))
    bits[0] = 0
    bits[-1] = 0
    only = (7 * seed + 5) % vocab
    bits[-1, only // 32] = 1 << (only % 32)
    return bits.to(torch.int32)


def masked_by_xgrammar(logits: Tensor, bits: Tensor) -> Tensor:
    """`logits[L, V]` after xgrammar's own Triton kernel, which writes into what it is given."""
    module: Any = import_module("xgrammar.kernels.apply_token_bitmask_inplace_triton")
    lines, vocab = logits.shape
    out, programs = logits.clone(), 4
    module.apply_token_bitmask_inplace_kernel[(programs,)](
        out, bits, None, lines, vocab, out.stride(0), bits.stride(0), programs, 1024
    )
    return out


def noise(seeds: Tensor, positions: Tensor, purpose: int, vocab: int) -> Tensor:
    """Noise `[L, V]` of the kernels."""
    from tests.sampling.noise_tiles import tiles

    return tiles(seeds, positions, purpose, vocab)


def verified(seed: int, *, any_random: bool, width: int = 3) -> list[Tensor]:
    """Arguments of an acceptance rule: random windows, some drafts as the target will choose."""
    g = generator(seed)
    rows, vocab = 8, 40
    target = torch.randn(rows, width, vocab, generator=g) * 3
    drafts = torch.randint(-1, vocab + 2, (rows, width - 1), generator=g)
    drafts = torch.where(torch.rand(drafts.shape, generator=g) < 0.6, 3, drafts)
    target[..., 3] += 5
    valid = torch.randint(0, width, (rows,), generator=g)
    greedy = torch.rand(rows, generator=g) < (0.3 if any_random else 1.1)
    return [target, drafts, valid, EXTREMES, EXTREMES.flip(0), greedy]


def sampled(
    seed: int,
    rule: str,
    *,
    greedy: bool,
    masked: bool,
    edit: str,
    ranks: bool = True,
    ranked: bool = True,
    dtype: torch.dtype = torch.float32,
    watch: AbstractContextManager[object] | None = None,
) -> list[Tensor]:
    """All that `sample` leaves behind in a step of 5 rows with windows of 3.

    `ranks`: some use top-k or top-p; `ranked`: the step is told so.
    """
    g = generator(seed)
    rows, k = 5, 2
    logits = torch.randn(rows, k + 1, VOCAB, generator=g) * 3
    logits[..., 9] += 9
    logits[1:3, :, 9] += 11
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.3, 0.0], dtype=torch.float64)
    if greedy:
        temperature.zero_()
    drafts = torch.randint(-1, VOCAB, (rows, k), generator=g)
    drafts[torch.rand(rows, k, generator=g) < 0.7] = 9
    drafts[1:3] = 9
    base = torch.tensor([4, 9, CONTEXT - 2, 5, 6])
    fields = torch.stack([EXTREMES[:rows], torch.randint(0, 4, (rows,), generator=g)], dim=1)
    one = torch.ones(rows, dtype=torch.int64)
    sample = SampleRows(
        batch_index=torch.arange(rows),
        request_slot=torch.tensor([3, 0, 4, 5, 1]),
        window_start=base,
        first=one,
        drafts=drafts,
        valid=torch.tensor([2, 2, 2, 0, 2]),
        forced=torch.tensor([-1, 8, -1, -1, -1]) if seed % 2 else None,
        draft_limit=one * k,
        logit_index=torch.arange(rows * (k + 1)).view(rows, k + 1),
        seeds=fields[:, 0],  # a column, as in a step
        prompt=one * 2,
        top_k=torch.tensor([0, 5, 0, 40, 0]),
        temperature=temperature,
        top_p=torch.tensor([1.0, 1.0, 0.9, 0.8, 1.0], dtype=torch.float64),
        min_p=torch.tensor([0.0, 0.1, 0.0, 0.0, 0.2], dtype=torch.float64),
        tags=torch.stack([one, one], dim=1),
        edits=_edits(edit),
        draft_width=k,
        longest=CONTEXT,
        greedy=greedy,
        structured=masked,
        logprobs=2 if seed % 2 else -1,
        any_top_k=ranked,
        any_top_p=ranked,
    )
    if not ranks:
        sample = replace(sample, top_k=0 * one, top_p=one.double())
    history = History(7, CONTEXT)
    progress = Progress(torch.arange(7), torch.arange(7) * 10)
    mask = None
    if masked:
        # Rows 3 and 4 have masks, the others none; one mask is nobody's.
        bits = masks(seed, 3 * (k + 1), VOCAB)
        lines = torch.full((rows, k + 1), -1)
        lines[3:] = torch.arange(2 * (k + 1)).view(2, k + 1)
        mask = Mask(bits, torch.tensor([2, 2, 2, 2, 1]), lines)
    options = {"rates": (0.5,)} if rule == "synthetic" else {}
    judge = policy("acceptance", rule, **options)
    q = torch.randn(7, k, VOCAB, generator=g).log_softmax(dim=-1) if rule == "rejection" else None
    logits = logits.to(dtype)
    before = logits.clone()
    with torch.inference_mode(), watch or nullcontext():
        found = draw(judge, sample, logits, mask, history, q)
        after = hand_on(progress, sample, found, history)
    if not torch.equal(logits, before):
        raise StepweaveError("logits were changed, which the step only reads")
    shown = [] if found.logprobs is None else [found.logprobs.rank, found.logprobs.top_tokens]
    tables = [after.last_token, after.computed, history.tokens[:, :-1]]
    return [found.tokens, found.counts, found.drafted, *shown, *tables]


class _Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the tensors of a size that torch makes, which is not what kernels make."""

    def __init__(self, least: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.least, self.names = least, list[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        made = isinstance(out, Tensor) and out.numel() >= self.least
        if made and not any(a is out or _views(a, out) for a in args if isinstance(a, Tensor)):
            self.names.append(str(func))
        return out


def _views(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def made_in_a_step(dtype: torch.dtype, edit: str) -> tuple[Tensor, list[str]]:
    """Tokens `[5, 3]` of `sampled` for logits of `dtype`, and what torch made of their size."""
    copies = _Copies(5 * 3 * VOCAB)
    how: dict[str, Any] = {"greedy": False, "masked": True, "edit": edit, "ranked": False}
    tokens = sampled(0, "coupled", **how, dtype=dtype, watch=copies)[0]
    return tokens, copies.names


def _edits(kind: str) -> Edits:
    if kind == "bans":
        return Edits(bans=torch.tensor([[1, 9, 20], [2, 9, 20]]))
    if kind == "biases":
        return Edits(
            biases=torch.tensor([[0, 9], [2, 11]]),
            bias_values=torch.tensor([-20.0, 30.0], dtype=torch.float64),
        )
    if kind.startswith("some"):
        # Of rows 4 and 2, of which the first has a mask where there are masks.
        rows, places = torch.tensor([4, 2]), torch.arange(3)
        lines = torch.full((5, 3), -1)
        lines[4], lines[2] = places, places + 3
        some = Edits(rows=rows, lines=lines, readers=0)
        if kind == "some biases":
            biases = torch.tensor([[0, 9], [1, 11]])
            values = torch.tensor([-20.0, 30.0], dtype=torch.float64)
            return replace(some, biases=biases, bias_values=values)
        penalties = torch.tensor([[1.5, 0.5, 9.0]], dtype=torch.float64)
        bans = torch.tensor([[1, 9, 20], [0, 3, 20]])
        return replace(some, readers=1, penalties=penalties, bans=bans)
    return Edits()


def used(dtype: torch.dtype = torch.float32) -> bool:
    return runs_on(torch.zeros(1, dtype=dtype))


STAND_IN_PARTS = ("scores", "rows", "lines")


def with_what_changed(
    name: str, written: Sequence[str], arguments: Mapping[str, Any]
) -> list[Tensor]:
    """What `module:function` returns for the arguments, then those that it wrote to.

    Parts of stand-ins are arguments of their own.
    """
    module, function = name.split(":")
    given = dict(arguments)
    if "stand_in_scores" in given:
        given["stand_ins"] = StandIns(*(given.pop(f"stand_in_{part}") for part in STAND_IN_PARTS))
    found = getattr(import_module(module), function)(**given)
    return [*(found if isinstance(found, tuple) else [found]), *(arguments[w] for w in written)]
