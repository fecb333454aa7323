"""Compiled layers say what plain ones say, with one graph for all layers of a kind."""

import copy
import logging
import shutil
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NoReturn, Self

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from stepweave import LLM
from stepweave.backends.streams import CannotCapture
from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config
from stepweave.executors.pieces import OpPieces
from stepweave.executors.terms import Terms
from stepweave.models import compiled, in_pieces
from stepweave.models.attention import AttentionBatch
from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.errors import AttentionNotCalled, CompileFailed, ModelError
from stepweave.nodes.eagle import HEAD
from stepweave.testing.engines import tiny_pair
from stepweave.testing.models import tiny_eagle, tiny_model
from tests.models.families import built, tiny_config
from tests.models.paged_rows import PagedRows, own_greedy
from tests.models.ragged import passes


@pytest.fixture(scope="module", autouse=True)
def traced_only() -> Iterator[None]:
    """Graphs are taken and run, but no code is generated, which would take longer than all else;
    nor are they lowered, but for the whole pipeline.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "BACKEND", "eager")
        yield
    torch._dynamo.reset()


def graphs(model: CausalLM | EagleHead) -> int:
    assert model._compiled is not None
    return model._compiled.graphs


def close(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.argmax(-1), other.argmax(-1))
        torch.testing.assert_close(one.clone(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("family", "kinds", "dtype", "tolerance"),
    [
        ("qwen3", 1, torch.float64, 1e-12),
        ("gemma2", 2, torch.float64, 1e-12),
        # That it has two ropes makes no further kinds: angles are given to a layer.
        ("gemma3", 2, torch.float64, 1e-12),
        # Its experts are added up in another order.
        ("gpt_oss", 2, torch.float32, 1e-4),
    ],
)
def test_layers_of_a_kind_share_a_graph_that_fits_every_batch(
    family: str, kinds: int, dtype: torch.dtype, tolerance: float
) -> None:
    plain = CausalLM.wrap(tiny_model(family, 1, dtype), invariant=False)
    model = CausalLM.wrap(tiny_model(family, 1, dtype), invariant=False, compile="layer")
    assert graphs(model) == kinds
    assert f"compiled 3 layers to {kinds} graph" in model.notes[-1]
    assert model.notes[0] == "merged q_proj, k_proj, v_proj in 3 modules"
    close(passes(model), passes(plain), tolerance)
    for each in (plain, model):
        each.record_features([2, 0])
    rows = [PagedRows(each) for each in (plain, model)]
    hidden = [features(each) for each in rows]
    torch.testing.assert_close(hidden[1].clone(), hidden[0], rtol=tolerance, atol=tolerance)
    assert graphs(model) == kinds, "nothing was compiled for another batch"


@pytest.mark.parametrize(
    ("experts", "dtype", "tolerance", "backend"),
    [
        (0, torch.float64, 1e-12, "eager"),  # which takes a third of the time
        # Experts are added up in another order; their compilation takes ten seconds.
        pytest.param(1, torch.float32, 1e-4, "aot_eager", marks=pytest.mark.nightly),
    ],
)
def test_layers_that_keep_latents_share_a_graph_too(
    experts: int,
    dtype: torch.dtype,
    tolerance: float,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`experts`: how many of the layers have some."""
    monkeypatch.setattr(compiled, "BACKEND", backend)
    config: Any = copy.deepcopy(tiny_config("deepseek_v3"))
    config.first_k_dense_replace = config.num_hidden_layers - experts
    plain = CausalLM.wrap(built(config, dtype), invariant=False)
    model = CausalLM.wrap(built(config, dtype), invariant=False, compile="layer")
    assert all(shape.within for shape in model.layer_shapes)
    assert graphs(model) == 1 + experts
    close(passes(model), passes(plain), tolerance)
    assert graphs(model) == 1 + experts


def features(rows: PagedRows, **how: Any) -> Tensor:
    """What an EAGLE head would be given for a prompt."""
    batch = AttentionBatch(
        (5,),
        torch.tensor([[1, 2]]),
        torch.arange(5),
        torch.arange(4, 9),
        rows.cache,
    )
    return rows.model.forward(torch.arange(5), batch, **how)[1]


@pytest.fixture(scope="module")
def llama() -> CausalLM:
    """Compiled once, for tests that do not change it."""
    model = tiny_model("llama", 1, torch.float64)
    return CausalLM.wrap(model, invariant=False, compile="layer", merge=False)


