"""Any Hugging Face causal language model, run on our own paged cache.

The model's own forward runs, head and all, so that what a family does to its logits (soft caps,
scales) is done by its own code. Only attention is ours (`attention.py`). What a model needs and
we cannot give is refused when it is loaded, never approximated: the model is probed with one
token, then compared with itself on its own attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from ..backends import backend_of, device_called
from ..backends.kernels import takes
from ..graph.errors import shortly
from ..graph.pieces import Pieces
from . import adapters as lora
from . import attention, compiled, fusing, latent, products, trial
from .attention import AttentionBatch
from .cache_dtype import CacheDType, CacheForm
from .compiled import LEAST, Compile, CompiledLayers
from .cutting import decoder_layers
from .errors import CompileFailed, ModelError, NotInvariant, UnsupportedModel
from .in_pieces import PassInPieces
from .invariant import least_tiles, make_invariant, undo_invariant, whole_tiles
from .memory import in_units
from .merging import merge as merged
from .paged_cache import PagedCache, bytes_per_block
from .placed import Placed, Placing
from .pretrained import load_model
from .recurrent import Mixers, RowStates, StatePass, bytes_per_version
from .rope import RowSpeeds, keep_dynamic, stretched, switch_length, undo_rope
from .sampling_defaults import sampling_defaults
from .source import EMBEDDED
from .support import own_code, plain_experts, refuse, windows
from .vision import Encoder, Pixels

DType = Literal["auto", "float32", "float64", "bfloat16", "float16"]


class _Given(NamedTuple):
    """What one pass computes on: T tokens, L of which have logits."""

    ids: Tensor  # [T]
    positions: Tensor  # [T]
    logit_rows: Tensor | None = None  # [L]; None: all
    long: Tensor | None = None  # [T]
    adapters: Tensor | None = None  # [T]
    arrived: Tensor | None = None  # [T, F]
    axes: Tensor | None = None  # [T, 3]: what is added to each position, by axis

    def on_axes(self) -> Tensor:
        """Position ids `[1, T]`, or `[3, 1, T]` where each axis has its own."""
        if self.axes is None:
            return self.positions[None]
        return (self.positions[:, None] + self.axes).clamp(min=0).T[:, None]

    def padded(self, tokens: int) -> _Given:
        """The same for more tokens: zeros."""
        more = tokens - len(self.ids)
        if not more:
            return self
        of_tokens = {
            name: F.pad(each, (0, 0) * (each.dim() - 1) + (0, more))
            for name, each in self._asdict().items()
            if each is not None and name != "logit_rows"
        }
        return self._replace(**of_tokens)


def on_device(model: PreTrainedModel, name: str | Path, place: torch.device) -> PreTrainedModel:
    """The model, put there. Raises `ModelError`."""
    try:
        nn.Module.to(model, place)
    except (RuntimeError, AssertionError, MemoryError) as error:
        raise ModelError(
            f"{name}: its weights cannot be put on device {str(place)!r}: {shortly(error)}"
        ) from error
    return model


class CausalLM:
    """A decoder whose keys and values live in a `PagedCache`.

    The Hugging Face model is taken over: its attention, what is merged or compiled, and in
    invariant mode its linear layers, are replaced in place. Do not share it between two
    `CausalLM`s of different modes.

    A forward pass must not run in two threads at once. Raises `UnsupportedModel`, or another
    `ModelError`, for a model that cannot be served exactly.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        invariant: bool,
        compile: Compile = "off",
        merge: bool | None = None,
        cache_form: CacheForm = "auto",
    ) -> None:
        self.hf = model
        self.cache_form = cache_form
        self.name = type(model).__name__
        self.invariant = invariant
        self.compile = compile
        self.merge = compile != "off" if merge is None else merge
        self.notes: tuple[str, ...] = ()
        if invariant and (compile != "off" or self.merge):
            raise ModelError(
                f"{self.name}: in invariant arithmetic a model is neither compiled nor merged, "
                "since both choose their own order of sums; say invariant false too"
            )
        self._compiled: CompiledLayers | None = None
        self._least = 1
        self.config = model.config.get_text_config(decoder=True)
        self.mixers = Mixers(model)
        self.attending: tuple[int, ...] = ()  # the layers that call attention
        refuse(model, self.config, keeps_states=bool(self.mixers))
        if self.mixers:
            self._require_plain_arithmetic()
        self.encoder = Encoder.of(model)
        if self.encoder is not None:
            self._require_plain_layers()
        self._base = model.base_model
        if self._base is model:
            raise UnsupportedModel(f"{self.name} has no base model apart from its head")
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._hidden: Tensor | None = None
        self._watched: tuple[int, ...] | None = None
        self._streams: dict[int, Tensor] = {}
        self.record_features(None)
        model.train(False)
        model.requires_grad_(False)
        lora.undo(model)
        self.adapters: lora.Adapters | None = None
        self._placing = self._new_placing()
        undo_invariant(model)
        products.undo(model)
        latent.undo(model)
        undo_rope(model)
        keep_dynamic(model, self.config)
        self.rope_switch = self._rope_switch()
        self._speeds = None if self.rope_switch is None else RowSpeeds(model, self.rope_switch)
        compiled.undo(model)
        fusing.undo(model)
        grouped = compile != "off" and self.dtype != torch.float64
        if invariant or (backend_of(self.device).on_host and not grouped):
            plain_experts(model)
        with torch.no_grad(), own_code(self.name):
            expected = trial.own(self)
            if self.merge:
                self.notes += merged(self._decoding).notes()
            attention.register()
            model.set_attn_implementation(attention.NAME)
            if self.encoder is not None:
                self.encoder.attend()
            maps = () if cache_form == "expanded" else latent.keep_latents(model)
            self.layer_shapes = trial.layer_shapes(self)
            self._tell_latents(bool(maps))
            self._learn_states()
            if compile == "off":
                products.lay_out(model, leave=maps)
            if invariant:
                make_invariant(self._decoding)
            self._watch_hidden()
            plain = compile == "off" and not (invariant or self.mixers or self.encoder)
            if plain and takes(self.device, self.dtype):
                self.notes += self._fuse()
            if compile == "layer":
                here = self._decoder_layers()[self.layers.start : self.layers.stop]
                self._compiled = CompiledLayers(self.name, here)
            self._compare(expected)
        if self._compiled is not None:
            self.notes += (self._compiled.note,)

    def _new_placing(self) -> Placing | None:
        if self.encoder is None:
            return None
        first = self._decoder_layers()[: self.encoder.depth]
        return Placing(self._base, first, self.hidden_size)

    def _require_plain_arithmetic(self) -> None:
        """Of layers with states. Raises `NotInvariant`, `CompileFailed`, `UnsupportedModel`."""
        if self.invariant:
            raise NotInvariant(
                f"{self.name}: its layers keep states, whose arithmetic depends on how many tokens "
                "are computed at once. Load it with invariant=False (model.invariant: false)"
            )
        if self.compile != "off":
            raise CompileFailed(f"{self.name}: its layers keep states, and are not compiled")
        if self.in_stages:
            raise UnsupportedModel(f"{self.name}: layers that keep states run on one rank alone")

    def _require_plain_layers(self) -> None:
        """Of a model with an encoder. Raises `CompileFailed`, `UnsupportedModel`."""
        if self.compile != "off":
            raise CompileFailed(
                f"{self.name}: its layers take in what its encoder makes, and are not compiled"
            )
        if self.in_stages:
            raise UnsupportedModel(f"{self.name}: a model with an encoder runs on one rank alone")

    @property
    def _decoding(self) -> nn.Module:
        """All that computes on a batch: an encoder has one image at a time."""
        if self.encoder is None:
            return self.hf
        hf: Any = self.hf
        return nn.ModuleList([hf.get_decoder(), hf.get_output_embeddings()])

    def _learn_states(self) -> None:
        if self.mixers:
            ids = trial.token_ids(self)[None]
            given: dict[str, Any] = {"attention_mask": None, "paged": attention.LayerProbe()}
            self.mixers.learn(lambda: self.call(ids, **given))
            each = in_units(self.state_bytes(1, 1))
            self.notes += (f"layers with states keep {each} for each row and draft",)

    def _tell_latents(self, there: bool) -> None:
        """Raises `UnsupportedModel` where there are none and they are asked for."""
        if there:
            each = bytes_per_block(self.layer_shapes, 1, self.dtype)
            self.notes += (f"keeps latents in place of keys and values: {each} bytes a token",)
        elif self.cache_form == "latent":
            raise UnsupportedModel(
                f"{self.name} has no latent attention, so no latents to keep; leave "
                "model.kv_cache_form out"
            )

    def _compare(self, expected: trial.Own) -> None:
        """And find the fewest rows of a pass. Raises `UnsupportedModel`, `NotInvariant`."""

        def attempt(least: int) -> None:
            self._least = least
            trial.compare(self, expected, self._compiled)

        tiles = least_tiles(self._decoding) if self.invariant else (1,)
        trial.first_invariant(tiles, attempt)

    def _fuse(self) -> tuple[str, ...]:
        """Run what stands between the products of its layers by kernels; notes for people."""
        here = self._decoder_layers()[self.layers.start : self.layers.stop]
        ids = trial.token_ids(self)[:3]
        positions = torch.arange(len(ids), device=self.device)

        def call(paged: Any) -> None:
            given = {"attention_mask": None, "paged": paged, "paged_invariant": False}
            self.call(ids[None], position_ids=positions[None], **given)

        try:
            return fusing.fuse(here, self._decoder() or self._base, call).notes()
        except Exception as error:  # of a kernel that does not compile for this device
            fusing.undo(self.hf)
            return (f"fused no layer: {shortly(error)}",)

    @classmethod
    def load(
        cls,
        name_or_path: str | Path,
        *,
        dtype: DType = "auto",
        device: torch.device | str = "cpu",
        invariant: bool = True,
        compile: Compile = "off",
        merge: bool | None = None,
        cache_form: CacheForm = "auto",
        shards: int = 1,
    ) -> CausalLM:
        """Load a directory, a hub name, or `"embedded"` / `"embedded-draft"`.

        Local files first, then the hub. Weights must be safetensors and code must be that of
        the installed transformers: a model is data, not a program. `dtype="auto"` takes what
        the checkpoint says, and float32 for the embedded models. With `invariant`, a token's
        logits have the same bits in every batch, chunk and draft window; it is meant for CPU and
        costs speed.

        Without it, `compile="layer"` compiles the decoder layers now (`compiled.py`; seconds), and
        `merge` makes one product of those that take the same input (`merging.py`; None: if
        compiled). `notes` say what was done. Raises `CompileFailed` if a layer cannot be compiled.

        `cache_form` says whether a model with latent attention keeps latents (`latent.py`); others
        have none.

        With `shards` > 1 this process is one of as many ranks of torch.distributed, and has a part
        of each layer (`sharding.py`). Raises `UnsupportedModel` for a model that cannot be divided.
        """
        if dtype == "auto" and str(name_or_path) in EMBEDDED:
            dtype = "float32"
        wanted: torch.dtype | str = "auto" if dtype == "auto" else getattr(torch, dtype)
        place = device_called(str(device))
        loaded = load_model(name_or_path, wanted, shards=shards)
        model = on_device(loaded, name_or_path, place)
        try:
            how: Any = {"compile": compile, "merge": merge, "cache_form": cache_form}
            found = cls(model, invariant=invariant, **how)
            if shards > 1 and found.keeps_states:
                raise UnsupportedModel(
                    f"{found.name}: layers that keep states run on one rank alone"
                )
            return found
        except ModelError as error:
            raise type(error)(f"{name_or_path}: {error}") from error

    @classmethod
    def wrap(
        cls,
        hf_model: PreTrainedModel,
        *,
        invariant: bool = True,
        compile: Compile = "off",
        merge: bool | None = None,
        cache_form: CacheForm = "auto",
    ) -> CausalLM:
        """Take over a model that is already built, such as a small random one in a test."""
        return cls(
            hf_model, invariant=invariant, compile=compile, merge=merge, cache_form=cache_form
        )

    # --- what it is

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return int(self.config.vocab_size)

    @property
    def checkpoint(self) -> str:
        """The folder or hub name that it was loaded from. Raises `ModelError` if it was not."""
        found = self.hf.config.name_or_path
        if not found:
            raise ModelError(
                f"{self.name} was not loaded from a checkpoint, so it has no files beside its "
                "weights; load it from a folder or the hub"
            )
        return str(found)

    @property
    def context_length(self) -> int:
        """Positions the model was made for: prompt and output of a request together."""
        return max(int(self.config.max_position_embeddings), stretched(self.config) or 0)

    def _rope_switch(self) -> int | None:
        try:
            return switch_length(self.config)
        except UnsupportedModel as error:
            raise UnsupportedModel(f"{self.name} cannot be served: {error}") from error

    @property
    def sliding_window(self) -> int | None:
        """How far back any layer looks, itself included; None if one looks back to the start."""
        every = windows(self.config).values()
        known = [window for window in every if window is not None]
        return max(known) if known and len(known) == len(every) else None

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a text; more than one in chat models, none in some toys."""
        found: set[int] = set()
        for config in (self.hf.generation_config, self.config):
            ids = getattr(config, "eos_token_id", None)
            found |= set() if ids is None else {ids} if isinstance(ids, int) else set(ids)
        return frozenset(found)

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """How its authors have tokens drawn, as parameters of requests that nobody has checked."""
        return sampling_defaults(self.hf.generation_config)

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states that `forward` returns."""
        return int(self.config.hidden_size)

    @property
    def num_layers(self) -> int:
        """Layers of the model, each with a cache of its own."""
        return int(self.config.num_hidden_layers)

    @property
    def layers(self) -> range:
        """Those that are here: all of them, but for a stage of a model."""
        return range(self.num_layers)

    @property
    def in_stages(self) -> bool:
        """Whether this is one stage of a model, and other ranks have the others."""
        return False

    @property
    def adapter_numbers(self) -> Mapping[str, int]:
        """The numbers of its adapters, by name: 1 and up."""
        return {} if self.adapters is None else self.adapters.numbers

    @property
    def makes_logits(self) -> bool:
        """Whether the output layer is here: not on early stages of a model."""
        return True

    @property
    def arrives(self) -> int:
        """Numbers per token that come from another stage of the model."""
        return 0

    @property
    def departs(self) -> int:
        """Numbers per token that are handed on to another stage of the model."""
        return 0

    @property
    def entrance(self) -> nn.Module:
        """The module whose result is the first that is computed with."""
        found: nn.Module = self.hf.get_input_embeddings()
        return found

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, hidden states and cache."""
        dtype: torch.dtype = self.hf.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """Where weights, cache and inputs live."""
        return torch.device(self.hf.device)

    def new_cache(
        self, num_blocks: int, block_size: int, cache_dtype: CacheDType = "auto"
    ) -> PagedCache:
        """A zeroed cache of `num_blocks` blocks, scratch block 0 included."""
        return PagedCache(
            self.layer_shapes,
            num_blocks,
            block_size,
            self.dtype,
            self.device,
            lookback=self.sliding_window,
            first_layer=self.layers.start,
            cache_dtype=cache_dtype,
        )

    def new_states(self, slots: int, versions: int) -> RowStates | None:
        """Zeroed states of so many request slots, for windows of `versions` tokens; None: its
        layers keep none.
        """
        if not self.mixers:
            return None
        return RowStates(self.mixers.shapes, slots, versions, self.device)

    def state_bytes(self, slots: int, versions: int) -> int:
        """Memory of what `new_states` makes of so many, in bytes."""
        return slots * versions * bytes_per_version(self.mixers.shapes)

    @property
    def encoded_width(self) -> int:
        """Numbers of a row that its encoder makes; 0: it has none, and reads text alone."""
        return 0 if self.encoder is None else self.encoder.width

    def encode(self, image: Pixels) -> Tensor:
        """The rows of an image, `[tokens, encoded_width]`; another thread may run a pass meanwhile.

        Raises `UnsupportedModel` without an encoder.
        """
        if self.encoder is None:
            raise UnsupportedModel(f"{self.name} reads text alone")
        with torch.no_grad():
            return self.encoder.encode(image)

    @property
    def keeps_states(self) -> bool:
        """Whether some of its layers keep a state of each text, which cannot be cut like keys."""
        return bool(self.mixers)

    # --- what it does

    def call(self, ids: Tensor, arrived: Tensor | None = None, **given: Any) -> Any:
        """What the model's own forward makes of `ids[1, T]`: an output with `logits[1, T', V]`.

        `arrived[T, F]` is for stages of a model alone.
        """
        if "inputs_embeds" not in given:
            given["input_ids"] = ids
        return self.hf(use_cache=False, **given)

    def forward(
        self,
        input_ids: Tensor,
        batch: AttentionBatch,
        logit_rows: Tensor | None = None,
        arrived: Tensor | None = None,
        adapters: Tensor | None = None,
        states: StatePass | None = None,
        pieces: Pieces | None = None,
        axes: Tensor | None = None,
        placed: Placed | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One pass over `input_ids[T]`: logits `[L, V]` and hidden states `[T, H]`.

        `logit_rows[L]` are indices into the T tokens, on the device; None means all of them.
        Hidden states are those the head sees (after the last norm), for every token, unless
        `record_features` asked for others. Logits are in the model's precision: who computes with
        them widens those that he needs.
        Masked tokens may hold any id: they are computed as token 0. Of a compiled model, results
        are tensors of inference mode. `arrived[T, F]` is for stages of a model alone.
        `adapters[T]`: the number of each token's adapter, by `adapt`; None: of the base model all.
        `states`: of the rows, where layers keep some (`new_states`). `pieces`: what may record the
        pass by its numbers of tokens and of logits, attention apart. `axes[3, T]`: what is added to
        each token's position on each axis, for a model with such; None: nothing. `placed`: rows
        that its encoder has made, in the place of tokens; such a pass is not recorded.
        """
        if self.mixers:
            if states is None:
                raise UnsupportedModel(f"{self.name}: its layers keep states, and no pass has them")
            self.mixers.begin(states, batch.positions, batch.tree)
        with torch.no_grad() if self._compiled is None else torch.inference_mode():
            return self._forward(
                input_ids, batch, logit_rows, arrived, adapters, pieces, axes, placed
            )

    def _forward(
        self,
        input_ids: Tensor,
        batch: AttentionBatch,
        logit_rows: Tensor | None,
        arrived: Tensor | None,
        adapters: Tensor | None,
        pieces: Pieces | None,
        axes: Tensor | None,
        placed: Placed | None,
    ) -> tuple[Tensor, Tensor]:
        batch.begin()
        tokens = len(input_ids)
        ids, positions = input_ids, batch.positions
        if batch.masked:
            ids, positions = ids.masked_fill(positions < 0, 0), positions.clamp(min=0)
        by_token = None if axes is None else axes.T
        given = _Given(ids, positions, logit_rows, batch.long, adapters, arrived, by_token)
        found = None
        if pieces is not None and placed is None:
            found = self._in_pieces(pieces, given, batch)
        if found is None:
            found = self._pass(given.padded(self._least_tokens(tokens)), batch, placed)
        logits, hidden = found
        return logits[: tokens if logit_rows is None else len(logit_rows)], hidden[:tokens]

    def _least_tokens(self, tokens: int) -> int:
        """With how many a pass over so many tokens is computed."""
        if self.invariant:
            return whole_tiles(tokens, self._least)
        return max(tokens, LEAST if self._compiled is not None else 0)

    def _in_pieces(
        self, pieces: Pieces, given: _Given, batch: AttentionBatch
    ) -> tuple[Tensor, Tensor] | None:
        """`_pass`, recorded; None where it is not: layers with states know their rows."""
        if self.mixers or given.logit_rows is None:
            return None
        there = {name: each for name, each in given._asdict().items() if each is not None}
        rows = there.pop("logit_rows")
        in_pieces = PassInPieces(self._watched, self._recorded, self._least_tokens)
        return in_pieces.run(pieces, there, rows, batch)

    def _recorded(
        self, tensors: Mapping[str, Tensor], logit_rows: Tensor | None, batch: AttentionBatch
    ) -> tuple[Tensor, Tensor]:
        return self._pass(_Given(**tensors, logit_rows=logit_rows), batch)

    def _pass(
        self, given: _Given, batch: AttentionBatch, placed: Placed | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits `[L, V]` and hidden states `[T, F]` of all that is given."""
        keep: dict[str, Any] = {}
        if self._keeps_logits and given.logit_rows is not None:
            keep["logits_to_keep"] = given.logit_rows
        self._choose_speeds(given.long, len(given.ids))
        if self.adapters is not None:
            self.adapters.choose(given.adapters)
        try:
            if placed is not None:
                assert self._placing is not None, "only a model with an encoder has what it made"
                keep["inputs_embeds"] = self._placing.begin(self.entrance(given.ids[None]), placed)
            output = self.call(
                given.ids[None],
                given.arrived,
                position_ids=given.on_axes(),
                attention_mask=None,
                paged=batch,
                paged_invariant=self.invariant,
                **keep,
            )
        finally:  # or what belongs to this pass would be there in the next one
            if self._placing is not None:
                self._placing.end()
            if self._speeds is not None:
                self._speeds.long = None
            self.mixers.end()
        trial.require_every_layer(self.name, batch.calls, self.attending)
        logits: Tensor = output.logits[0]
        if given.logit_rows is not None and "logits_to_keep" not in keep:
            logits = logits[given.logit_rows]
        hidden, self._hidden = self._hidden, None
        if self._watched is not None:
            hidden = self._features(self._watched)
        if hidden is None:
            raise UnsupportedModel(f"{self.name}: cannot tell its last hidden states")
        return logits, hidden[0]

    def _choose_speeds(self, long: Tensor | None, tokens: int) -> None:
        if self._speeds is None:
            return
        if long is None:
            long = torch.zeros(tokens, dtype=torch.bool, device=self.device)
        self._speeds.long = long

    @property
    def watched(self) -> tuple[int, ...] | None:
        """The layers that `record_features` was last asked for."""
        return self._watched

    def record_features(self, layers: Sequence[int] | None) -> None:
        """Choose the hidden states that `forward` returns; None: those after the last norm.

        With layers, they are `[T, H · len(layers)]`: what enters each of these decoder layers, in
        the order given, where the number of layers stands for what leaves the last one, before
        the final norm (the convention of EAGLE-3, arXiv:2503.01840). Raises `ModelError` for an
        index out of range, and `UnsupportedModel` if the decoder layers cannot be found.
        """
        decoder = self._decoder_layers() if layers is not None else ()
        for layer in layers or ():
            if not 0 <= layer <= len(decoder):
                raise ModelError(
                    f"{self.name}: asked for the hidden states at layer {layer}; it has layers 0 "
                    f"to {len(decoder) - 1}, and {len(decoder)} stands for what leaves the last"
                )
        if layers is not None and not layers:
            raise ModelError(f"{self.name}: asked for the hidden states of no layer at all")
        for handle in self._base.__dict__.pop("_stepweave_streams", ()):
            handle.remove()
        self._watched = None if layers is None else tuple(layers)
        self._base.__dict__["_stepweave_streams"] = self._watch_layers(sorted(set(layers or ())))

    def _watch_layers(self, layers: Sequence[int]) -> list[torch.utils.hooks.RemovableHandle]:
        decoder = self._decoder_layers() if layers else ()
        return [self._keep_stream(decoder, layer) for layer in layers]

    def _decoder_layers(self) -> Sequence[nn.Module]:
        return list(decoder_layers(self.hf))

    def _keep_stream(
        self, decoder: Sequence[nn.Module], layer: int
    ) -> torch.utils.hooks.RemovableHandle:
        def entering(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._streams[layer] = args[0] if args else kwargs["hidden_states"]

        def leaving(module: nn.Module, args: Any, output: Any) -> None:
            self._streams[layer] = output[0] if isinstance(output, tuple) else output

        if layer < len(decoder):
            return decoder[layer].register_forward_pre_hook(entering, with_kwargs=True)
        return decoder[-1].register_forward_hook(leaving)

    def _features(self, layers: tuple[int, ...]) -> Tensor:
        streams, self._streams = self._streams, {}
        for layer in layers:
            shape = tuple(streams[layer].shape) if layer in streams else None
            if shape is None or len(shape) != 3 or shape[-1] != self.hidden_size:
                raise UnsupportedModel(
                    f"{self.name}: at layer {layer} it has hidden states of shape {shape}, not "
                    f"[1, tokens, {self.hidden_size}]"
                )
        return torch.cat([streams[layer] for layer in layers], dim=-1)

    def _decoder(self) -> PreTrainedModel | None:
        """The part below the head, where that is not simply the base model."""
        found = getattr(self.hf, "get_decoder", lambda: None)()
        return found if isinstance(found, PreTrainedModel) else None  # some call their head so

    def _watch_hidden(self) -> None:
        """Keep what the outermost part below the head returns; some heads skip the base model."""
        parts = {self._base}
        if (decoder := self._decoder()) is not None:
            parts.add(decoder)
        for part in parts:
            if (hook := part.__dict__.pop("_stepweave_hook", None)) is not None:
                hook.remove()
            part.__dict__["_stepweave_hook"] = part.register_forward_hook(self._keep_hidden)

    def _keep_hidden(self, module: nn.Module, args: Any, output: Any) -> None:
        self._hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state
