"""Trying out a model when it is loaded: a few tokens in several ways, which must agree."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .attention import AttentionBatch, LayerProbe
from .errors import AttentionNotCalled, ModelError, NotInvariant, UnsupportedModel
from .paged_cache import LayerShape
from .pretrained import named
from .support import windows

if TYPE_CHECKING:
    from .causal_lm import CausalLM
    from .compiled import CompiledLayers
    from .eagle import EagleHead

TOKENS = 10  # more than the smallest tile, so that passes of different sizes are compared

_HALF_PRECISION = 0.1
"""How far logits of half precision may be apart, as a part of their size; rounding takes 0.01."""

_BLOCK_SIZE = 4


class TwoRows:
    """A cache of a model's, with room for two rows of `count` tokens each."""

    def __init__(self, model: CausalLM | EagleHead, count: int) -> None:
        blocks = -(-count // _BLOCK_SIZE)
        self._cache = model.new_cache(1 + 2 * blocks, _BLOCK_SIZE)
        self._tables = torch.arange(1, 1 + 2 * blocks, device=model.device).view(2, blocks)

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


def own_logits(model: CausalLM) -> Tensor:
    """`[N, V]`: the model's logits of N tokens, by its own attention code.

    Raises `ModelError` where they are not finite.
    """
    model.hf.set_attn_implementation("eager")
    ids = _ids(model)[None]
    hf: Any = model.hf
    logits: Tensor = hf(input_ids=ids, use_cache=False).logits[0]
    if not bool(logits.isfinite().all()):
        raise ModelError(
            f"{model.name}: its logits are not finite{_not_finite(model.hf)}; fetch the weights "
            "again, or take a wider model.dtype"
        )
    return logits


def layer_shapes(model: CausalLM) -> tuple[LayerShape, ...]:
    """Each layer's shape, learned from one token.

    Raises `AttentionNotCalled`, or `UnsupportedModel` where its attention is not as configured.
    """
    probe = LayerProbe()
    ids = _ids(model)[None, :1]
    try:
        model.hf(
            input_ids=ids,
            position_ids=torch.zeros_like(ids),
            attention_mask=None,
            use_cache=False,
            paged=probe,
        )
    except TypeError as error:
        raise AttentionNotCalled(
            f"{model.name} does not pass keyword arguments on to its attention: {error}"
        ) from error
    require_every_layer(model.name, probe.calls, model.config.num_hidden_layers)
    for layer, window in windows(model.config).items():
        if probe.windows[layer] != window:
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
    return tuple(probe.layers[layer] for layer in range(len(probe.layers)))


def require_every_layer(name: str, calls: list[int], count: int) -> None:
    """Raises `AttentionNotCalled` unless each of `count` layers was called once."""
    layers = range(count)
    if sorted(calls) != list(layers):
        missing = sorted(set(layers) - set(calls))
        twice = sorted({layer for layer in calls if calls.count(layer) > 1})
        raise AttentionNotCalled(
            f"{name}: of {len(layers)} layers, {missing} did not call the paged "
            f"attention and {twice} called it more than once; its keys and values "
            "would be missing from the cache. Such a model cannot be served"
        )


def compare(model: CausalLM, expected: Tensor, compiled: CompiledLayers | None) -> None:
    """Compare with `expected[N, V]` of the model's own attention; in invariant mode, with itself.

    The first pass compiles, if that is wanted; others must do with what it compiled. Raises
    `UnsupportedModel` for a difference from the one, `NotInvariant` from the other.
    """
    ids = _ids(model)
    n = len(ids)
    rows = TwoRows(model, n)

    def run(*chunks: tuple[int, int, int]) -> Tensor:
        batch = rows.batch(*chunks)
        return model.forward(ids[batch.positions], batch)[0]

    with nullcontext() if compiled is None else compiled.warming():
        whole = run((0, 0, n))
    passes = [whole]
    if compiled is not None and n > 2:
        passes.append(torch.cat([run((1, 0, n - 1)), run((1, n - 1, n))]))
        compiled.require_no_more()
    exact = model.dtype in (torch.float32, torch.float64)
    worst = max((each - expected).abs().max().item() for each in passes)
    apart = max(((each - expected).norm() / expected.norm()).item() for each in passes)
    scale = max(1.0, expected.abs().max().item())
    if not (worst <= 1e-3 * scale if exact else apart <= _HALF_PRECISION):
        raise UnsupportedModel(
            f"{model.name}: on the paged cache its logits differ by {worst:.3g} from those "
            "of its own attention, so it does something with attention that we do not know"
        )
    if model.invariant and n > 2:
        first = run((1, 0, n - 2))
        mixed = run((1, n - 2, n - 1), (0, 0, n), (1, n - 1, n))
        again = torch.cat([first, mixed[:1], mixed[-1:]])
        if not (torch.equal(again, whole) and torch.equal(mixed[1:-1], whole)):
            raise NotInvariant(
                f"{model.name}: a token's logits depend on the other tokens of its batch "
                f"({model.dtype}, {model.device.type}, {torch.get_num_threads()} threads). "
                "Load it with invariant=False"
            )


def _ids(model: CausalLM) -> Tensor:
    """A few different tokens, the same at every load."""
    count = min(TOKENS, model.rope_switch or model.context_length)
    return (torch.arange(count, device=model.device) * 7 + 3) % model.vocab_size


def _not_finite(model: nn.Module) -> str:
    """Which weights are not numbers; it may be none, where sums are too large for the precision."""
    broken = [name for name, each in model.named_parameters() if not bool(each.isfinite().all())]
    return f", since these weights are not: {named(broken)}" if broken else ""
