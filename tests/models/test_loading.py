"""A checkpoint is loaded whole or refused by name, in one sentence of ours."""

import copy
import json
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub.errors import RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GptOssConfig,
    LlavaConfig,
    Mistral4Config,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    T5Config,
    ViTConfig,
)

from stepweave.backends import NoDevice
from stepweave.models import source
from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.errors import ModelError, ModelNotFound, UnsupportedModel
from stepweave.models.source import from_local_then_hub, resolve
from stepweave.models.support import windows
from stepweave.models.tokenizer import load_tokenizer
from stepweave.testing.models import SIZE, save_tiny, tiny_model
from tests.models.families import built, tiny_config
from tests.models.paged_rows import PagedRows

Spoil = Callable[[Path], Any]
UP = "model.layers.1.mlp.up_proj.weight"
EXPERT = "model.layers.1.block_sparse_moe.experts.2."


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        held = {name: each.clone() for name, each in load_file(folder / FILE).items()}
        change(held)
        save_file(held, folder / FILE, metadata={"format": "pt"})

    return spoil


def config(**fields: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        stated = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**stated, **fields}))

    return spoil


def content(name: str, data: bytes) -> Spoil:
    return lambda folder: (folder / name).write_bytes(data)


def without(*names: str) -> Spoil:
    def spoil(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return spoil


def all_of(*spoils: Spoil) -> Spoil:
    return lambda folder: [spoil(folder) for spoil in spoils]


def cut(size: int) -> Spoil:
    return lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes()[:size])


FILE = "model.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints without a fault, one of each way to write weights down."""
    root = tmp_path_factory.mktemp("whole")
    save_tiny(root / "dense", "qwen3")
    save_tiny(root / "tied", "llama", tie_word_embeddings=True)
    build: Any = AutoModelForCausalLM.from_config
    build(MixtralConfig(**{**SIZE, "num_local_experts": 4})).save_pretrained(root / "experts")
    return {each.name: each for each in root.iterdir()}


def spoiled(folder: Path, spoil: Spoil, at: Path) -> Path:
    shutil.copytree(folder, at / "model")
    spoil(at / "model")
    return at / "model"


def refusal(load: Callable[[], object]) -> str:
    """What is said: by one error of ours, of one line."""
    with pytest.raises(ModelError) as caught:
        load()
    said = str(caught.value)
    assert "\n" not in said
    return said


