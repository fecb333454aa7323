"""The operators: which implementation they take, and what compilers make of them."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.backends import kernels as switch
from stepweave.backends.kernels import KernelsUnavailable, chosen, takes
from stepweave.backends.registry import backend_named
from stepweave.models import attention, kernels
from stepweave.models.causal_lm import CausalLM
from stepweave.models.kernels import operators, packed
from stepweave.testing.models import tiny_model
from tests.models.interpreter import Interpreter
from tests.models.paged_oracle import Batch
from tests.models.paged_rows import PagedRows, own_greedy
from tests.models.test_attention import Keys
from tests.models.test_kernels_packed import ragged

PROMPT = [5, 9, 2, 7, 11]


def greedy(rows: PagedRows, count: int) -> list[int]:
    """Greedy tokens after `PROMPT`, beside a prompt in chunks and with masked tokens."""
    out: list[int] = []
    logits = rows.feed(("mine", PROMPT), ("other", range(9)))[0]
    for step in range(count):
        out.append(int(logits[-1].argmax()))
        _, logits = rows.feed(("other", [step, 3]), ("mine", [out[-1]]), masked=1)
    return out


def greedy_of(family: str, count: int) -> list[int]:
    """In the interpreter's process, where models attend with the Triton kernels."""
    model = tiny_model(family, num_hidden_layers=2)
    return greedy(PagedRows(CausalLM.wrap(model, invariant=False)), count)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_a_model_on_the_triton_kernels_says_what_it_says_on_its_own(
    interpreted: Interpreter, family: str
) -> None:
    wanted = own_greedy(tiny_model(family, num_hidden_layers=2), PROMPT, 2)
    assert interpreted(f"{__name__}:greedy_of", family, 2) == wanted


def test_a_compiled_model_is_one_graph_and_says_the_same() -> None:
    model = tiny_model(num_hidden_layers=1)
    wanted = own_greedy(model, PROMPT, 4)
    wrapped = CausalLM.wrap(model, invariant=False)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model.compile(fullgraph=True, backend="aot_eager")
    assert greedy(PagedRows(wrapped), 4) == wanted
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert 1 <= graphs <= 5
    assert not torch._dynamo.utils.counters["graph_break"]
    torch._dynamo.reset()


def test_windows_and_prompts_of_one_batch_are_attended_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts: list[int] = []

    @wraps(ragged)
    def kernel(*args: Any, **kwargs: Any) -> Tensor:
        prompts.append(len(args[3]) - 1)
        return ragged(*args, **kwargs)

    monkeypatch.setattr(attention, "_by_operators", lambda device: True)
    monkeypatch.setattr(packed, "fits", lambda query, values, how: True)
    monkeypatch.setattr(packed, "_kernel", lambda: kernel)
    keys = Keys((150, 30, 70, 40, 31))
    for how in ({}, {"sliding_window": 9}):
        keys.attend((0, 0, 146), (1, 0, 29), (2, 0, 50), paged_invariant=False)
        prompts.clear()
        chunks = ((0, 146, 150), (3, 0, 20), (1, 29, 30), (2, 50, 67), (4, 0, 31))
        out = keys.attend(*chunks, masked=1, spare=2, paged_invariant=False, **how)
        assert prompts == [3]  # all prompts at once, whatever their lengths
        for (r, start, stop), got in zip(chunks, out, strict=True):
            expected = keys.plain(r, **how)[start:stop].float()
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("query_len", [1, 3])
def test_the_operators_keep_what_they_promise_to_compilers(query_len: int) -> None:
    batch = Batch((9, 5), query_len)
    query, keys, values = (x.nan_to_num() for x in batch.arguments()[:3])
    sinks = torch.randn(batch.heads)
    attend = (query, keys, values, batch.tables, batch.positions, query_len, 4, 0.3, 5, 2.0, sinks)
    torch.library.opcheck(operators.attend_paged, attend)
    new = torch.randn(3, *keys.shape[1:])
    torch.library.opcheck(
        operators.write_cache, (keys, values, torch.tensor([1, 2, 3]), new, new.clone())
    )