def test_a_thread_with_other_settings_compiles_nothing(
    llama: CausalLM, caplog: pytest.LogCaptureFixture
) -> None:
    expected, found = passes(llama), list[Tensor]()

    def work() -> None:
        torch.set_num_threads(2)
        found.extend(passes(llama))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    close(found, expected, 0.0)
    assert graphs(llama) == 1
    assert not caplog.records
    assert not compiled._running, "no batch outlives its pass"


def test_under_a_dispatch_mode_and_for_generate_layers_run_as_they_are(llama: CausalLM) -> None:
    names: set[str] = set()

    class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> object:
            names.add(str(func))
            return func(*args, **(kwargs or {}))

    expected = passes(llama)
    with Seen():  # type: ignore[no-untyped-call]
        close(passes(llama), expected, 1e-12)
    assert "aten.silu.default" in names
    assert not any("attend_in_graph" in name for name in names)
    own = own_greedy(tiny_model("llama", 1, torch.float64), [5, 3, 90], 6)
    assert own_greedy(llama.hf, [5, 3, 90], 6) == own


class Kept:
    """A capture on a device, as far as Python sees it: no dispatch mode, and no numbers."""

    live = False
    refused = None
    size = 0

    def __init__(self) -> None:
        self.calls = 0

    def recording(self, pool: str) -> Self:
        return self

    def capture(self) -> nullcontext[None]:
        return nullcontext()

    def between(self, call: Any, *tensors: Tensor) -> None:
        self.calls += 1
        call(*tensors)

    def refuse(self, reason: str) -> NoReturn:
        raise CannotCapture(reason)


