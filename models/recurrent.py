"""Layers that keep a state of their text in place of keys: convolutions, linear attention, Mamba.

The model's own code runs: a layer is handed a cache (the interface by which transformers gives such
layers their states) that holds the states of the rows at hand. What the layer leaves there is kept
in the request's slot. A state cannot be cut like keys, so drafts that are refused need the state
from before them: tokens that may be refused are computed one position after the other, and the
state after each of them is a *version*. Where the next pass begins says how many were accepted, and
so which version it goes on from; that is on the device alone. In a draft tree a token goes on from
the version of its parent, and the accepted path's versions are moved to the first ones.

Shapes: N rows of a pass, T tokens, S request slots, V versions, H width of the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from .errors import UnsupportedModel
from .memory import room_for
from .tree_rows import TreeRows, parents

_OWN = "_stepweave_own_mixer"
_CACHE_NAMES = ("cache_params", "past_key_values", "cache")
"""How transformers calls the parameter by which such a layer gets its states."""

Kind = tuple[str, int]
"""Which state of a layer: of its convolution or what recurs, and the number of it."""


@dataclass(frozen=True)
class StateShape:
    """What a layer keeps of a row: `shape`, without rows."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one version."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


Shapes = Mapping[int, Mapping[Kind, StateShape]]
"""By layer."""


class RowStates:
    """The states of all requests: by layer and kind `[S, V, ...]`, in S request slots.

    `base[S]`: at how many tokens of the text the first version stands; the others stand after one
    token more each.
    """

    fixed = True
    """Its tensors never move: captured graphs know it by identity."""

    def __init__(self, shapes: Shapes, slots: int, versions: int, device: torch.device) -> None:
        """Raises `NoMemory`."""
        self.versions = versions
        what = f"states of {slots} rows, {versions} versions each,"
        nbytes = slots * versions * bytes_per_version(shapes)
        with room_for(what, nbytes, device, "lower scheduler.max_rows"):
            self.kept = {
                layer: {
                    kind: torch.zeros(slots, versions, *each.shape, dtype=each.dtype, device=device)
                    for kind, each in kinds.items()
                }
                for layer, kinds in shapes.items()
            }
            self.base = torch.zeros(slots, dtype=torch.int64, device=device)

    def move(self, slots: Tensor, source: Tensor) -> None:
        """Put versions `source[R, n]` of the rows in `slots[R]` in the place of their first n.

        Raises nothing.
        """
        there = slots[:, None]
        to = torch.arange(source.shape[1], device=slots.device).expand_as(source)
        for kinds in self.kept.values():
            for each in kinds.values():
                each.index_put_((there, to), each[there, source])


def bytes_per_version(shapes: Shapes) -> int:
    """Memory of all states of one row, after one of its tokens."""
    return sum(each.nbytes for kinds in shapes.values() for each in kinds.values())


@dataclass(frozen=True)
class _Run:
    """Neighbouring rows of equally many tokens, computed together."""

    rows: slice
    tokens: slice
    count: int  # of rows
    length: int  # tokens of each
    versions: bool  # each token may be the last that counts
    parents: Tensor | None = None  # [count, length] which version each goes on from; None: the last


@dataclass(frozen=True, eq=False)
class StatePass:
    """What a pass must know of its rows: `slots[N]`, and how many tokens each has.

    The first `decodes` rows are those whose tokens may be refused.
    """

    states: RowStates
    slots: Tensor
    query_lens: tuple[int, ...]
    decodes: int


class Mixers:
    """The layers of a model that keep states; the model is changed in place.

    While a pass runs they go on from `begin` to `end` with the states of its rows; before that each
    is as it was. Raises nothing where there are none.
    """

    def __init__(self, model: nn.Module) -> None:
        undo(model)
        self._found = dict(_mixers(model))
        self._runs: list[_Run] = []
        self._pass: StatePass | None = None
        self.at: slice | None = None
        """Of the tokens of a pass those that a layer's own code is at; None: all."""
        self._versions = self._fresh = torch.empty(0)
        self.shapes: dict[int, dict[Kind, StateShape]] = {}
        for module, given in self._found.items():
            module.__dict__[_OWN] = True
            module.__dict__["forward"] = partial(self._forward, module.forward, module, given)

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def layers(self) -> frozenset[int]:
        """Those that have such a part; a layer may call attention too."""
        return frozenset(int(getattr(module, "layer_idx")) for module in self._found)  # noqa: B009

    def learn(self, call: Callable[[], object]) -> None:
        """Find the shapes of all states by a `call` of the model.

        Raises `UnsupportedModel` where a layer keeps none that it would hand over.
        """
        self._learning = True
        try:
            call()
        finally:
            self._learning = False
        if missing := sorted(self.layers - self.shapes.keys()):
            raise UnsupportedModel(
                f"layer {missing[0]} keeps a state that it does not hand over as the caches of "
                "transformers take it"
            )

    _learning = False

    def begin(self, given: StatePass, positions: Tensor, tree: TreeRows | None = None) -> None:
        """A pass over tokens at `positions[T]` begins: which versions its rows go on from.

        The first `tree.rows` are draft trees.
        """
        states, self._pass = given.states, given
        self._runs = list(_runs(given, tree))
        starts = torch.cat([positions[run.tokens][:: run.length] for run in self._runs])
        slots = given.slots
        ahead = starts - states.base.index_select(0, slots)
        self._versions = ahead.clamp(0, states.versions - 1)
        self._fresh = starts <= 0
        lengths = [starts[run.rows] + (1 if run.versions else run.length) for run in self._runs]
        states.base.index_copy_(0, slots, torch.cat(lengths))

    def end(self) -> None:
        """The pass is over."""
        self._pass = self.at = None

    def _forward(
        self, own: Callable[..., Any], module: nn.Module, name: str, *args: Any, **given: Any
    ) -> Any:
        for ours in ("paged", "paged_invariant"):
            given.pop(ours, None)
        hidden = args[0] if args else given.pop(_first_name(module))
        layer = int(getattr(module, "layer_idx"))  # noqa: B009
        if self._pass is None:
            cache = _Noted(self.shapes.setdefault(layer, {})) if self._learning else None
            return own(hidden, **{name: cache})
        kept = self._pass.states.kept[layer]
        out = torch.zeros_like(hidden)
        for run in self._runs:
            slots = self._pass.slots[run.rows]
            held = _Held(kept, slots, self._versions[run.rows], self._fresh[run.rows])
            part = hidden[0, run.tokens].view(run.count, run.length, -1)
            pieces = part.split(1, dim=1) if run.versions else (part,)
            made = []
            for version, piece in enumerate(pieces):
                if version and run.parents is not None:
                    held = _Held(kept, slots, run.parents[:, version])
                stride = run.length if run.versions else 1
                self.at = slice(run.tokens.start + version, run.tokens.stop, stride)
                made.append(own(piece, **{name: held}))
                held.keep(kept, slots, version)
            out[0, run.tokens] = torch.cat(made, dim=1).flatten(0, 1)
        self.at = None
        return out