FAULTY: dict[str, tuple[str, Spoil, str]] = {
    "missing": ("dense", weights(lambda w: w.pop(UP)), f"lack {UP}, which a Qwen3ForCausalLM"),
    "missing, of many": (
        "dense",
        weights(lambda w: [w.pop(name) for name in list(w) if ".layers.1." in name]),
        "lack model.layers.1.input_layernorm.weight, ",
    ),
    "missing output head": ("dense", weights(lambda w: w.pop("lm_head.weight")), "lack lm_head.w"),
    "missing, of what others are tied to": (
        "tied",
        weights(lambda w: w.pop("model.embed_tokens.weight")),
        "model.embed_tokens.weight",
    ),
    "missing expert": (
        "experts",
        weights(lambda w: w.pop(f"{EXPERT}w1.weight")),
        "weights that model.layers.1.mlp.experts.gate_up_proj is put together from are missing",
    ),
    "missing half of an expert": (
        "experts",
        weights(lambda w: w.pop(f"{EXPERT}w2.weight")),
        "model.layers.1.mlp.experts.down_proj is (3, 48, 80), not (4, 48, 80)",
    ),
    "unexpected": (
        "dense",
        weights(lambda w: w.update({"model.layers.1.mlp.x": torch.ones(3)})),
        "have model.layers.1.mlp.x, which a Qwen3ForCausalLM of its config.json does not have",
    ),
    "layers that the configuration leaves out": (
        "dense",
        config(num_hidden_layers=2, layer_types=["full_attention"] * 2),
        "have model.layers.2.input_layernorm.weight, ",
    ),
    "misshapen": (
        "dense",
        weights(lambda w: w.update({"model.norm.weight": torch.ones(7)})),
        "model.norm.weight is (7,), not (48,)",
    ),
    "misshapen expert": (
        "experts",
        weights(lambda w: w.update({f"{EXPERT}w2.weight": torch.ones(2, 3)})),
        "model.layers.1.mlp.experts.down_proj is put together from are missing, unexpected or "
        "misshapen; fetch the checkpoint again",
    ),
    "another vocabulary": ("tied", config(vocab_size=999), "embed_tokens.weight is ("),
    "not numbers": (
        "dense",
        weights(lambda w: w.update({"model.norm.weight": torch.full((48,), torch.nan)})),
        "logits are not finite, since these weights are not: model.norm.weight",
    ),
    "integers": (
        "dense",
        weights(
            lambda w: w.update(
                {"model.embed_tokens.weight": w["model.embed_tokens.weight"].mul(9).to(torch.int8)}
            )
        ),
        "floating-point numbers: model.embed_tokens.weight (I8); take a checkpoint that is not",
    ),
    "cut off": ("dense", cut(5000), f"{FILE} is not a whole safetensors file"),
    "cut off in the header": ("dense", cut(9), f"{FILE} is not a whole safetensors file"),
    "empty": ("dense", cut(0), "its 0 bytes are cut off or damaged"),
    "garbled": ("dense", content(FILE, b"garbage" * 99), f"{FILE} is not a whole safetensors"),
    "a pickle under another name": (
        "dense",
        lambda folder: torch.save({UP: torch.ones(1)}, folder / FILE),
        f"{FILE} is not a whole safetensors file",
    ),
    "pickles": (
        "dense",
        all_of(without(FILE), content("pytorch_model.bin", b"a pickle")),
        "no safetensors file; it has pytorch_model.bin. A pickled file can run code",
    ),
    "other files": (
        "dense",
        all_of(without(FILE), content("model.gguf", b"GGUF")),
        "it has GGUF files, and only safetensors are read",
    ),
    "parts that are not there": (
        "dense",
        lambda folder: (
            (folder / FILE).rename(folder / "model-00001-of-00002.safetensors"),
            (folder / "model.safetensors.index.json").write_text(
                json.dumps({"metadata": {}, "weight_map": {UP: "model-00002-of-00002.safetensors"}})
            ),
        ),
        "model-00002-of-00002.safetensors",
    ),
    "no configuration": ("dense", without("config.json"), "has no config.json"),
    "an adapter": (
        "dense",
        lambda folder: (folder / "config.json").rename(folder / "adapter_config.json"),
        "it is an adapter: merge it",
    ),
    "no JSON": ("dense", content("config.json", b"{"), "config.json is not readable JSON"),
    "no text": ("dense", content("config.json", bytes(range(255))), "not readable JSON"),
    "no object": ("dense", content("config.json", b"[]"), "config.json is no object but list"),
    "no model_type": ("dense", content("config.json", b"{}"), "names no model_type"),
    "a slip": ("dense", config(model_type="qwen33"), "(did you mean 'qwen3'?)"),
    "code of its own": (
        "dense",
        config(model_type="evil-one", auto_map={"AutoModelForCausalLM": "evil.Evil"}),
        "has no model_type 'evil-one'; a newer one may have it; code that comes with a model is",
    ),
    "a width in words": ("dense", config(hidden_size="wide"), "Field 'hidden_size' expected int"),
    "no room": ("dense", config(max_position_embeddings=1), "no room for a token"),
}


