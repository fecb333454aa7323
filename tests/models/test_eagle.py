"""EAGLE heads in both published layouts say what a plain reading of the papers says."""

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stepweave.models import eagle, head_files, source
from stepweave.models.attention import AttentionBatch, paged_attention
from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.errors import ModelError, ModelNotFound, NotInvariant, UnsupportedModel
from stepweave.models.paged_cache import LayerShape
from stepweave.models.tokenizer import load_tokenizer
from stepweave.testing.engines import tiny_pair
from stepweave.testing.models import tiny_eagle, tiny_model
from tests.models.paged_rows import own_greedy
from training.corpus import EXTRACTION, examples, story

VOCAB, SIZE, HEADS, KV_HEADS, WIDTH, INNER = 96, 48, 4, 2, 16, 80
EPSILON, THETA = 1e-5, 50_000.0
EOS = 2  # of the embedded model


# --- checkpoints as they are published


@dataclass(frozen=True)
class Layout:
    """One way in which heads are written."""

    style: Literal["eagle", "eagle3"]
    layers: int = 1
    middle: str = "midlayer"  # what EAGLE-3's layer is called
    draft_vocab: int | None = None  # None: all of it, without d2t
    biased: tuple[str, ...] = ()
    own_embedding: bool = False
    aux: tuple[int, ...] | None = (2, 0, 3)
    config: dict[str, Any] = field(default_factory=dict)


LAYOUTS = {
    "eagle": Layout("eagle", biased=("fc",)),
    "eagle, two layers": Layout("eagle", layers=2, own_embedding=True),
    "eagle, biases": Layout("eagle", biased=("fc", "q_proj", "k_proj", "v_proj", "o_proj")),
    "eagle3": Layout("eagle3", draft_vocab=60),
    "eagle3, converted": Layout(
        "eagle3",
        middle="model.layers.0",
        draft_vocab=60,
        own_embedding=True,
        aux=(1, 3),
        config={"rope_scaling": {"type": "linear", "factor": 2.0}},
    ),
    "eagle3, all tokens": Layout(
        "eagle3",
        config={"norm_before_residual": True, "attention_bias": True},
        biased=("q_proj", "k_proj", "v_proj", "up_proj", "gate_proj", "down_proj"),
    ),
}


