"""A model's own layers with fewer launches: what stands between products is one kernel each.

Of a layer four parts are replaced, each where it is of a known form and by itself:

* norms;
* gated MLPs: activation and gate;
* attention: norms and positions of queries and keys, and their way to the cache;
* the layer: an addition and the norm after it, also that with which the next layer begins.

Which modules those are is found by structure and by trying: a module is run on the numbers that
the model gives it, by its own code and fused, and keeps its own code where the two differ by more
than rounding. So families that nobody listed are fused as far as they go. What the whole comes to
is compared by the trial of the model (`trial.py`), as for all kernels.

Shapes: T tokens, H width of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .attention import AttentionBatch
from .fused_parts import FusedAttention, add_norm, closest, mlp_of, norm_of
from .kernels import operators
from .kernels.forms import Angles, Norm
from .kernels.reference import How

_FUSED = "_stepweave_fused"
NORMS, MLPS, ATTENTION, LAYERS = "norms", "gated MLPs", "attention", "layers"


@dataclass
class Fusing:
    """What became of a model's parts, for people."""

    done: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)

    def notes(self) -> tuple[str, ...]:
        """A line for what runs by kernels, and one for what does not."""
        return tuple(
            f"{verb}: {', '.join(f'{count} {what}' for what, count in counted.items())}"
            for verb, counted in (("fused", self.done), ("did not fuse", self.left))
            if counted
        )


def undo(model: nn.Module) -> None:
    """Give every part of `model` its own code back."""
    for module in model.modules():
        _release(module)


def fuse(layers: Sequence[nn.Module], inside: nn.Module, call: Callable[[Any], object]) -> Fusing:
    """Fuse the parts of `layers`, and the norm behind them, in place; what became of them.

    `inside`: the module that has the layers and that norm. `call(paged)` runs the model on a few
    tokens with `paged` in the place of a batch.
    """
    found, seen = Fusing(), _Seen()
    norms = _norms(inside, layers)
    with ExitStack() as stack:
        for module in (*layers, *_attentions(layers), *norms):
            stack.callback(seen.watch(module))
        call(seen)
    handing = {each: _Normed(norm) for each, norm in norms.items()}
    for each, forward in handing.items():
        _replace(each, forward)
    found.done[NORMS] = len(handing)
    mlp = None
    for module in (each for layer in layers for each in layer.modules()):
        if isinstance(getattr(module, "gate_proj", None), nn.Module):
            mlp = None if _taken(module) else mlp_of(module, _like(module), mlp)
            _count(found, MLPS, mlp is not None)
            if mlp is not None:
                _replace(module, mlp)
    for module in _attentions(layers):
        attention = _attention(module, seen)
        _count(found, ATTENTION, attention is not None)
        if attention is not None:
            _replace(module, attention)
    for layer in layers:
        _count(found, LAYERS, _fuse_layer(layer, seen, handing))
    return found


# --- what the model does by its own code


@dataclass
class _Call:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    attends: int  # calls of attention before it
    out: Any = None

    @property
    def given(self) -> Tensor:
        """The hidden states, `[1, T, H]`."""
        found: Tensor = self.args[0] if self.args else self.kwargs["hidden_states"]
        return found


@dataclass
class _Attended:
    query: Tensor  # [1, H, T, D]
    key: Tensor  # [1, h, T, D]
    value: Tensor  # [1, h, T, D']
    how: How
    out: Tensor  # [T, H, D']


class _Seen:
    """Takes the place of a batch, to note what the parts of a model are given and return."""

    def __init__(self) -> None:
        self.calls: dict[nn.Module, _Call] = {}
        self.attended: list[_Attended] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: How) -> Tensor:
        """`[T, H, D']` of `query[1, H, T, D]`, `key[1, h, T, D]`, `value[1, h, T, D']`: values."""
        group = query.shape[1] // value.shape[1]
        out = value[0].repeat_interleave(group, 0).transpose(0, 1).contiguous()
        self.attended.append(_Attended(query, key, value, how, out))
        return out

    def watch(self, module: nn.Module) -> Callable[[], None]:
        """Note its next call; a function that ends that."""

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.calls[module] = _Call(args, kwargs, len(self.attended))

        def after(module: nn.Module, args: Any, out: Any) -> None:
            self.calls[module].out = out

        first = module.register_forward_pre_hook(before, with_kwargs=True)
        last = module.register_forward_hook(after)

        def end() -> None:
            first.remove()
            last.remove()

        return end