@pytest.mark.parametrize("case", FAULTY)
def test_a_faulty_checkpoint_is_refused_by_name(
    case: str, whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kind, spoil, message = FAULTY[case]
    folder = spoiled(whole[kind], spoil, tmp_path)
    said = refusal(lambda: CausalLM.load(folder, invariant=False))
    assert message in said
    assert str(folder) in said
    assert capfd.readouterr() == ("", ""), "another library speaks too"


@pytest.mark.parametrize("kind", ["dense", "tied", "experts"])
def test_the_same_checkpoints_without_a_fault_are_loaded(
    kind: str, whole: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert CausalLM.load(whole[kind], invariant=False).num_layers == 3
    assert capfd.readouterr() == ("", "")


def test_what_a_family_declares_as_an_exception_is_let_through(
    whole: dict[str, Path], tmp_path: Path
) -> None:
    """Tied weights may be missing, and computed ones of old files may be there."""
    assert "lm_head.weight" not in load_file(whole["tied"] / FILE)
    old = weights(lambda w: w.update({OLD: torch.ones(8)}))
    CausalLM.load(spoiled(whole["dense"], old, tmp_path), invariant=False)
    small: dict[str, Any] = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 2}
    build: Any = AutoModelForCausalLM.from_config
    build(GPT2Config(**small)).save_pretrained(tmp_path / "gpt2")
    weights(lambda w: w.update({"transformer.h.0.attn.bias": torch.ones(1)}))(tmp_path / "gpt2")
    CausalLM.load(tmp_path / "gpt2", invariant=False)


OLD = "model.layers.0.self_attn.rotary_emb.inv_freq"


@pytest.mark.parametrize("kind", [T5Config, ViTConfig, LlavaConfig, Mistral4Config])
def test_models_that_are_no_decoders_of_text_are_refused_in_our_words(
    kind: type[PreTrainedConfig], tmp_path: Path
) -> None:
    kind().save_pretrained(tmp_path)
    save_file({"a": torch.ones(1)}, tmp_path / FILE)
    said = refusal(lambda: CausalLM.load(tmp_path))
    assert f"no causal language model of model_type {kind.model_type!r}" in said
    assert "Stepweave serves qwen2_5_vl and qwen3_vl" in said


# --- where it is


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hub that nobody can reach; the names it was asked for."""
    asked: list[str] = []

    class Unreachable:
        def model_info(self, name: str, *, timeout: float) -> None:
            asked.append(name)
            raise ConnectionError("Name or service not known\nand a page of advice")

    monkeypatch.setattr(source, "HfApi", Unreachable)
    return asked


@pytest.mark.parametrize("load", [CausalLM.load, load_tokenizer], ids=["model", "tokenizer"])
def test_paths_that_are_no_model_are_refused_in_one_sentence(
    load: Callable[[str | Path], object], tmp_path: Path, no_hub: list[str]
) -> None:
    model = save_tiny(tmp_path / "model")
    torch.save({}, tmp_path / "weights.pt")
    for name, message in {
        str(model / FILE): f"is a file; .*give its folder: {model}",
        str(tmp_path / "weights.pt"): r"is a file; .*A pickled file can run code",
        str(tmp_path / "modle"): rf"no directory .*did you mean '{model}'",
        "./nothing/here": "there is no directory './nothing/here'",
        "~nobody-at-all/model": "there is no directory|cannot be a directory",
        "a/b/c": "there is no directory 'a/b/c'",
        "weights.gguf": "there is no directory 'weights.gguf'",
        "two words": "there is no directory 'two words'",
        "embedded-eagle": "is a head that ships with Stepweave; here embedded or embedded-draft",
    }.items():
        with pytest.raises(ModelNotFound, match=message) as caught:
            load(name)
        assert "\n" not in str(caught.value)
    assert no_hub == []


def test_nothing_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_hub: list[str]
) -> None:
    """Whatever a path leads to: a file, a folder with pickles, a pickle under another name."""
    model = save_tiny(tmp_path / "model")
    pickled = {"model.embed_tokens.weight": torch.ones(1)}
    torch.save(pickled, model / "pytorch_model.bin")
    torch.save(pickled, model / FILE)
    torch.save(pickled, tmp_path / "weights.bin")

    def unpickled(*args: object, **kwargs: object) -> None:
        raise AssertionError("something was unpickled")

    for name in ("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load"):
        monkeypatch.setattr(name, unpickled)
    target = CausalLM.wrap(tiny_model(), invariant=False)
    loads: list[Callable[[Path], object]] = [
        lambda path: CausalLM.load(path),
        lambda path: EagleHead.load(path, target),
        load_tokenizer,
    ]
    for load in loads:
        for path in (tmp_path / "weights.bin", model / "pytorch_model.bin", model / FILE):
            refusal(lambda load=load, path=path: load(path))  # type: ignore[misc]
    refusal(lambda: CausalLM.load(model))
    refusal(lambda: EagleHead.load(model, target))
    (model / FILE).unlink()
    refusal(lambda: CausalLM.load(model))


def test_an_unreachable_hub_is_asked_once(no_hub: list[str]) -> None:
    target = CausalLM.wrap(tiny_model(), invariant=False)
    loads: list[Callable[[], object]] = [
        lambda: CausalLM.load("nobody/nothing"),
        lambda: EagleHead.load("nobody/nothing", target),
        lambda: load_tokenizer("nobody/nothing"),
    ]
    for count, load in enumerate(loads, 1):
        said = refusal(load)
        assert "the hub cannot be reached (ConnectionError: Name or service not known)" in said
        assert said.endswith("hf download nobody/nothing")
        assert no_hub == ["nobody/nothing"] * count


def test_offline_the_hub_is_not_asked_at_all(
    no_hub: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "unset HF_HUB_OFFLINE" in refusal(lambda: CausalLM.load("nobody/nothing"))
    assert "(did you mean 'embedded'?), and HF_HUB_OFFLINE" in refusal(
        lambda: CausalLM.load("embeded")
    )
    assert no_hub == []


def test_a_name_like_a_shipped_one_is_told_where_nobody_can_be_asked(no_hub: list[str]) -> None:
    for name, shipped in (("embeded", "embedded"), ("embedded-egle", "embedded-eagle")):
        said = refusal(lambda name=name: CausalLM.load(name))  # type: ignore[misc]
        assert f"of the hub (did you mean {shipped!r}?), and the hub cannot be reached" in said


def test_a_name_that_the_hub_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        def model_info(self, name: str, *, timeout: float) -> None:
            raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)

    monkeypatch.setattr(source, "HfApi", Empty)
    said = refusal(lambda: CausalLM.load("embeded"))
    assert "the hub has no model of this name (did you mean 'embedded'?)" in said


def test_the_hub_is_used_where_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Hub:
        def model_info(self, name: str, *, timeout: float) -> None:
            asked.append(name)

    class Auto:
        @staticmethod
        def from_pretrained(name: str, **options: Any) -> str:
            asked.append(options.pop("local_files_only", False))
            assert options == {"use_safetensors": True, "trust_remote_code": False}
            if asked[-1]:
                raise OSError("not in the cache")
            return "the model"

    monkeypatch.setattr(source, "HfApi", Hub)
    assert from_local_then_hub(Auto, "somebody/something", use_safetensors=True) == "the model"
    assert asked == [True, "somebody/something", False]


def test_embedded_names_point_into_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(source, "__file__", str(tmp_path / "source.py"))
    with pytest.raises(ModelNotFound, match=r"embedded-draft.*lacks"):
        resolve("embedded-draft")
    save_tiny(tmp_path / "embedded" / "draft")
    assert resolve("embedded-draft") == str(tmp_path / "embedded" / "draft")
    assert resolve("some/name") == "some/name"


def test_a_device_that_is_none_is_named(whole: dict[str, Path]) -> None:
    for device in ("gpu", "mps", "meta", "cuda:x", "cpu:0"):
        with pytest.raises(NoDevice, match=f"'{device}'"):
            CausalLM.load(whole["dense"], device=device)


# --- tokenizers


EMPTY = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "BPE", "vocab": {}, "merges": []},
}

NO_TOKENIZER: dict[str, tuple[Spoil, str]] = {
    "none": (without("tokenizer.json", "tokenizer_config.json"), "has no tokenizer (none of tok"),
    "settings alone": (without("tokenizer.json"), "has no tokenizer (none of tokenizer.json"),
    "garbled": (content("tokenizer.json", b"garbage"), "its tokenizer cannot be loaded (JSOND"),
    "of nothing": (content("tokenizer.json", b"{}"), "its tokenizer cannot be loaded"),
    "a list": (content("tokenizer.json", b"[]"), "its tokenizer cannot be loaded"),
    "bytes": (content("tokenizer.json", bytes(range(256))), "its tokenizer cannot be loaded"),
    "unreadable settings": (content("tokenizer_config.json", b"{"), "cannot be loaded"),
    "another kind of file": (
        all_of(without("tokenizer.json"), content("tokenizer.model", b"garbage")),
        "its tokenizer cannot be loaded",
    ),
    "without a vocabulary": (
        content("tokenizer.json", json.dumps(EMPTY).encode()),
        "its tokenizer has no tokens but special ones",
    ),
}


@pytest.mark.parametrize("case", NO_TOKENIZER)
def test_a_tokenizer_that_is_none_is_refused_in_one_sentence(
    case: str, whole: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil, message = NO_TOKENIZER[case]
    folder = spoiled(whole["dense"], spoil, tmp_path)
    said = refusal(lambda: load_tokenizer(folder))
    assert message in said
    assert str(folder) in said
    assert capfd.readouterr() == ("", "")


def test_what_is_logged_of_a_load_that_succeeds_is_shown() -> None:
    shown: list[str] = []

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            shown.append(record.getMessage())

    logger, handler = logging.getLogger("transformers"), Shown()
    transformers.logging.get_verbosity()  # which sets its own handler up
    logger.addHandler(handler)
    try:
        with source.quiet() as reports:
            logger.warning("a warning to heed")
            logger.warning("X LOAD REPORT from: here")
            assert shown == []
        assert shown == ["a warning to heed"]
        assert reports == ["X LOAD REPORT from: here"]
        with suppress(OSError), source.quiet():
            logger.warning("a lecture")
            raise OSError("failed")
    finally:
        logger.removeHandler(handler)
    assert shown == ["a warning to heed"]


def test_models_are_refused_by_a_kind_of_error_that_says_what_is_wrong(
    whole: dict[str, Path], tmp_path: Path
) -> None:
    folder = spoiled(whole["dense"], config(model_type="t5"), tmp_path)
    with pytest.raises(UnsupportedModel):
        CausalLM.load(folder)


def test_a_tokenizer_of_few_letters_is_one(tmp_path: Path) -> None:
    """As of genes, chess or music, without a token for what it does not know."""
    letters = Tokenizer(BPE({"</s>": 0, "A": 1, "C": 2, "G": 3, "T": 4}, []))
    letters.decoder = Fuse()
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=letters, eos_token="</s>").save_pretrained(tmp_path)
    found = load_tokenizer(tmp_path)
    assert found.decode(found("GATTACA")["input_ids"]) == "GATTACA"


@pytest.mark.parametrize(
    ("seed", "invariant", "family"), [(1, True, "mixtral"), (19, False, "gpt_oss")]
)
def test_a_router_that_takes_another_expert_by_rounding_is_no_fault(
    seed: int, invariant: bool, family: str
) -> None:
    """One more rounding moves nothing here, and the paged pass moves a token to another expert."""
    sizes: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 64,
        "head_dim": 16,
    }
    heads: dict[str, Any] = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    config: Any = (
        MixtralConfig(**sizes, **heads, num_hidden_layers=4, num_local_experts=8)
        if family == "mixtral"
        else GptOssConfig(**sizes, **heads, num_hidden_layers=2, num_local_experts=16)
    )
    build: Any = AutoModelForCausalLM.from_config
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = build(config, attn_implementation="eager")
        for name, each in model.named_parameters():
            if "embed" in name:
                each.normal_()
            elif each.dim() >= 2:
                each.normal_(std=each.shape[1] ** -0.5)
    nn.Module.to(model, torch.bfloat16)
    assert CausalLM.wrap(model, invariant=invariant).dtype == torch.bfloat16


def test_the_context_of_a_model_is_what_yarn_makes_of_it() -> None:
    """Where a model card has it switched on by `rope_scaling` alone."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    sizes = {"max_position_embeddings": 40, "rope_scaling": {**scaling, "rope_theta": 10000.0}}
    model = tiny_model("qwen3", 0, torch.float64, **sizes)
    reference = copy.deepcopy(model)
    found = CausalLM.wrap(model, invariant=False)
    assert found.context_length == 128
    prompt = [5 + at % 50 for at in range(60)]
    wanted: Any = reference.generate(  # type: ignore[operator]
        torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0
    )
    rows = PagedRows(found)
    logits = rows.feed(("a", prompt))[0][-1:]
    for token in wanted[0, len(prompt) :].tolist():
        assert int(logits.argmax()) == token
        logits = rows.feed(("a", [token]))[0]


def test_a_layer_that_says_it_has_no_window_has_none() -> None:
    """EXAONE 4 keeps the window of its sliding layers in all, and says None where none slides."""
    config = copy.deepcopy(tiny_config("exaone4"))
    assert config is not None
    kinds: Any = config
    assert {*kinds.layer_types} == {"sliding_attention", "full_attention"}
    model = CausalLM.wrap(built(config, torch.float32), invariant=False)
    assert {shape for shape in windows(model.config).values()} == {None, 9}