def weights_of(layout: Layout, seed: int = 0) -> dict[str, Tensor]:
    """Random weights under the names of the published files."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Tensor] = {}

    def matrix(name: str, outputs: int, inputs: int) -> None:
        found[f"{name}.weight"] = (
            torch.randn(outputs, inputs, generator=generator, dtype=torch.float64) * inputs**-0.5
        )
        if name.split(".")[-1] in layout.biased:
            found[f"{name}.bias"] = torch.randn(outputs, generator=generator, dtype=torch.float64)

    def norm(name: str) -> None:
        found[f"{name}.weight"] = 0.5 + torch.rand(SIZE, generator=generator, dtype=torch.float64)

    eagle3 = layout.style == "eagle3"
    matrix("fc", SIZE, SIZE * (len(layout.aux or (0, 0, 0)) if eagle3 else 2))
    for index in range(layout.layers):
        layer = layout.middle if eagle3 else f"layers.{index}"
        inputs = 2 * SIZE if eagle3 else SIZE
        for name, outputs in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            matrix(f"{layer}.self_attn.{name}_proj", outputs * WIDTH, inputs)
        matrix(f"{layer}.self_attn.o_proj", SIZE, HEADS * WIDTH)
        matrix(f"{layer}.mlp.gate_proj", INNER, SIZE)
        matrix(f"{layer}.mlp.up_proj", INNER, SIZE)
        matrix(f"{layer}.mlp.down_proj", SIZE, INNER)
        norm(f"{layer}.post_attention_layernorm")
        if eagle3 or index > 0:
            norm(f"{layer}.input_layernorm")
        if eagle3:
            norm(f"{layer}.hidden_norm")
    if layout.own_embedding:
        found["embed_tokens.weight"] = torch.randn(
            VOCAB, SIZE, generator=generator, dtype=torch.float64
        )
    if eagle3:
        norm("norm")
        matrix("lm_head", layout.draft_vocab or VOCAB, SIZE)
        if layout.draft_vocab is not None:
            mine = torch.randperm(VOCAB, generator=generator)[: layout.draft_vocab].sort().values
            found["d2t"] = mine - torch.arange(layout.draft_vocab)
            found["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, mine, True)
    return found


def config_of(layout: Layout) -> dict[str, Any]:
    stated: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": SIZE,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": WIDTH,
        "num_hidden_layers": layout.layers,
        "max_position_embeddings": 128,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "hidden_act": "silu",
        **layout.config,
    }
    if layout.style == "eagle3":
        if layout.draft_vocab is not None:
            stated["draft_vocab_size"] = layout.draft_vocab
        if layout.aux is not None:
            stated["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(layout.aux)}
    return stated


def write(folder: Path, weights: dict[str, Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: each.contiguous() for name, each in weights.items()}, folder / "model.safetensors"
    )
    return folder


def target_of(dtype: torch.dtype = torch.float64, invariant: bool = False) -> CausalLM:
    return CausalLM.wrap(tiny_model("llama", 4, dtype), invariant=invariant)


# --- what the papers say, token by token


class Reference:
    """A head of one sequence, in loops: one token at a time, keys in a dict by position."""

    def __init__(self, layout: Layout, weights: dict[str, Tensor], lm: CausalLM) -> None:
        self.layout = layout
        self.weights = {
            name.removeprefix("model.").replace("midlayer.", "layers.0."): tensor
            for name, tensor in weights.items()
        }
        hf: Any = lm.hf
        self.embedding = self.weights.get("embed_tokens.weight", hf.model.embed_tokens.weight)
        self.target_head = hf.lm_head.weight
        self.keys: list[dict[int, Tensor]] = [{} for _ in range(layout.layers)]
        self.values: list[dict[int, Tensor]] = [{} for _ in range(layout.layers)]

    def linear(self, name: str, x: Tensor) -> Tensor:
        out = self.weights[f"{name}.weight"] @ x
        bias = self.weights.get(f"{name}.bias")
        return out if bias is None else out + bias

    def norm(self, name: str, x: Tensor) -> Tensor:
        mean = sum(float(each) ** 2 for each in x) / len(x)
        return x / math.sqrt(mean + EPSILON) * self.weights[f"{name}.weight"]

    def rotate(self, x: Tensor, position: int) -> Tensor:
        """Of one head. Angles are taken in single precision, as every implementation does."""
        factor = self.layout.config.get("rope_scaling", {}).get("factor", 1.0)
        out, half = x.clone(), WIDTH // 2
        for i in range(half):
            speed = 1.0 / torch.tensor(THETA) ** (torch.tensor(2.0 * i) / WIDTH) / factor
            angle = torch.tensor(float(position)) * speed
            cos, sin = float(angle.cos()), float(angle.sin())
            out[i] = x[i] * cos - x[i + half] * sin
            out[i + half] = x[i + half] * cos + x[i] * sin
        return out

    def attention(self, index: int, x: Tensor, position: int) -> Tensor:
        part = f"layers.{index}.self_attn"
        query = self.linear(f"{part}.q_proj", x).view(HEADS, WIDTH)
        key = self.linear(f"{part}.k_proj", x).view(KV_HEADS, WIDTH)
        self.keys[index][position] = torch.stack([self.rotate(each, position) for each in key])
        self.values[index][position] = self.linear(f"{part}.v_proj", x).view(KV_HEADS, WIDTH)
        mixed = []
        for head in range(HEADS):
            group = head * KV_HEADS // HEADS
            mine = self.rotate(query[head], position)
            scores = [
                float(mine @ self.keys[index][past][group]) / math.sqrt(WIDTH)
                for past in range(position + 1)
            ]
            total = sum(math.exp(score) for score in scores)
            out = torch.zeros(WIDTH, dtype=torch.float64)
            for past, score in enumerate(scores):
                out += math.exp(score) / total * self.values[index][past][group]
            mixed.append(out)
        return self.linear(f"{part}.o_proj", torch.cat(mixed))

    def mlp(self, index: int, x: Tensor) -> Tensor:
        part = f"layers.{index}.mlp"
        gate, up = self.linear(f"{part}.gate_proj", x), self.linear(f"{part}.up_proj", x)
        return self.linear(f"{part}.down_proj", gate / (1 + torch.exp(-gate)) * up)

    def step(self, token: int, hidden: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Logits over the target's vocabulary, and what the next step takes as `hidden`."""
        embedded = self.embedding[token]
        if self.layout.style == "eagle":
            x = self.linear("fc", torch.cat([embedded, hidden]))
            for index in range(self.layout.layers):
                seen = x if index == 0 else self.norm(f"layers.{index}.input_layernorm", x)
                x = x + self.attention(index, seen, position)
                x = x + self.mlp(index, self.norm(f"layers.{index}.post_attention_layernorm", x))
            return self.target_head @ x, x
        normed = self.norm("layers.0.hidden_norm", hidden)
        seen = torch.cat([self.norm("layers.0.input_layernorm", embedded), normed])
        residual = normed if self.layout.config.get("norm_before_residual") else hidden
        x = residual + self.attention(0, seen, position)
        x = x + self.mlp(0, self.norm("layers.0.post_attention_layernorm", x))
        logits = self.linear("lm_head", self.norm("norm", x))
        if "d2t" not in self.weights:
            return logits, x
        every = torch.full((VOCAB,), -math.inf, dtype=torch.float64)
        for mine, offset in enumerate(self.weights["d2t"].tolist()):
            every[mine + offset] = logits[mine]
        return every, x


