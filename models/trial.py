"""Trying out a model when it is loaded: a few tokens in several ways, which must agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .attention import AttentionBatch, LayerProbe
from .errors import AttentionNotCalled, ModelError, NotInvariant, UnsupportedModel
from .paged_cache import NO_KEYS, LayerShape
from .pretrained import named
from .recurrent import StatePass
from .support import windows

if TYPE_CHECKING:
    from .causal_lm import CausalLM
    from .compiled import CompiledLayers
    from .eagle import EagleHead

TOKENS = 10  # more than the smallest tile, so that passes of different sizes are compared

_EXACT = 1e-3
"""How far logits of single or double precision may be apart, as a part of the largest."""

_ROUNDINGS = 2
"""How far logits of half precision may be apart, in units of what a rounding more of each number
that enters the model does to them: other orders of sums take 0.1 to 1.1 of it."""

_DRAWS = 8
"""Further roundings that are looked at where one was not enough: a rounding may have a router take
another expert, which moves logits by far more, and does so for few tokens."""

_BLOCK_SIZE = 4


class TwoRows:
    """A cache of a model's, with room for two rows of `count` tokens each."""

    def __init__(self, model: CausalLM | EagleHead, count: int) -> None:
        blocks = -(-count // _BLOCK_SIZE)
        self._cache = model.new_cache(1 + 2 * blocks, _BLOCK_SIZE)
        self._tables = torch.arange(1, 1 + 2 * blocks, device=model.device).view(2, blocks)
        new_states = getattr(model, "new_states", None)  # a head has none
        self._states = None if new_states is None else new_states(2, 1)

    def states(self, *chunks: tuple[int, int, int]) -> StatePass | None:
        """What layers with states must know of these chunks. Raises nothing of its own."""
        if self._states is None:
            return None
        slots = torch.tensor([row for row, _, _ in chunks], device=self._tables.device)
        lens = tuple(stop - start for _, start, stop in chunks)
        return StatePass(self._states, slots, lens, decodes=0)

    def batch(self, *chunks: tuple[int, int, int]) -> AttentionBatch:
        """One pass over chunks, each (row, first position, position after the last).

        Raises nothing of its own.
        """
        device = self._tables.device
        spans = [torch.arange(start, stop, device=device) for _, start, stop in chunks]
        tables = torch.stack([self._tables[row] for row, _, _ in chunks])
        slots = [
            table[span // _BLOCK_SIZE] * _BLOCK_SIZE + span % _BLOCK_SIZE
            for table, span in zip(tables, spans, strict=True)
        ]
        return AttentionBatch(
            query_lens=tuple(map(len, spans)),
            block_tables=tables,
            positions=torch.cat(spans),
            slots=torch.cat(slots),
            cache=self._cache,
        )


@dataclass(frozen=True)
class Own:
    """What a model computes by its own attention code: `logits[N, V]` of N tokens."""

    logits: Tensor
    rounding: float | None  # what it may do to them, as a part of their size, in half precision

    def allow(self, logits: Tensor) -> bool:
        """Whether `logits[N, V]` differ by no more than by rounding."""
        apart, mine = logits - self.logits, self.logits.float()
        if self.rounding is None:
            return bool(apart.abs().max() <= _EXACT * mine.abs().max().clamp(min=1.0))
        return bool(apart.norm() <= self.rounding * mine.norm())


def own(model: CausalLM) -> Own:
    """The model's logits of a few tokens, by its own attention code.

    In half precision rounding takes more or less of them, by the model's depth and kind: that is
    tried out, too. Raises `ModelError` where they are not finite.
    """
    model.hf.set_attn_implementation("eager")
    ids = token_ids(model)[None]
    logits: Tensor = model.call(ids).logits[0]
    if not bool(logits.isfinite().all()):
        raise ModelError(
            f"{model.name}: its logits are not finite{_not_finite(model.hf)}; fetch the weights "
            "again, or take a wider model.dtype"
        )
    if model.dtype in (torch.float32, torch.float64):
        return Own(logits, None)
    with _rounded_otherwise(model.entrance):
        apart: Tensor = model.call(ids).logits[0] - logits
    return Own(logits, max(_moved_by(apart, logits), _ROUNDINGS * torch.finfo(model.dtype).eps))


def _moved_by(apart: Tensor, logits: Tensor) -> float:
    """How far `logits[N, V]` may be off where a rounding moved them by `apart[N, V]`."""
    return _ROUNDINGS * float(apart.float().norm() / logits.float().norm())


@contextmanager
def _rounded_otherwise(embeddings: nn.Module, seed: int = 0) -> Iterator[None]:
    """In the block what they give is a unit in the last place off, up or down."""

    def round_otherwise(module: nn.Module, args: object, out: Tensor) -> Tensor:
        draw = torch.Generator().manual_seed(seed)
        signs = torch.randint(0, 2, out.shape, generator=draw).to(out) * 2 - 1
        return out * (1 + torch.finfo(out.dtype).eps * signs)

    hook = embeddings.register_forward_hook(round_otherwise)
    try:
        yield
    finally:
        hook.remove()


def layer_shapes(model: CausalLM) -> tuple[LayerShape, ...]:
    """Each layer's shape, learned from one token.

    Raises `AttentionNotCalled`, or `UnsupportedModel` where its attention is not as configured.
    """
    probe = LayerProbe()
    ids = token_ids(model)[None, :1]
    try:
        model.call(ids, position_ids=torch.zeros_like(ids), attention_mask=None, paged=probe)
    except TypeError as error:
        raise AttentionNotCalled(
            f"{model.name} does not pass keyword arguments on to its attention: {error}"
        ) from error
    model.attending = tuple(
        layer for layer in model.layers if layer in probe.layers or layer not in model.mixers.layers
    )
    require_every_layer(model.name, probe.calls, model.attending)
    for layer, window in windows(model.config).items():
        if layer in model.attending and probe.windows[layer] != window:
            raise UnsupportedModel(
                f"{model.name}: by its configuration layer {layer} has sliding window {window}, "
                f"but it asked attention for {probe.windows[layer]}; the window is "
                "probably in a mask of its own, which a paged cache cannot use"
            )
    cap = getattr(model.config, "attn_logit_softcapping", None)
    if any(softcap != cap for softcap in probe.softcaps.values()):
        raise UnsupportedModel(
            f"{model.name}: attn_logit_softcapping is {cap}, but attention was asked for "
            f"{sorted(set(map(str, probe.softcaps.values())))}"
        )
    return tuple(probe.layers.get(layer, NO_KEYS) for layer in model.layers)


def require_every_layer(name: str, calls: list[int], layers: Sequence[int]) -> None:
    """Raises `AttentionNotCalled` unless each of `layers` was called once."""
    if sorted(calls) != list(layers):
        missing = sorted(set(layers) - set(calls))
        twice = sorted({layer for layer in calls if calls.count(layer) > 1})
        raise AttentionNotCalled(
            f"{name}: of {len(layers)} layers, {missing} did not call the paged "
            f"attention and {twice} called it more than once; its keys and values "
            "would be missing from the cache. Such a model cannot be served"
        )


def compare(model: CausalLM, expected: Own, compiled: CompiledLayers | None) -> None:
    """Compare with what the model's own attention gives; in invariant mode, with itself.

    The first pass compiles, if that is wanted; others must do with what it compiled. Raises
    `UnsupportedModel` for a difference from the one, `NotInvariant` from the other.
    """
    ids = token_ids(model)
    n = len(ids)
    rows = TwoRows(model, n)

    def run(*chunks: tuple[int, int, int]) -> Tensor:
        batch = rows.batch(*chunks)
        states = rows.states(*chunks)
        logits = model.forward(ids[batch.positions], batch, states=states)[0]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    with nullcontext() if compiled is None else compiled.warming():
        whole = run((0, 0, n))
    passes = [whole]
    if model.mixers and n > 3:  # states are handed on from chunk to chunk
        passes.append(torch.cat([run((1, 0, n - 3)), run((1, n - 3, n - 2)), run((1, n - 2, n))]))
    if compiled is not None and n > 2:
        passes.append(torch.cat([run((1, 0, n - 1)), run((1, n - 1, n))]))
        compiled.require_no_more()
    if expected.rounding is not None and not all(map(expected.allow, passes)):
        moved = [expected.rounding]
        for seed in range(1, 1 + _DRAWS):
            with _rounded_otherwise(model.entrance, seed):
                moved.append(_moved_by(run((0, 0, n)) - whole, whole))
        expected = Own(expected.logits, max(moved))
    worst = max((each - expected.logits).abs().max().item() for each in passes)
    if not all(map(expected.allow, passes)):
        raise UnsupportedModel(
            f"{model.name}: on the paged cache its logits differ by {worst:.3g} from those "
            "of its own attention, so it does something with attention that we do not know"
        )
    if model.invariant and n > 3:
        first = torch.cat([run((1, 0, n - 3)), run((1, n - 3, n - 2))])
        mixed = run((1, n - 2, n - 1), (0, 0, n), (1, n - 1, n))
        again = torch.cat([first, mixed[:1], mixed[-1:]])
        if not (torch.equal(again, whole) and torch.equal(mixed[1:-1], whole)):
            raise NotInvariant(
                f"{model.name}: a token's logits depend on the other tokens of its batch "
                f"({model.dtype}, {model.device.type}, {torch.get_num_threads()} threads). "
                "Load it with invariant=False"
            )


def first_invariant(sizes: Sequence[int], attempt: Callable[[int], None]) -> None:
    """Call `attempt` with one of `sizes` after the other, until it does not raise `NotInvariant`.

    Raises what it raises for the last one.
    """
    *others, last = sizes
    for size in others:
        with suppress(NotInvariant):
            return attempt(size)
    attempt(last)


def token_ids(model: CausalLM) -> Tensor:
    """A few different tokens, `[N]`, the same at every load."""
    count = min(TOKENS, model.rope_switch or model.context_length)
    return (torch.arange(count, device=model.device) * 7 + 3) % model.vocab_size


def _not_finite(model: nn.Module) -> str:
    """Which weights are not numbers; it may be none, where sums are too large for the precision."""
    broken = [name for name, each in model.named_parameters() if not bool(each.isfinite().all())]
    return f", since these weights are not: {named(broken)}" if broken else ""