def _norms(inside: nn.Module, layers: Sequence[nn.Module]) -> dict[nn.Module, Norm]:
    found: dict[nn.Module, Norm] = {}
    of_kind: dict[type, Norm] = {}
    like = _like(layers[0])
    for module in inside.modules():
        if not _taken(module) and not any(module.children()):
            norm = norm_of(module, like, of_kind.get(type(module)))
            if norm is not None:
                found[module] = of_kind[type(module)] = norm
    return found


def _attentions(layers: Sequence[nn.Module]) -> list[nn.Module]:
    found = (getattr(layer, "self_attn", None) for layer in layers)
    return [each for each in found if isinstance(each, nn.Module)]


def _like(module: nn.Module) -> Tensor:
    return next(each for each in module.parameters() if each.dim() > 1)


# --- what takes their place


class _Normed:
    """The `forward` of a norm. Where an addition came before, its result lies here already."""

    def __init__(self, norm: Norm) -> None:
        self.norm = norm
        self._handed: tuple[Tensor, Tensor] | None = None

    def hand(self, x: Tensor, normed: Tensor) -> None:
        """`normed[..., H]` is the norm of the very tensor `x[..., H]`."""
        self._handed = (x, normed)

    def __call__(self, hidden_states: Tensor) -> Tensor:
        handed, self._handed = self._handed, None
        if handed is not None and handed[0] is hidden_states:
            return handed[1]
        return add_norm(hidden_states.flatten(0, -2), None, self.norm)[1].view_as(hidden_states)


@dataclass(frozen=True)
class _Attention:
    """The `forward` of an attention, on a batch; else its own code runs."""

    fused: FusedAttention
    halved: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        batch, module = kwargs.get("paged"), self.fused.module
        if not isinstance(batch, AttentionBatch):
            return type(module).forward(module, *args, **kwargs)
        x: Tensor = args[0] if args else kwargs["hidden_states"]
        angles = _angles(kwargs, self.halved)
        return self.fused(x.flatten(0, -2), angles, batch).view(*x.shape[:-1], -1), None