class Fed:
    """Feeds rows of a head, in any chunks; each row's blocks lie scattered."""

    def __init__(self, head: EagleHead, rows: int, blocks: int = 8, size: int = 4) -> None:
        self.head, self.size = head, size
        self.cache = head.new_cache(1 + rows * blocks, size)
        order = list(range(1, 1 + rows * blocks))
        random.Random(1).shuffle(order)
        self.blocks = [order[row * blocks : (row + 1) * blocks] for row in range(rows)]

    def __call__(
        self,
        *chunks: tuple[int, int, Sequence[int], Tensor],
        masked: int = 0,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One pass over chunks (row, first position, ids, hidden `[n, H]`).

        Each chunk gets `masked` masked tokens, with ids and hidden states that must not matter.
        """
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        hidden: list[Tensor] = []
        kept: list[int] = []
        for row, start, tokens, states in chunks:
            kept += range(len(ids), len(ids) + len(tokens))
            where = range(start, start + len(tokens))
            ids += [*tokens, *([-1] * masked)]
            positions += [*where, *([-1] * masked)]
            slots += [self.blocks[row][p // self.size] * self.size + p % self.size for p in where]
            slots += [0] * masked
            hidden += [states, states.new_full((masked, states.shape[1]), math.nan)]
        batch = AttentionBatch(
            query_lens=tuple(len(tokens) + masked for _, _, tokens, _ in chunks),
            block_tables=torch.tensor([self.blocks[row] for row, _, _, _ in chunks]),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            cache=self.cache,
        )
        asked = torch.tensor(kept) if rows is None else torch.tensor(kept)[rows]
        logits, states = self.head.forward(torch.tensor(ids), torch.cat(hidden), batch, asked)
        return logits, states


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("heads")
    return {
        name: write(root / str(i), weights_of(layout), config_of(layout))
        for i, (name, layout) in enumerate(LAYOUTS.items())
    }


@pytest.mark.parametrize(
    "rope",
    [
        {"type": "mrope", "mrope_section": [2, 3, 3]},
        {"rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True},
    ],
)
def test_a_rope_of_several_axes_is_that_of_text(rope: dict[str, Any], tmp_path: Path) -> None:
    layout, lm = LAYOUTS["eagle3, all tokens"], target_of()
    plain, axes = (
        EagleHead.load(write(tmp_path / name, weights_of(layout), stated), lm)
        for name, stated in (
            ("plain", config_of(layout)),
            ("axes", {**config_of(layout), "rope_scaling": rope}),
        )
    )
    states = torch.ones(5, plain.hidden_size, dtype=torch.float64)
    said = [Fed(each, rows=1)((0, 0, range(3, 8), states))[0] for each in (plain, axes)]
    assert torch.equal(*said)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("invariant", [False, True], ids=["fast", "invariant"])
def test_a_head_says_what_the_paper_says_in_any_chunks(
    name: str, invariant: bool, folders: dict[str, Path]
) -> None:
    layout, lm = LAYOUTS[name], target_of()
    head = EagleHead.load(folders[name], lm, invariant=invariant)
    assert head.dtype == torch.float64
    draw = random.Random(2)
    generator = torch.Generator().manual_seed(3)
    lengths = (11, 6)
    features = [
        torch.randn(n, head.feature_size, generator=generator, dtype=torch.float64) for n in lengths
    ]
    ids = [[draw.randrange(VOCAB) for _ in range(n)] for n in lengths]
    wanted: list[list[tuple[Tensor, Tensor]]] = []
    for tokens, seen in zip(ids, features, strict=True):
        reference = Reference(layout, weights_of(layout), lm)
        fused = seen if layout.style == "eagle" else seen @ reference.weights["fc.weight"].T
        out = [reference.step(t, f, p) for p, (t, f) in enumerate(zip(tokens, fused, strict=True))]
        for step in range(3):  # drafting further: its own tokens on its own hidden states
            logits, state = out[-1]
            out.append(reference.step(int(logits.argmax()), state, len(tokens) + step))
        wanted.append(out)

    feed = Fed(head, rows=2)
    fused_rows = [head.fuse(each) for each in features]
    # The first chunk of each row holds drafts that are refused: the next one overwrites them.
    noise = torch.ones(4, head.hidden_size, dtype=torch.float64)
    feed((0, 3, [5, 6, 7, 8], noise), (1, 0, [9, 1, 2, 3], noise), masked=1)
    fed = [0, 0]
    while any(fed[row] < lengths[row] for row in range(2)):
        company = [row for row in range(2) if fed[row] < lengths[row] and draw.random() < 0.8]
        sizes = {row: min(draw.randint(1, 5), lengths[row] - fed[row]) for row in company}
        if not company:
            continue
        chunks = [
            (
                row,
                fed[row],
                ids[row][fed[row] : fed[row] + sizes[row]],
                fused_rows[row][fed[row] : fed[row] + sizes[row]],
            )
            for row in company
        ]
        logits, states = feed(*chunks, masked=draw.choice([0, 2]))
        at = 0
        for row in company:
            for position in range(fed[row], fed[row] + sizes[row]):
                torch.testing.assert_close(logits[at], wanted[row][position][0], rtol=0, atol=1e-10)
                torch.testing.assert_close(states[at], wanted[row][position][1], rtol=0, atol=1e-10)
                at += 1
            fed[row] += sizes[row]
    last = [wanted[row][lengths[row] - 1] for row in range(2)]
    for step in range(3):
        tokens = [int(logits.argmax()) for logits, _ in last]
        logits, states = feed(
            *((row, lengths[row] + step, [tokens[row]], last[row][1][None]) for row in range(2))
        )
        last = [wanted[row][lengths[row] + step] for row in range(2)]
        for row in range(2):
            torch.testing.assert_close(logits[row], last[row][0], rtol=0, atol=1e-10)
            torch.testing.assert_close(states[row], last[row][1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["eagle", "eagle, two layers", "eagle3"])
def test_in_invariant_mode_a_token_has_the_same_bits_in_every_batch(
    name: str, folders: dict[str, Path]
) -> None:
    head = EagleHead.load(folders[name], target_of(torch.float32, invariant=True))
    assert head.invariant
    assert head.dtype == torch.float32
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(3, 20, head.feature_size, generator=generator)
    ids = torch.randint(VOCAB, (3, 20), generator=generator).tolist()
    fused = [head.fuse(each) for each in features]
    assert torch.equal(head.fuse(features[0][:3]), fused[0][:3])
    alone = [Fed(head, rows=3)((row, 0, ids[row], fused[row])) for row in range(3)]
    feed = Fed(head, rows=3)
    for start, stop in ((0, 7), (7, 8), (8, 20)):
        logits, states = feed(
            *((row, start, ids[row][start:stop], fused[row][start:stop]) for row in range(3)),
            masked=start % 2,
        )
        count = stop - start
        for row in range(3):
            mine = slice(row * count, (row + 1) * count)
            assert torch.equal(logits[mine], alone[row][0][start:stop])
            assert torch.equal(states[mine], alone[row][1][start:stop])
    for count in (1, 2, 3, 13):
        some, _ = Fed(head, rows=1)((0, 0, ids[0], fused[0]), rows=torch.arange(count))
        assert torch.equal(some, alone[0][0][:count])


def test_a_head_whose_bits_depend_on_the_batch_is_refused(
    monkeypatch: pytest.MonkeyPatch, folders: dict[str, Path]
) -> None:
    def leave(module: object) -> None:
        """What invariance would be without its linear layers."""

    monkeypatch.setattr(eagle, "make_invariant", leave)
    monkeypatch.setattr(eagle, "whole_tiles", lambda rows, least: rows)
    lm = target_of(torch.float32, invariant=True)

    def by_company(*args: Any, paged: AttentionBatch, **options: Any) -> tuple[Tensor, None]:
        out, _ = paged_attention(*args, paged=paged, **options)
        return out + 1e-6 * len(paged.query_lens), None

    monkeypatch.setattr(eagle, "paged_attention", by_company)
    with pytest.raises(NotInvariant, match="invariant=False"):
        EagleHead.load(folders["eagle3"], lm)
    EagleHead.load(folders["eagle3"], lm, invariant=False)


def test_what_a_head_says_of_itself(folders: dict[str, Path]) -> None:
    lm = target_of(torch.float32)
    first = EagleHead.load(folders["eagle, two layers"], lm)
    third = EagleHead.load(folders["eagle3"], lm)
    assert (first.style, third.style) == ("eagle", "eagle3")
    assert (first.feature_layers, third.feature_layers) == (None, (2, 0, 3))
    assert (first.feature_size, third.feature_size) == (SIZE, 3 * SIZE)
    assert first.layer_shapes == (LayerShape(KV_HEADS, WIDTH, WIDTH),) * 2
    assert (first.num_layers, third.num_layers) == (2, 1)
    assert (first.vocab_size, third.context_length, third.hidden_size) == (VOCAB, 128, SIZE)
    assert third.new_cache(3, 4).layers == third.layer_shapes
    assert "llama" in third.name.lower()


def test_the_target_lends_its_matrices_without_a_copy(folders: dict[str, Path]) -> None:
    lm = target_of(torch.float32)
    hf: Any = lm.hf
    head = EagleHead.load(folders["eagle"], lm)
    output: Any = head._output
    assert head._embedding.data_ptr() == hf.model.embed_tokens.weight.data_ptr()
    assert output.weight.data_ptr() == hf.lm_head.weight.data_ptr()
    EagleHead.load(folders["eagle"], lm, invariant=True)
    assert "forward" not in hf.lm_head.__dict__, "the head's mode must not reach its target"


def test_another_precision_than_the_targets(folders: dict[str, Path]) -> None:
    lm = target_of(torch.float64)
    exact = EagleHead.load(folders["eagle3"], lm)
    half = EagleHead.load(folders["eagle3"], lm, dtype="bfloat16")
    features = torch.randn(4, exact.feature_size, dtype=torch.float64)
    wanted, _ = Fed(exact, 1)((0, 0, [1, 2, 3, 4], exact.fuse(features)))
    found, states = Fed(half, 1)((0, 0, [1, 2, 3, 4], half.fuse(features)))
    assert states.dtype == torch.bfloat16
    networks: list[Any] = [exact.network, half.network]
    speeds = [each.rotary_emb.inv_freq for each in networks]
    assert torch.equal(*speeds), "positions must not be rounded with the weights"
    assert found.dtype == torch.bfloat16, "whoever draws from them widens them"
    allowed = wanted.isfinite()
    assert torch.equal(found.isfinite(), allowed)
    torch.testing.assert_close(found[allowed].double(), wanted[allowed], rtol=0.1, atol=0.2)


def test_logits_are_computed_for_the_rows_asked_for(folders: dict[str, Path]) -> None:
    head = EagleHead.load(folders["eagle3"], target_of(invariant=True))
    states = head.fuse(torch.randn(5, head.feature_size, dtype=torch.float64))
    chunk = (0, 0, [1, 2, 3, 4, 5], states)
    every, hidden = Fed(head, 1)(chunk)
    some, same = Fed(head, 1)(chunk, rows=torch.tensor([4, 1]))
    none, _ = Fed(head, 1)(chunk, rows=torch.tensor([], dtype=torch.int64))
    assert torch.equal(some, every[[4, 1]])
    assert torch.equal(hidden[[4, 1]], same)
    assert none.shape == (0, VOCAB)


# --- the device is asked nothing


class NoSync(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises where an operation would make the host wait for the device."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.name()
        waits = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"}
        if name in waits or (
            name.startswith("aten::index.")
            and any(each is not None and each.dtype == torch.bool for each in args[1])
        ):
            raise AssertionError(f"{name} makes the host wait")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_a_pass_makes_no_host_wait(name: str, folders: dict[str, Path]) -> None:
    head = EagleHead.load(folders[name], target_of(torch.float32))
    cache = head.new_cache(3, 4)
    features, ids = torch.randn(3, head.feature_size), torch.tensor([4, -1, 7])
    rows = torch.tensor([2, 1, 0])
    batch = AttentionBatch(
        (2, 1), torch.tensor([[1], [2]]), torch.tensor([0, -1, 0]), torch.tensor([4, 0, 8]), cache
    )
    features[1] = math.nan
    inputs = {"features": features, "ids": ids, "rows": rows, "positions": batch.positions}
    versions = {key: value._version for key, value in inputs.items()}
    with NoSync():  # type: ignore[no-untyped-call]
        logits, hidden = head.forward(ids, head.fuse(features), batch, rows)
        with pytest.raises(AssertionError, match="host wait"):
            hidden[hidden > 0]
    assert (logits.shape, len(hidden)) == ((3, VOCAB), 3)
    assert hidden.isfinite().all(), "masked tokens compute something finite"
    assert {key: value._version for key, value in inputs.items()} == versions


# --- what does not fit is refused


@dataclass
class Head:
    """The files of a head that a test spoils."""

    weights: dict[str, Tensor]
    config: dict[str, Any]


def drop(*names: str) -> Callable[[Head], None]:
    def spoil(head: Head) -> None:
        for name in names:
            del head.weights[name]

    return spoil


def put(**weights: Tensor) -> Callable[[Head], None]:
    return lambda head: head.weights.update(
        {name.replace("__", "."): each for name, each in weights.items()}
    )


def say(**fields: Any) -> Callable[[Head], None]:
    return lambda head: head.config.update(fields)


def both(*spoils: Callable[[Head], None]) -> Callable[[Head], None]:
    def spoil(head: Head) -> None:
        for each in spoils:
            each(head)

    return spoil


def shift_last(head: Head) -> None:
    head.weights["d2t"][-1] = VOCAB


def repeat_token(head: Head) -> None:
    head.weights["d2t"][1] = head.weights["d2t"][0] - 1


def other_mask(head: Head) -> None:
    head.weights["t2d"] = head.weights["t2d"].roll(1)


AUX = "eagle_aux_hidden_state_layer_ids"
REFUSED: dict[str, tuple[str, Callable[[Head], None], str]] = {
    "missing weight": (
        "eagle",
        drop("layers.0.mlp.up_proj.weight"),
        r"lack layers\.0\.mlp\.up_proj",
    ),
    "missing weight of midlayer": (
        "eagle3",
        drop("midlayer.hidden_norm.weight", "norm.weight"),
        r"lack layers\.0\.hidden_norm\.weight, norm\.weight",
    ),
    "missing output head": ("eagle3, all tokens", drop("lm_head.weight"), "lack lm_head.weight"),
    "unexpected weight": (
        "eagle",
        put(layers__0__input_layernorm__weight=torch.ones(SIZE)),
        r"does not have: layers\.0\.input_layernorm\.weight",
    ),
    "weights of another architecture": (
        "eagle",
        put(layers__0__self_attn__q_norm__weight=torch.ones(WIDTH)),
        r"does not have: layers\.0\.self_attn\.q_norm",
    ),
    "wrong shape": (
        "eagle3",
        put(midlayer__self_attn__q_proj__weight=torch.ones(HEADS * WIDTH, SIZE)),
        r"q_proj\.weight is \(64, 48\); .* ask for \(64, 96\)",
    ),
    "as many features as other layers": (
        "eagle3",
        say(eagle_config={AUX: [1, 2]}),
        r"fc\.weight is \(48, 144\); .* ask for \(48, 96\)",
    ),
    "wrong embedding": (
        "eagle",
        put(embed_tokens__weight=torch.ones(VOCAB + 1, SIZE)),
        r"embed_tokens\.weight is \(97, 48\); .* ask for \(96, 48\)",
    ),
    "another vocabulary": ("eagle", say(vocab_size=97), "vocab_size is 97, that of .* is 96"),
    "another width": ("eagle", say(hidden_size=32), "hidden_size is 32, that of .* is 48"),
    "another width without embedding": ("eagle3", say(hidden_size=32), "hidden_size is 32"),
    "width not said": ("eagle", lambda head: head.config.pop("hidden_size"), "hidden_size None"),
    "another family": ("eagle", say(model_type="deepseek_v2"), "model_type 'deepseek_v2'"),
    "moving rope": (
        "eagle",
        say(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
        "'dynamic'",
    ),
    "several layers of eagle3": ("eagle3", say(num_hidden_layers=2), "EAGLE-3 head of 2 layers"),
    "both names of the layer": (
        "eagle3",
        put(layers__0__hidden_norm__weight=torch.ones(SIZE)),
        r"both midlayer\.\* and layers\.0",
    ),
    "token out of range": ("eagle3", shift_last, r"d2t leads to tokens \d+ to 155; .* 0 to 95"),
    "a token twice": ("eagle3", both(drop("t2d"), repeat_token), "one token from two"),
    "the mask disagrees": ("eagle3", other_mask, "t2d, .* does not name"),
    "mask of another vocabulary": ("eagle3", put(t2d=torch.ones(5)), r"t2d, \(5,\), does not"),
    "a map of other length": (
        "eagle3",
        put(d2t=torch.zeros(7, dtype=torch.int64)),
        r"d2t is torch\.int64 \(7,\); .* \(60,\)",
    ),
    "a map of no integers": ("eagle3", put(d2t=torch.zeros(60)), r"d2t is torch\.float32"),
    "no map": ("eagle3", drop("d2t", "t2d"), "60 tokens of 96, but without d2t"),
    "a mask without a map": (
        "eagle3, all tokens",
        put(t2d=torch.zeros(VOCAB, dtype=torch.bool)),
        "t2d leaves tokens out",
    ),
    "layer out of range": ("eagle3", say(eagle_config={AUX: [0, 1, 4]}), r"has 0 to 3"),
    "layers of no sense": (
        "eagle3",
        say(eagle_config={AUX: "all"}),
        "want a list of layer numbers",
    ),
    "a width in words": ("eagle", say(head_dim="x"), "describes no EAGLE head: .*'head_dim' expec"),
    "layers in words": ("eagle3", say(num_hidden_layers="x"), "'num_hidden_layers' expected int"),
    "no heads": ("eagle", say(num_attention_heads=0), "describes no EAGLE head: ZeroDivision"),
    "an unknown rope": ("eagle", say(rope_scaling={"rope_type": "x"}), "describes no EAGLE head"),
    "an unknown activation": ("eagle3", say(hidden_act="x"), "describes no EAGLE head: KeyError"),
    "no positions": ("eagle", say(max_position_embeddings=0), "max_position_embeddings is 0"),
    "more positions than memory": (
        "eagle",
        say(max_position_embeddings=10**14),
        "describes no EAGLE head: RuntimeError",
    ),
    "integers": ("eagle", put(fc__weight=torch.ones(SIZE, 2 * SIZE).long()), "fc.weight is torch"),
    "not numbers": (
        "eagle",
        put(fc__weight=torch.full((SIZE, 2 * SIZE), torch.nan)),
        "fc.weight holds numbers that are not finite",
    ),
    "a scalar": ("eagle3", put(lm_head__weight=torch.tensor(1.0)), "describes no EAGLE head"),
    "too shallow for the custom": ("eagle3", say(eagle_config=None), "has only 3 layers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(case: str, tmp_path: Path) -> None:
    name, spoil, message = REFUSED[case]
    head = Head(weights_of(LAYOUTS[name]), config_of(LAYOUTS[name]))
    spoil(head)
    folder = write(tmp_path / "head", head.weights, head.config)
    with pytest.raises(ModelError, match=message) as caught:
        EagleHead.load(folder, target_of(torch.float32))
    assert str(folder) in str(caught.value)


def test_layers_may_be_named_at_the_top_or_by_custom(tmp_path: Path) -> None:
    layout = replace(LAYOUTS["eagle3"], aux=None)
    weights, config = weights_of(layout), config_of(layout)
    lm = CausalLM.wrap(tiny_model("llama", 4, num_hidden_layers=6))
    by_custom = EagleHead.load(write(tmp_path / "a", weights, config), lm)
    assert by_custom.feature_layers == (2, 3, 3)
    stated = {**config, AUX: [6, 0, 1]}
    assert EagleHead.load(write(tmp_path / "b", weights, stated), lm).feature_layers == (6, 0, 1)


def test_computed_weights_in_old_files_are_passed_over(tmp_path: Path) -> None:
    layout = LAYOUTS["eagle"]
    old = {**weights_of(layout), "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    EagleHead.load(write(tmp_path / "a", old, config_of(layout)), target_of())


def test_a_pickle_is_not_read_but_its_conversion_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of(LAYOUTS["eagle"])))
    (tmp_path / "pytorch_model.bin").write_bytes(b"not even a pickle")
    with pytest.raises(UnsupportedModel, match=r"save_file\(torch\.load.*weights_only=True"):
        EagleHead.load(tmp_path, target_of())


def test_files_that_cannot_be_read_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no readable config\.json"):
        EagleHead.load(tmp_path, target_of())
    (tmp_path / "config.json").write_text(json.dumps(config_of(LAYOUTS["eagle"])))
    (tmp_path / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(ModelError, match=r"model\.safetensors is not a whole safetensors file"):
        EagleHead.load(tmp_path, target_of())


def test_loading_leaves_the_random_state_alone(folders: dict[str, Path]) -> None:
    lm = target_of()
    before = torch.get_rng_state()
    EagleHead.load(folders["eagle3"], lm, invariant=True)
    tiny_eagle(tiny_pair(torch.float32)[0], "eagle3")
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_may_be_split_over_files(tmp_path: Path, folders: dict[str, Path]) -> None:
    whole = load_file(folders["eagle3"] / "model.safetensors")
    folder = write(tmp_path / "head", {"d2t": whole.pop("d2t")}, config_of(LAYOUTS["eagle3"]))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    save_file(whole, folder / "model-00002-of-00002.safetensors")
    assert EagleHead.load(folder, target_of()).draft_ids is not None


def test_a_hub_name_is_looked_up_locally_first(
    monkeypatch: pytest.MonkeyPatch, folders: dict[str, Path]
) -> None:
    asked: list[bool] = []

    def snapshot(name: str, *, allow_patterns: list[str], local_files_only: bool = False) -> str:
        asked.append(local_files_only)
        assert not any("bin" in pattern for pattern in allow_patterns)
        if name == "somebody/offline" or local_files_only:
            raise OSError("not there")
        return str(folders["eagle"])

    monkeypatch.setattr(head_files, "snapshot_download", snapshot)
    monkeypatch.setattr(head_files, "ask_hub", lambda name: None)
    assert EagleHead.load("somebody/head", target_of()).style == "eagle"
    assert asked == [True, False]
    with pytest.raises(ModelNotFound, match=r"somebody/offline.*from the hub: OSError: not there"):
        EagleHead.load("somebody/offline", target_of())


def test_a_target_without_a_plain_output_head_is_refused(folders: dict[str, Path]) -> None:
    lm = target_of()
    hf: Any = lm.hf
    hf.lm_head = torch.nn.Identity()
    with pytest.raises(ModelError, match="its output head is no matrix"):
        EagleHead.load(folders["eagle"], lm)


# --- drafting


def drafts(
    head: EagleHead, lm: CausalLM, prompt: Sequence[int], said: Sequence[int], count: int
) -> Iterator[list[bool]]:
    """For each place in the target's text, which of `count` chained drafts are its own tokens."""
    tokens = [*prompt, *said]
    lm.record_features(head.feature_layers)
    blocks = -(-len(tokens) // 4)

    def batch(start: int, stop: int, cache: Any) -> AttentionBatch:
        where = torch.arange(start, stop)
        return AttentionBatch(
            (stop - start,), torch.arange(1, 1 + blocks)[None], where, where + 4, cache
        )

    whole = batch(0, len(tokens), lm.new_cache(blocks + 1, 4))
    _, features = lm.forward(torch.tensor(tokens), whole)
    fused, cache = head.fuse(features), head.new_cache(blocks + 1, 4)
    fed = 0
    for known in range(len(prompt) + 1, len(tokens) - count + 1):
        last = torch.tensor([known - 2 - fed])
        logits, hidden = head.forward(
            torch.tensor(tokens[fed + 1 : known]),
            fused[fed : known - 1],
            batch(fed, known - 1, cache),
            last,
        )
        fed, state, right = known - 1, hidden, []
        for step in range(count):
            token = int(logits.argmax())
            right.append(token == tokens[known + step])
            if step + 1 < count:
                place = batch(known - 1 + step, known + step, cache)
                logits, state = head.forward(torch.tensor([token]), state, place)
        yield right


@pytest.mark.parametrize("style", ["eagle", "eagle3"])
def test_some_but_not_all_drafts_of_a_tiny_head_are_right(
    style: Literal["eagle", "eagle3"],
) -> None:
    hf, _ = tiny_pair(torch.float64)
    head = tiny_eagle(hf, style, context=50)
    assert head.context_length == 50
    lm = CausalLM.wrap(hf, invariant=False)
    draw = random.Random(3)
    first: list[bool] = []
    second: list[bool] = []
    for _ in range(4):
        prompt = [draw.randrange(320) for _ in range(draw.randint(2, 20))]
        for right in drafts(head, lm, prompt, own_greedy(hf, prompt, 20), 2):
            first.append(right[0])
            second += right[1:] if right[0] else []
    assert 0.2 < sum(first) / len(first) < 0.8
    assert 0.2 < sum(second) / len(second) < 0.8
    again = tiny_eagle(hf, style, context=50).network.state_dict()
    assert all(torch.equal(each, again[name]) for name, each in head.network.state_dict().items())
    if style == "eagle3":
        assert head.draft_ids is not None
        assert len(head.draft_ids) == 256


@cache
def embedded() -> tuple[CausalLM, list[tuple[list[int], list[int]]]]:
    """The shipped model, and some prompts with what it says to them."""
    lm, told = CausalLM.load("embedded", invariant=False), list[tuple[list[int], list[int]]]()
    tokenizer: Any = load_tokenizer("embedded")
    for example in islice(examples(31, {**EXTRACTION, story: 3}, held_out=True), 5):
        prompt = tokenizer(example.prompt + "\n").input_ids
        said = own_greedy(lm.hf, prompt, 40)
        told.append((prompt, said[: said.index(EOS) + 1] if EOS in said else said))
    return lm, told


@pytest.mark.parametrize(
    ("name", "style"), [("embedded-eagle", "eagle"), ("embedded-eagle3", "eagle3")]
)
def test_most_first_drafts_of_the_shipped_heads_are_right(name: str, style: str) -> None:
    lm, told = embedded()
    head = EagleHead.load(name, lm)
    assert head.style == style
    assert head.context_length == lm.context_length
    right: list[list[bool]] = []
    for prompt, said in told:
        right += drafts(head, lm, prompt, said, 3)
    assert len(right) > 100
    first = [each[0] for each in right]
    assert sum(first) >= 0.7 * len(first)
    chains = [each[1:] for each in right if each[0]]
    assert sum(map(all, chains)) >= 0.6 * len(chains)
    folder = Path(eagle.__file__).parent / "embedded" / style
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1_500_000


def test_an_installation_without_its_heads_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(source, "__file__", str(tmp_path / "source.py"))
    with pytest.raises(ModelNotFound, match="lacks the embedded model"):
        EagleHead.load("embedded-eagle3", target_of())
