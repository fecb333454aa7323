"""Operations as one call: the same operations, in the same order, with the same bits."""

from __future__ import annotations

import threading
from time import monotonic

import pytest
import torch
from torch import Tensor

from stepweave.backends.tape.calls import same_bits
from stepweave.backends.tape.program import Operation, in_few_calls, operation
from tests.interpreter_lock import nobody_is_interrupted

aten = torch.ops.aten


def steps(out: Tensor) -> list[Operation]:
    """Operations on `out[4, 8]` that give other numbers in any other order."""
    half, x = torch.empty(4, 4), torch.arange(32.0).view(4, 8)
    chosen = torch.tensor([3, 0, 2, 1])
    return [
        operation(aten.mul.out, (x, 0.1), {"out": out}),
        operation(aten.add_.Tensor, (out, 1), {"alpha": 2}),
        operation(aten.index.Tensor_out, (x, [None, chosen]), {"out": half}),
        operation(aten.cat.out, ([half, half], -1), {"out": x}),
        operation(aten.mean.out, (x, [-1], True), {"out": half[:, :1]}),
        operation(aten.sub_.Tensor, (out, half[:, :1]), {}),
        operation(aten.div_.Tensor, (out, 3), {}),
        operation(aten.flip.default, (out, [1]), {}, [out]),
        operation(aten.aminmax.default, (x,), {"dim": 0}, [out[0], out[1]]),
    ]


def test_one_call_does_what_the_operations_do_one_by_one() -> None:
    expected, out = torch.zeros(4, 8), torch.zeros(4, 8)
    for step in steps(expected):
        step()
    [call] = in_few_calls(steps(out))
    assert not out.any(), "nothing is done before the call"
    call()
    assert same_bits(out, expected)
    call()
    assert not same_bits(out, expected), "it computes anew: `x` is what it made of it before"


def test_one_call_is_done_while_another_thread_keeps_the_lock_of_the_interpreter() -> None:
    """torch takes it to let go of a tensor that only Python has, as those of a call may be."""
    last = torch.zeros(1)
    seen = last.numpy()  # to look without a call of torch, which would give the lock back
    adds = [operation(aten.add_.Tensor, (torch.zeros(4), 1), {}) for _ in range(20)]
    [call] = in_few_calls([*adds, operation(aten.add_.Tensor, (last, 1), {})])
    with nobody_is_interrupted():
        thread = threading.Thread(target=call)
        thread.start()  # it has the lock until it is within the call
        until = monotonic() + 60
        while not seen[0] and monotonic() < until:
            pass
        done = bool(seen[0])
    thread.join()
    assert done


def test_what_cannot_be_written_down_is_called_where_it_stands() -> None:
    expected, out, halves = torch.zeros(4, 8), torch.zeros(4, 8), torch.empty(2, 2, 8)
    before = [*steps(expected), operation(aten.split.Tensor, (expected, 2), {}, list(halves))]
    for step in [*before, *steps(expected)]:
        step()
    there, halves = halves, torch.empty(2, 2, 8)
    listed = operation(aten.split.Tensor, (out, 2), {}, list(halves))
    calls = in_few_calls([*steps(out), listed, *steps(out)])
    assert len(calls) == 3
    assert calls[1] is listed
    for call in calls:
        call()
    assert same_bits(out, expected)
    assert same_bits(halves, there)


def test_without_torchscript_operations_are_called_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch._C, "_create_function_from_graph")
    expected, out = torch.zeros(4, 8), torch.zeros(4, 8)
    [call] = in_few_calls(steps(expected)[:1])
    assert isinstance(call, Operation)
    for step in steps(expected):
        step()
    for call in in_few_calls(steps(out)):
        call()
    assert same_bits(out, expected)


def test_numbers_are_taken_as_those_of_python_are() -> None:
    """A number must not make a tensor of another type out of what it meets."""
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = torch.arange(6).to(dtype)
        for number in (3, 2.5) if dtype.is_floating_point else (3,):
            out = torch.empty(6, dtype=dtype)
            for call in in_few_calls([operation(aten.mul.out, (x, number), {"out": out})] * 2):
                call()
            assert same_bits(out, x * number)