@dataclass(frozen=True)
class _Layer:
    """The `forward` of a layer: each addition with the norm after it."""

    layer: Any
    before_mlp: Norm
    of_attention: Norm | None  # of what the attention gives, before it is added
    of_mlp: Norm | None  # of what the MLP gives
    following: _Normed | None  # the norm that comes next

    def __call__(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        layer, shape = self.layer, hidden_states.shape
        x = hidden_states.flatten(0, -2)
        seen = layer.input_layernorm(hidden_states)
        mixed = _first(layer.self_attn(hidden_states=seen, **kwargs)).flatten(0, -2)
        x, seen = add_norm(x, mixed, self.before_mlp, inner=self.of_attention)
        inner = _first(layer.mlp(seen.view(shape))).flatten(0, -2)
        if self.following is None:
            if self.of_mlp is not None:
                inner = add_norm(inner, None, self.of_mlp)[1]
            return (x + inner).view(shape)
        x, normed = add_norm(x, inner, self.following.norm, inner=self.of_mlp)
        out = x.view(shape)
        self.following.hand(out, normed.view(shape))
        return out


def _attention(module: nn.Module, seen: _Seen) -> _Attention | None:
    """The fused form of an attention that does nothing else; None if it does."""
    call, part = seen.calls.get(module), module
    maps = [getattr(part, name, None) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    if call is None or _taken(module) or not all(isinstance(each, nn.Module) for each in maps):
        return None
    angles = call.kwargs.get("position_embeddings")
    if not (isinstance(angles, tuple) and len(angles) == 2 and call.attends < len(seen.attended)):
        return None
    attended = seen.attended[call.attends]
    known, norms = _norms_of_heads(module, attended.key.shape[-1])
    if not known:
        return None
    fused = FusedAttention(part, attended.key.shape[-1], attended.how, norms)
    out = maps[3](attended.out.flatten(1))  # type: ignore[misc]
    if closest(_first(call.out).flatten(0, -2), [out]) is None:
        return None
    for halved in (False, True):
        if _turns_alike(fused, _angles(call.kwargs, halved), call.given, attended):
            return _Attention(fused, halved)
    return None


def _turns_alike(fused: FusedAttention, angles: Angles, x: Tensor, wanted: _Attended) -> bool:
    turned = angles.cos.shape[1] * (2 if angles.halved else 1)
    if turned > fused.width or turned % 2:
        return False
    query, key, value = fused.projected(x.flatten(0, -2))
    keys, values = torch.zeros_like(key), torch.zeros_like(value)
    slots = torch.arange(len(key), device=key.device)
    query = operators.rotate_now(query, key, value, angles, keys, values, slots, fused.norms)
    pairs = ((wanted.query, query), (wanted.key, keys), (wanted.value, values))
    return all(closest(own[0].transpose(0, 1), [ours]) is not None for own, ours in pairs)


def _norms_of_heads(module: nn.Module, width: int) -> tuple[bool, tuple[Norm, Norm] | None]:
    """Whether norms of queries and keys are of a known form, and which; None if there are none."""
    query, key = (_form(getattr(module, name, None)) for name in ("q_norm", "k_norm"))
    if query is None or key is None:
        return not (hasattr(module, "q_norm") or hasattr(module, "k_norm")), None
    alike = (query.offset, query.rounds) == (key.offset, key.rounds)
    return alike and len(query.weight) == len(key.weight) == width, (query, key)


def _form(module: nn.Module | None) -> Norm | None:
    forward = None if module is None else module.__dict__.get("forward")
    return forward.norm if isinstance(forward, _Normed) else None


def _fuse_layer(layer: nn.Module, seen: _Seen, handing: dict[nn.Module, _Normed]) -> bool:
    """Whether the layer is two additions with norms before them, as now fused."""
    call = seen.calls.get(layer)
    if call is None or _taken(layer) or len(call.args) > 1 or not isinstance(call.out, Tensor):
        return False

    def norm(name: str) -> Norm | None:
        forward = handing.get(getattr(layer, name, None))  # type: ignore[arg-type]
        return None if forward is None else forward.norm

    first, second = norm("input_layernorm"), norm("post_attention_layernorm")
    before, after = norm("pre_feedforward_layernorm"), norm("post_feedforward_layernorm")
    parts = {name for name, _ in layer.named_children()}
    if first is None or second is None or not {"self_attn", "mlp"} <= parts:
        return False
    following = [handing[each] for each in handing if _given(seen, each) is call.out]
    forward = _Layer(
        layer,
        second if before is None else before,
        None if before is None else second,
        after,
        following[0] if len(following) == 1 else None,
    )
    kwargs = {name: each for name, each in call.kwargs.items() if name != "hidden_states"}
    try:
        found = forward(call.given, **{**kwargs, "paged": _Seen()})
    except (TypeError, AttributeError):  # its own code calls its parts in another way
        return False
    if closest(call.out, [found]) is None:
        return False
    _replace(layer, forward)
    return True


def _given(seen: _Seen, module: nn.Module) -> object:
    call = seen.calls.get(module)
    return None if call is None or not call.args else call.args[0]


# --- small things


def _angles(kwargs: dict[str, Any], halved: bool) -> Angles:
    cos, sin = (each.flatten(0, -2) for each in kwargs["position_embeddings"])
    return Angles(cos, sin, halved=halved)


def _first(result: Any) -> Tensor:
    found: Tensor = result[0] if isinstance(result, tuple) else result
    return found


def _count(found: Fusing, what: str, done: bool) -> None:
    (found.done if done else found.left)[what] += 1


def _taken(module: nn.Module) -> bool:
    """Whether other code has replaced its `forward`."""
    return "forward" in module.__dict__


def _replace(module: nn.Module, forward: Callable[..., Any]) -> None:
    module.__dict__[_FUSED] = True
    module.__dict__["forward"] = forward


def _release(module: nn.Module) -> None:
    if module.__dict__.pop(_FUSED, False):
        del module.forward
