"""A head on a paged cache of its own: drafts from the target's hidden states.

It is an EAGLE or EAGLE-3 head, or a module that predicts further tokens (`mtp_network.py`), whose
passes are the same. Of several such modules the first is the head, and has the others `further`;
all keep their keys in its cache, in layers of their own.

The head at position t is given the target's features of token t and the *next* token, t + 1. It
rotates by t, keeps its key and value in the slot of position t, and its logits are of token t + 2.
The caller shifts: ids here are already those of the next positions. To draft further, the hidden
states that a pass returned take the place of fused features in the next one.

What the styles compute is in `eagle_network.py` and `mtp_network.py`, what files hold in
`eagle_checkpoint.py` and `mtp_checkpoint.py`.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..backends.kernels import takes
from ..graph.errors import StepweaveError, shortly
from ..graph.pieces import Pieces
from .attention import AttentionBatch, InGraph, paged_attention
from .cache_dtype import CacheDType
from .causal_lm import CausalLM, DType
from .compiled import LEAST, Compile, CompiledLayers
from .eagle_checkpoint import build, read
from .eagle_fused import FusedHead
from .eagle_network import EagleNetwork
from .errors import ModelError, NotInvariant
from .fused_parts import allowed, apart_by
from .heads import output_head
from .in_pieces import PassInPieces
from .invariant import least_tiles, make_invariant, whole_tiles
from .latent import keep_latents
from .merging import merge as merged
from .mtp_network import MtpNetwork, left_states
from .paged_cache import LayerShape, PagedCache
from .products import lay_out
from .sharding import whole
from .trial import TOKENS, TwoRows, first_invariant


class _Given(NamedTuple):
    """What one pass computes on."""

    ids: Tensor  # [T]
    positions: Tensor  # [T]
    hidden: Tensor  # [T, H]

    def padded(self, tokens: int) -> "_Given":
        """The same for more tokens: zeros."""
        more = tokens - len(self.ids)
        if not more:
            return self
        ids, positions = F.pad(self.ids, (0, more)), F.pad(self.positions, (0, more))
        return _Given(ids, positions, F.pad(self.hidden, (0, 0, 0, more)))


class EagleHead:
    """A drafter that reads the hidden states of its target.

    It uses the target's embedding (if it has none of its own) and, unless it has one, the target's
    output head, without a copy if the precision is the same. What the target's own code does to
    its logits (soft caps, scales) is not done to drafts. `network` is taken over; with
    `invariant` its linear layers are replaced in place.

    A forward pass must not run in two threads at once. Raises `ModelError` for options that do not
    go together.
    """

    keeps_states = False
    """As of `CausalLM`: of its layers none does."""

    def __init__(
        self,
        network: EagleNetwork | MtpNetwork,
        target: CausalLM,
        draft_ids: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
        invariant: bool | None = None,
        compile: Compile | None = None,
        merge: bool | None = None,
        further: Sequence["EagleHead"] = (),
    ) -> None:
        """`draft_ids[draft vocabulary]` are the target's tokens; None: all, in order. `further`:
        the modules that draft after this one, in order.

        By default precision, invariance and what is compiled and merged are as in the target.
        """
        self.config, self.further = network.config, tuple(further)
        self.name = f"{self.config.style} head of {target.name}"
        self.dtype = target.dtype if dtype is None else dtype
        self.device = target.device
        self.invariant = target.invariant if invariant is None else invariant
        self.vocab_size = target.vocab_size
        compile = target.compile if compile is None else compile
        merge = target.merge if merge is None else merge
        if self.invariant and (compile != "off" or merge):
            raise ModelError(f"{self.name}: invariant, it can be neither compiled nor merged")
        for parameter in network.parameters():  # but not the rope's speeds: angles are large
            parameter.data = parameter.data.to(self.dtype)
        self.network = network.to(self.device).train(False).requires_grad_(False)
        self.draft_ids = None if draft_ids is None else draft_ids.to(self.device)
        hf: Any = target.hf
        part = self.network.embed_tokens if self.config.own_embedding else hf.get_input_embeddings()
        self._embedding: Tensor = whole(part.weight.detach()).to(self.dtype)
        # A table, since computing them for a token takes as many operations as its attention.
        every = torch.arange(self.context_length, device=self.device)
        cos, sin = self.network.angles(self._embedding[:1], every[None])
        self._angles = torch.stack([cos[0], sin[0]], dim=1)  # [C, 2, D]
        self._output: nn.Module | None = None
        if self.config.shares_output:
            self._output = output_head(target, self.dtype)
        self.notes = tuple(f"head: {note}" for note in merged(network).notes()) if merge else ()
        self._fused: FusedHead | None = None
        self._compiled: CompiledLayers | None = None
        maps = () if target.cache_form == "expanded" else keep_latents(self.network)
        if compile == "layer":
            layers = list(self.network.layers)
            self._compiled = CompiledLayers(self.name, layers, keyword="attend")
        if compile == "off":
            lay_out(self.network, leave=maps)
        self._least = 1
        if self.invariant:
            make_invariant(self.network)
            if self._output is not None:
                make_invariant(self._output)
            parts = (self.network, *([] if self._output is None else [self._output]))
            first_invariant(least_tiles(*parts), self._check)
        elif self._compiled is not None:
            self._check(1)
        elif self.network.fusible and takes(self.device, self.dtype):
            self._fuse()
        if self._compiled is not None:
            self.notes += (f"head: {self._compiled.note}",)

    @classmethod
    def load(
        cls,
        name_or_path: str | Path,
        target: CausalLM,
        *,
        dtype: DType = "auto",
        invariant: bool | None = None,
        compile: Compile | None = None,
        merge: bool | None = None,
    ) -> "EagleHead":
        """Load `"embedded-eagle"`, `"embedded-eagle3"`, a directory or a hub name, for a target.

        Local files first; safetensors only. `dtype="auto"` and None are what the target has.
        Raises `ModelError` if the head does not fit the target, naming the key.
        """
        try:
            network, draft_ids = build(read(name_or_path), target)
            return cls(
                network,
                target,
                draft_ids,
                dtype=None if dtype == "auto" else getattr(torch, dtype),
                invariant=invariant,
                compile=compile,
                merge=merge,
            )
        except StepweaveError:
            raise
        except Exception as error:  # of the library's layers, for numbers that make no sense
            raise ModelError(
                f"{name_or_path}: its config.json describes no EAGLE head: {shortly(error)}"
            ) from error

    # --- what it is

    @property
    def style(self) -> str:
        """Which of the papers: "eagle", "eagle3" or "mtp"."""
        return self.config.style

    @property
    def feature_layers(self) -> tuple[int, ...] | None:
        """What the target must record; None: its last hidden state."""
        return self.config.feature_layers

    @property
    def feature_size(self) -> int:
        """Width of the features that `fuse` takes."""
        return self.config.feature_size

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states that `forward` takes and returns."""
        return self.config.hidden_size

    @property
    def context_length(self) -> int:
        """Positions the head was made for."""
        return self.config.context_length

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        """Of its cache: its layers and those of further modules, then what each module but the last
        leaves for the next.
        """
        layers = [shape for each in self.modules for shape in each.network.layer_shapes]
        return (*layers, *[left_states(self.hidden_size)] * len(self.further))

    @property
    def modules(self) -> tuple["EagleHead", ...]:
        """This one, and those that draft after it."""
        return (self, *self.further)

    @property
    def left_layers(self) -> range:
        """Layers of its cache with the hidden states that modules leave for the next."""
        count = len(self.layer_shapes)
        return range(count - len(self.further), count)

    @property
    def num_layers(self) -> int:
        """Layers with a cache of their own."""
        return len(self.layer_shapes)

    def new_cache(
        self, num_blocks: int, block_size: int, cache_dtype: CacheDType = "auto"
    ) -> PagedCache:
        """A zeroed cache of `num_blocks` blocks, scratch block 0 included."""
        # A key is made with the token after its own; one of a further module with a later one.
        return PagedCache(
            self.layer_shapes,
            num_blocks,
            block_size,
            self.dtype,
            self.device,
            tail=len(self.modules),
            first_layer=self.network.first_layer,
            cache_dtype=cache_dtype,
        )

    # --- what it does

    @torch.no_grad()
    def fuse(self, features: Tensor) -> Tensor:
        """From the target's `features[T, F]` to hidden states `[T, H]` for `forward`."""
        return self.network.fuse(features.to(self.dtype))

    def forward(
        self,
        ids: Tensor,
        hidden: Tensor,
        batch: AttentionBatch,
        logit_rows: Tensor | None = None,
        pieces: Pieces | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One pass: logits `[L, V]` over the target's vocabulary, and hidden states `[L, H]`.

        `ids[T]` are the tokens *after* the positions of the batch, `hidden[T, H]` what `fuse` or
        the pass before returned for them. `logit_rows[L]` are indices into the T tokens, on the
        device; None means all. Logits are float32, or float64 in a float64 head, and -inf for
        tokens that the head cannot draft. Masked tokens may hold anything. `pieces`: what may
        record the pass by its numbers of tokens and of logits, attention apart.
        """
        with torch.no_grad() if self._compiled is None else torch.inference_mode():
            return self._forward(ids, hidden, batch, logit_rows, pieces)

    def _forward(
        self,
        ids: Tensor,
        hidden: Tensor,
        batch: AttentionBatch,
        logit_rows: Tensor | None,
        pieces: Pieces | None,
    ) -> tuple[Tensor, Tensor]:
        batch.begin()
        if self._fused is not None:
            states, read = self._fused(ids, hidden.to(self.dtype), batch, logit_rows)
            return self._logits(read, normed=True), states
        given = self._given(ids, hidden, batch)
        if pieces is not None and self._compiled is None:
            in_pieces = PassInPieces(self.name, self._recorded, self._least_tokens)
            found = in_pieces.run(pieces, given._asdict(), logit_rows, batch)
            if found is not None:
                logits, out = found
                return logits, out if logit_rows is None else out.index_select(0, logit_rows)
        out = self._padded_states(given, batch)
        asked = out if logit_rows is None else out.index_select(0, logit_rows)
        return self._logits(asked), asked

    @torch.no_grad()
    def states(self, ids: Tensor, hidden: Tensor, batch: AttentionBatch) -> Tensor:
        """One pass of a module as by `forward`: hidden states `[T, H]` of `ids[T]` after
        `hidden[T, H]`, and no logits.
        """
        batch.begin()
        return self._padded_states(self._given(ids, hidden, batch), batch)

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """`[L, V]` of `states[L, H]` that a pass of this module returned."""
        return self._logits(states)

    def _given(self, ids: Tensor, hidden: Tensor, batch: AttentionBatch) -> _Given:
        """Of masked tokens something that can be computed with."""
        positions, hidden = batch.positions, hidden.to(self.dtype)
        if batch.masked:
            masked = positions < 0
            ids, positions = ids.masked_fill(masked, 0), positions.clamp(min=0)
            hidden = hidden.masked_fill(masked[:, None], 0)
        return _Given(ids, positions, hidden)

    def _least_tokens(self, tokens: int) -> int:
        """With how many a pass over so many tokens is computed."""
        if self.invariant:
            return whole_tiles(tokens, self._least)
        return max(tokens, LEAST if self._compiled is not None else 0)

    def _recorded(
        self, tensors: Mapping[str, Tensor], logit_rows: Tensor | None, batch: AttentionBatch
    ) -> tuple[Tensor, Tensor]:
        """Logits `[L, V]` of the rows that are asked for, and `[T, H]` of all that is given."""
        out = self._states(_Given(**tensors), batch)
        return self._logits(out if logit_rows is None else out.index_select(0, logit_rows)), out

    def _padded_states(self, given: _Given, batch: AttentionBatch) -> Tensor:
        """`[T, H]` of what is given, computed with as many tokens as a pass has at least."""
        tokens = len(given.ids)
        return self._states(given.padded(self._least_tokens(tokens)), batch)[:tokens]

    def _states(self, given: _Given, batch: AttentionBatch) -> Tensor:
        """`[T, H]` of all that is given."""
        attend = _Attend(batch, self.invariant)
        embeddings = F.embedding(given.ids, self._embedding)
        cos, sin = self._angles.index_select(0, given.positions).unbind(1)
        angles = (cos[None], sin[None])
        out: Tensor = self.network(embeddings[None], given.hidden[None], angles, attend)
        return out[0]

    def _logits(self, hidden: Tensor, *, normed: bool = False) -> Tensor:
        """`[L, V]` of `hidden[L, H]`; `normed`: as the output head reads them."""
        own = self.network.lm_head if normed and self._output is None else self.network.read_out
        logits: Tensor = (self._output or own)(hidden)
        if self.draft_ids is None:
            return logits
        if self._fused is not None:
            return self._fused.spread(logits)
        every = logits.new_full((len(logits), self.vocab_size), -torch.inf)
        return every.index_copy_(1, self.draft_ids, logits)

    def _fuse(self) -> None:
        """Run by kernels from here on, if they compute what the network's own code does."""
        assert isinstance(self.network, EagleNetwork), "only such layers are fusible"
        fused = FusedHead.of(
            self.network, self._embedding, self._angles, self.draft_ids, self.vocab_size
        )
        if fused is None:
            self.notes += ("head: fused no layer: a part of it is of no known form",)
            return
        count, rows = TOKENS, TwoRows(self, TOKENS)
        features = torch.linspace(-1, 1, count * self.feature_size, device=self.device)
        hidden = self.fuse(features.view(count, -1).sin())

        def run(fused: FusedHead | None, row: int) -> tuple[Tensor, Tensor]:
            self._fused, batch = fused, rows.batch((row, 0, count))
            return self.forward((batch.positions * 7 + 3) % self.vocab_size, hidden, batch)

        (wanted, states), (found, found_states) = run(None, 0), run(fused, 1)
        finite = wanted.isfinite()
        same = torch.equal(finite, found.isfinite()) and max(
            apart_by(wanted[finite], found[finite]), apart_by(states, found_states)
        ) <= allowed(self.dtype, parts=8 * self.num_layers)
        if not same:
            self._fused = None
        what = "fused the layers" if same else "fused no layer: its kernels give other results"
        self.notes += (f"head: {what}",)

    def _check(self, least: int) -> None:
        """Compare a pass with the same tokens in other company; compile, if that is wanted.

        `least` rows are the fewest of a pass.
        """
        self._least = least
        count, rows = TOKENS, TwoRows(self, TOKENS)
        features = torch.linspace(-1, 1, count * self.feature_size, device=self.device)
        fused = self.fuse(features.view(count, -1).sin())

        def run(*chunks: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
            batch = rows.batch(*chunks)
            ids = (batch.positions * 7 + 3) % self.vocab_size
            return self.forward(ids, fused[batch.positions], batch)

        with nullcontext() if self._compiled is None else self._compiled.warming():
            whole = run((0, 0, count))
        first, last = run((1, 0, count - 1)), run((1, count - 1, count))
        if self._compiled is not None:
            self._compiled.require_no_more()
            return
        mixed = run((0, 0, count), (1, count - 1, count))
        for alone, part, single, both in zip(whole, first, last, mixed, strict=True):
            again = (torch.cat([part, end]) for end in (single, both[count:]))
            if not all(torch.equal(each, alone) for each in (both[:count], *again)):
                raise NotInvariant(
                    f"{self.name}: a token's draft depends on the other tokens of its batch "
                    f"({self.dtype}, {self.device.type}, {torch.get_num_threads()} threads). "
                    "Load it with invariant=False"
                )


@dataclass(frozen=True)
class _Attend:
    """Paged attention as the network calls it."""

    paged: AttentionBatch | InGraph
    invariant: bool

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **asked: Any
    ) -> Tensor:
        mixed, _ = paged_attention(
            module,
            query,
            key,
            value,
            None,
            paged=self.paged,
            paged_invariant=self.invariant,
            **asked,
        )
        return mixed