def test_the_reference_agrees_with_the_textbook() -> None:
    batch = Batch((9, 5), 3)
    query, keys, values = (x.nan_to_num() for x in batch.arguments()[:3])
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    for window, cap, sink in ((None, None, None), (4, 2.0, sinks), (1, None, sinks)):
        out = operators.attend_paged(
            query, keys, values, batch.tables, batch.positions, 3, 4, 0.3, window, cap, sink
        )
        expected = batch.expected(0.3, window, cap, sink)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=3e-6)


def test_on_the_cpu_no_kernel_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("split_kv", "write_cache"):
        monkeypatch.delattr(kernels, name, raising=False)
        monkeypatch.setitem(sys.modules, f"{kernels.__name__}.{name}", None)
    batch = Batch((9, 5), 3)
    query, keys, values = (x.nan_to_num() for x in batch.arguments()[:3])
    operators.attend_paged(query, keys, values, batch.tables, batch.positions, 3, 4, 0.3)
    operators.write_cache(keys, values, torch.tensor([1]), keys[:1].clone(), values[:1].clone())
    monkeypatch.setenv(switch.VARIABLE, "triton")
    with pytest.raises(ImportError):
        operators.attend_paged(query, keys, values, batch.tables, batch.positions, 3, 4, 0.3)


CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def test_triton_runs_on_cuda_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(switch.VARIABLE, raising=False)
    monkeypatch.setattr(switch, "_installed", lambda: "3.7.1")
    assert takes(CUDA, torch.bfloat16)
    assert not takes(CUDA, torch.float64)
    assert not takes(CPU, torch.float32)
    monkeypatch.setattr(switch, "_installed", lambda: None)
    assert not takes(CUDA, torch.bfloat16)


def test_the_environment_may_force_an_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "_installed", lambda: "3.7.1")
    monkeypatch.setenv(switch.VARIABLE, "reference")
    assert not takes(CUDA, torch.bfloat16)
    monkeypatch.setenv(switch.VARIABLE, "triton")
    assert takes(CPU, torch.float32)
    monkeypatch.setenv(switch.VARIABLE, "tritn")
    with pytest.raises(KernelsUnavailable, match=r"is 'tritn' \(did you mean 'triton'"):
        takes(CPU, torch.float32)
    monkeypatch.setenv(switch.VARIABLE, "triton")
    monkeypatch.setattr(switch, "_installed", lambda: None)
    with pytest.raises(KernelsUnavailable, match="not installed"):
        takes(CPU, torch.float32)


def test_people_are_told_what_runs_and_why_not_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(switch.VARIABLE, raising=False)
    monkeypatch.setattr(switch, "_installed", lambda: "3.7.1")
    host, gpu = backend_named("cpu"), backend_named("cuda")
    capability = (9, 0)
    monkeypatch.setattr(type(gpu), "device", lambda self, name: CUDA)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert set(chosen(host)) == {"triton", "varlen", "reference"}
    no_other = "not used: there is no device but the host"
    assert chosen(host)["triton"] == f"{no_other} (Triton 3.7.1)"
    assert chosen(host)["varlen"] == no_other
    assert chosen(host)["reference"] == "used"
    assert chosen(gpu)["triton"] == "used for attention, the cache and sampling (Triton 3.7.1)"
    assert chosen(gpu)["varlen"].startswith("used for prompts")
    assert chosen(gpu)["reference"] == "used for float64"
    capability = (7, 5)
    assert chosen(gpu)["varlen"] == "not used: it needs a device of compute capability 8.0"
    monkeypatch.setenv(switch.VARIABLE, "reference")
    by_force = f"({switch.VARIABLE} asks for reference)"
    assert chosen(gpu) == {
        "triton": f"not used {by_force}",
        "varlen": f"not used {by_force}",
        "reference": f"used {by_force}",
    }
    monkeypatch.setenv(switch.VARIABLE, "triton")
    assert chosen(host)["triton"].startswith("used for attention")
    monkeypatch.delenv(switch.VARIABLE)
    monkeypatch.setattr(switch, "_installed", lambda: None)
    assert chosen(gpu)["triton"] == "not used: Triton is not installed"
    assert chosen(gpu)["reference"] == "used"