class _StateCache:
    """What transformers asks a cache for states: here those of the rows at hand, of one layer."""

    def __init__(self, states: dict[Kind, Tensor]) -> None:
        self._states = states

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._states.get(("conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._states.get(("recurrent", state_idx))

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int = 0) -> bool:
        return bool(self._states)

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    @property
    def layers(self) -> _AnyLayer:
        return _AnyLayer(self._states)


class _AnyLayer:
    """The layers of a cache, of which there is one: before transformers 5.23 models look inside."""

    record_past = False

    def __init__(self, states: Mapping[Kind, Tensor]) -> None:
        self.conv_states = {at: each for (what, at), each in states.items() if what == "conv"}
        self.recurrent_states = {
            at: each for (what, at), each in states.items() if what == "recurrent"
        }

    def __getitem__(self, layer_idx: int) -> _AnyLayer:
        return self


class _Noted(_StateCache):
    """Has no states, and notes what a layer would keep."""

    def __init__(self, shapes: dict[Kind, StateShape]) -> None:
        super().__init__({})
        self._shapes = shapes

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
    ) -> Tensor:
        width = conv_states.shape[-1] if conv_kernel_size is None else conv_kernel_size
        shape = (*conv_states.shape[1:-1], width)
        self._shapes["conv", state_idx] = StateShape(shape, conv_states.dtype)
        return conv_states

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0
    ) -> Tensor:
        shape = tuple(recurrent_states.shape[1:])
        self._shapes["recurrent", state_idx] = StateShape(shape, recurrent_states.dtype)
        return recurrent_states


class _Held(_StateCache):
    """The states of some rows, copied, so that the layer's own code may change them."""

    def __init__(
        self,
        kept: Mapping[Kind, Tensor],
        slots: Tensor,
        versions: Tensor,
        fresh: Tensor | None = None,
    ) -> None:
        """The text of a `fresh[R]` row begins here, with states of zeros; None: of no row."""
        held = {kind: each[slots, versions] for kind, each in kept.items()}
        if fresh is not None:
            held = {
                kind: each.masked_fill(fresh.view(-1, *[1] * (each.dim() - 1)), 0)
                for kind, each in held.items()
            }
        super().__init__(held)

    def keep(self, kept: Mapping[Kind, Tensor], slots: Tensor, version: int) -> None:
        """Store what the layer has left, as a version of the rows in `slots[R]`."""
        for kind, each in kept.items():
            each[:, version].index_copy_(0, slots, self._states[kind].to(each.dtype))

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
    ) -> Tensor:
        before = self._states["conv", state_idx]
        whole = torch.cat([before.to(conv_states.dtype), conv_states], dim=-1)
        self._states["conv", state_idx] = whole[..., -before.shape[-1] :]
        return whole

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0
    ) -> Tensor:
        self._states["recurrent", state_idx] = recurrent_states
        return recurrent_states


def undo(model: nn.Module) -> None:
    """Give every such layer its own code back."""
    for module in model.modules():
        if module.__dict__.pop(_OWN, None) is not None:
            del module.forward


def _mixers(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Modules with a layer's number and a convolution, and how each calls its cache."""
    for module in model.modules():
        if not isinstance(getattr(module, "layer_idx", None), int):
            continue
        if not any(isinstance(child, nn.Conv1d) for child in module.children()):
            continue
        names = inspect.signature(module.forward).parameters
        if (found := next((name for name in _CACHE_NAMES if name in names), None)) is not None:
            yield module, found


def _first_name(module: nn.Module) -> str:
    _, first, *_ = inspect.signature(type(module).forward).parameters
    return first


def _runs(given: StatePass, tree: TreeRows | None) -> Iterator[_Run]:
    row = token = 0
    trees = 0 if tree is None else tree.rows
    kinds: Sequence[tuple[int, bool, bool]] = [
        (length, index < given.decodes, index < trees)
        for index, length in enumerate(given.query_lens)
    ]
    for (length, versions, branches), same in groupby(kinds):
        count = len(list(same))
        rows, tokens = slice(row, row + count), slice(token, token + count * length)
        above = None
        if versions and branches and tree is not None:
            above = parents(tree.bits[tokens].view(count, length))
        yield _Run(rows, tokens, count, length, versions, above)
        row, token = rows.stop, tokens.stop