@pytest.fixture
def attention_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention is not recorded, as on a device."""
    monkeypatch.setattr(in_pieces, "laid_out", lambda *_: None)


@pytest.mark.usefixtures("attention_between")
def test_compiled_layers_can_be_captured_in_pieces(llama: CausalLM) -> None:
    expected = features(PagedRows(llama), logit_rows=torch.tensor([4]))
    stream: Any = Kept()
    pieces = OpPieces("forward", "compute", Terms(largest=64), stream=stream)
    for _ in range(2):
        found = features(PagedRows(llama), logit_rows=torch.tensor([4]), pieces=pieces)
        torch.testing.assert_close(found.clone(), expected, rtol=0, atol=0)
    assert pieces.counts.captured == 1, pieces.counts
    assert stream.calls == 3, "attention, in each layer"
    assert graphs(llama) == 1


@pytest.mark.usefixtures("attention_between")
@pytest.mark.parametrize("layers", [0, 2])
def test_a_pass_that_cannot_be_recorded_is_done_all_the_same(llama: CausalLM, layers: int) -> None:
    stream: Any = Kept()

    def between(call: Any, *tensors: Tensor) -> None:
        if stream.calls == layers:
            raise RuntimeError("operation not permitted when stream is capturing")
        Kept.between(stream, call, *tensors)

    stream.between = between
    pieces = OpPieces("forward", "compute", Terms(usual=0, largest=64), stream=stream)
    found = features(PagedRows(llama), logit_rows=torch.tensor([4]), pieces=pieces)
    torch.testing.assert_close(found, features(PagedRows(llama)), rtol=0, atol=0)
    assert len(pieces.counts.eager) == 1


def test_wrapped_again_it_is_plain() -> None:
    model = tiny_model("llama", 1, torch.float64)
    CausalLM.wrap(model, invariant=False, compile="layer", merge=False)
    again = CausalLM.wrap(model, invariant=False)
    assert not any("forward" in module.__dict__ for module in model.modules())
    plain = CausalLM.wrap(tiny_model("llama", 1, torch.float64), invariant=False)
    close(passes(again), passes(plain), 0.0)


@pytest.mark.parametrize("style", [pytest.param("eagle", marks=pytest.mark.nightly), "eagle3"])
def test_a_compiled_head_drafts_what_a_plain_one_drafts(style: Any) -> None:
    target, _ = tiny_pair(torch.float64, context=64)
    plain = tiny_eagle(target, style)
    copy = tiny_eagle(tiny_pair(torch.float64, context=64)[0], style)
    lm = CausalLM.wrap(tiny_pair(torch.float64, context=64)[0], invariant=False)
    head = EagleHead(copy.network, lm, copy.draft_ids, compile="layer", merge=True)
    assert head.notes[0] == "head: merged q_proj, k_proj, v_proj in 1 module"
    assert head.notes[-1].startswith("head: compiled 1 layer to 1 graph")
    torch.manual_seed(1)
    hidden = torch.randn(7, plain.feature_size, dtype=torch.float64)
    results = []
    for each in (plain, head):
        cache = each.new_cache(4, 4)
        tables = torch.tensor([[1, 2]])
        batch = AttentionBatch((7,), tables, torch.arange(7), torch.arange(4, 11), cache)
        logits, state = each.forward(torch.arange(7), each.fuse(hidden), batch)
        then = AttentionBatch((1,), tables, torch.tensor([7]), torch.tensor([11]), cache)
        results.append([logits, state, *each.forward(torch.tensor([3]), state[-1:], then)])
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found.clone(), expected, rtol=1e-12, atol=1e-12)
    assert graphs(head) == 1


# --- what is refused


def test_a_layer_that_the_compiler_refuses_is_refused_when_it_is_loaded() -> None:
    model: Any = tiny_model(num_hidden_layers=1)
    layer = model.model.layers[0].mlp
    own = layer.forward
    layer.forward = lambda x: own(x) if float(x.sum()) != 0 else x
    with pytest.raises(CompileFailed, match=r'eager could not compile.*with compile "off"'):
        CausalLM.wrap(model, invariant=False, compile="layer")


def test_a_layer_that_needs_a_graph_for_other_batches_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model: Any = tiny_model(num_hidden_layers=1)
    layer = model.model.layers[0].mlp
    own = layer.forward
    layer.forward = lambda x: own(x) if x.shape[1] != 9 else own(x) * 1.0
    with pytest.raises(CompileFailed, match="compiled again for another number of tokens"):
        CausalLM.wrap(model, invariant=False, compile="layer", merge=False)
    assert "LlamaForCausalLM: compiling a layer again, while it serves" in caplog.messages


def test_a_layer_that_does_not_attend_is_refused_by_name_compiled_or_not(llama: CausalLM) -> None:
    layer: Any = llama._decoder_layers()[2]
    region = layer.__dict__["forward"]
    try:
        layer.__dict__["forward"] = lambda hidden, **_: hidden
        with pytest.raises(AttentionNotCalled, match=r"of 3 layers, \[2\] did not call"):
            passes(llama)
    finally:
        layer.__dict__["forward"] = region


def test_code_that_others_put_in_a_layer_is_not_thrown_out() -> None:
    model: Any = tiny_model()
    layer: nn.Module = model.model.layers[0]
    own = layer.forward
    layer.__dict__["forward"] = lambda *args, **kwargs: own(*args, **kwargs)
    with pytest.raises(CompileFailed, match="other code has replaced the forward"):
        CausalLM.wrap(model, invariant=False, compile="layer")


def test_invariant_and_compiled_exclude_each_other_in_code_and_in_a_config() -> None:
    with pytest.raises(ModelError, match="neither compiled nor merged"):
        CausalLM.wrap(tiny_model(), invariant=True, compile="layer")
    for key, value in (("compile", "layer"), ("merge", "true")):
        with pytest.raises(ConfigError, match=f"`{key}: {value}` changes the order of sums"):
            load_config("synchronous", {f"model.{key}": value})


# --- all of it


def test_the_pipeline_gives_the_same_tokens_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    prompt = (
        "Extract name, age, job and city as JSON: Max Tanaka is a 61-year-old lawyer from Warsaw."
    )
    found = []
    # In float64 two tokens are never so close that the order of sums decides between them.
    exact = {"model.dtype": "float64", "model.invariant": "false"}
    for how in ("off", "layer"):
        llm = LLM(pipeline="async_eagle3_grammar", overrides={**exact, "model.compile": how})
        found.append([output.token_ids for output in llm.generate(prompt)])
        assert llm.summary()["accepted"] > 10
        drafter = llm.engine.resource(HEAD)
        assert drafter is not None
        if how == "layer":
            assert graphs(llm.engine.model) == graphs(drafter) == 1
        llm.close()
    assert found[0] == found[1]
    assert len(found[0][0]) > 20


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="code for the CPU needs a C++ compiler")
def test_generated_code_says_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "inductor")
    caplog.set_level(logging.INFO, "stepweave.models.compiled")
    plain = CausalLM.wrap(tiny_model("llama", 1), invariant=False)
    model = CausalLM.wrap(tiny_model("llama", 1), invariant=False, compile="layer")
    assert graphs(model) == 1
    close(passes(model), passes(plain), 1e-4)
    assert graphs(model) == 1
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "LlamaForCausalLM: compiling its layers with inductor"
    assert said[1].startswith("LlamaForCausalLM: compiled 3 layers to 1 graph with inductor in")
