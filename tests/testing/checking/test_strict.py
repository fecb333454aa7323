"""Checking mode finds each kind of broken declaration, and says whose, what and where."""

from __future__ import annotations

import sysconfig
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stepweave.executors import NodeFailure, RunReport, run
from stepweave.executors.errors import ContractViolation
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.node import Node, Op, OpContext, Read, Run, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.models.invariant import linear
from stepweave.testing.checking.mode import Strict
from stepweave.testing.checking.strict import CheckedRun
from stepweave.testing.unverified import run_unverified

EXECUTORS = pytest.mark.parametrize("executor", ["serial", "threads"])


@dataclass(frozen=True)
class Metadata:
    """A value's datum as the decode step has them: nested, with shared and unshared tensors."""

    positions: Tensor
    parts: tuple[Tensor, ...]
    sizes: Mapping[str, Any]


class Cache:
    """A state."""

    def __init__(self) -> None:
        self.layers = [torch.zeros(4), torch.zeros(4)]


def line_of(marker: str) -> int:
    """The line of this file that is marked so."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {marker}")]
    return found


def metadata(ctx: OpContext) -> Metadata:
    with torch.inference_mode():
        base = torch.arange(6) + ctx.step
        return Metadata(
            base.clone(), (base + 1, base + 2), MappingProxyType({"most": (base.double(),)})
        )


def device(name: str, run: Run | None, stream: str = "compute", **op: Any) -> Node:
    return Node(name, (Op(),), (Op(run=run, **op),), stream=stream)


def pipeline(
    buggy: Run,
    reads: tuple[Read, ...] = (Read("inputs"),),
    writes: tuple[str, ...] = ("drafts",),
    **node: Any,
) -> Plan:
    """`prepare` makes inputs and other, `forward` reads the one and fills kv, then `draft`."""

    def prepare(ctx: OpContext) -> None:
        ctx.write("inputs", metadata(ctx))
        ctx.write("other", metadata(ctx))

    def forward(ctx: OpContext) -> None:
        with torch.inference_mode():
            kv: Cache = ctx.state("kv")
            ctx.read("other").positions.sum()
            kv.layers[0].add_(1)
            kv.layers[1].copy_(kv.layers[0])

    draft = device("draft", buggy, reads=reads, writes=writes, **node)
    nodes = [
        device("prepare", prepare, writes=("inputs", "other")),
        device("forward", forward, reads=(Read("other"), Read("kv")), writes=("kv",)),
        draft,
    ]
    values = [Value("inputs", "device", "slots"), Value("other", "device", "slots")]
    values += [Value("drafts", "device", "slots")]
    return compile_plan(StepGraph.build(nodes, values, ("kv",), order="keep"))


def strictly(plan: Plan, executor: str = "serial", **states: object) -> RunReport:
    given = states or ({"kv": Cache()} if "kv" in plan.graph.states else {})
    return run(plan, executor=Strict(executor), steps=4, states=given, watchdog_s=10)


def violation(plan: Plan, executor: str = "serial", **states: object) -> ContractViolation:
    """Of a plan that need not be sound."""
    given = states or ({"kv": Cache()} if "kv" in plan.graph.states else {})
    with pytest.raises(NodeFailure) as caught:
        run_unverified(plan, Strict(executor), RunArguments(4, given, watchdog_s=10))
    cause = caught.value.__cause__
    assert isinstance(cause, ContractViolation)
    assert cause.code in str(caught.value), "the code is in what a user sees"
    assert cause.to_json()["code"] == cause.code
    return cause


def blamed(found: ContractViolation, code: str, value: str, marker: str | None) -> None:
    assert (found.code, found.node, found.op) == (code, "draft", "draft.device")
    assert found.value == value
    if marker is None:
        assert found.source_line is None
    else:
        assert (found.file, found.source_line) == (__file__, line_of(marker))
        assert f"{__file__}:{line_of(marker)}" in str(found)


# --- an input is changed in place


@EXECUTORS
def test_the_drafter_that_counts_on_in_its_input_is_caught(executor: str) -> None:
    """It changed metadata that the main model's copy was still reading."""

    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            ctx.read("inputs").positions.add_(1)  # drafter
        ctx.write("drafts", None)

    found = violation(pipeline(draft), executor)
    blamed(found, "SW-INPUT-CHANGED", "inputs", "drafter")
    assert found.step == 0
    assert "changes inputs.positions in place" in str(found)


def test_a_result_put_into_an_input_is_caught() -> None:
    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            first, second = ctx.read("inputs").parts
            torch.add(first, first, out=second)  # out
        ctx.write("drafts", None)

    found = violation(pipeline(draft))
    blamed(found, "SW-INPUT-CHANGED", "inputs", "out")
    assert "inputs.parts[1]" in str(found)


def by_numpy(data: Metadata) -> None:
    data.sizes["most"][0].numpy()[2] = -1.0


def by_permuting(data: Metadata) -> None:
    data.positions.numpy()[:] = data.positions.numpy()[::-1].copy()


def by_another_thread(data: Metadata) -> None:
    def change() -> None:
        with torch.inference_mode():
            data.parts[0].mul_(2)

    worker = threading.Thread(target=change)
    worker.start()
    worker.join()


@EXECUTORS
@pytest.mark.parametrize(
    ("change", "field"),
    [
        (by_numpy, "inputs.sizes['most'][0]"),
        (by_permuting, "inputs.positions"),
        (by_another_thread, "inputs.parts[0]"),
    ],
)
def test_what_torch_does_not_tell_is_found_in_the_bytes(
    executor: str, change: Callable[[Metadata], None], field: str
) -> None:
    def draft(ctx: OpContext) -> None:
        change(ctx.read("inputs"))
        ctx.write("drafts", None)

    found = violation(allowing_sync(pipeline(draft)), executor)
    blamed(found, "SW-INPUT-CHANGED", "inputs", None)
    assert f"changes {field} in place" in str(found)


def allowing_sync(plan: Plan) -> Plan:
    """The same graph with an `allow_sync` on its drafter."""
    nodes = [replace(n, allow_sync=n.name == "draft") for n in plan.graph.nodes]
    graph = plan.graph
    return compile_plan(
        StepGraph.build(nodes, graph.values.values(), graph.states.values(), order="keep")
    )


def test_a_change_by_one_byte_in_the_middle_of_a_tensor_is_found() -> None:
    def make(ctx: OpContext) -> None:
        ctx.write("x", torch.zeros(100_001, dtype=torch.uint8))

    def look(ctx: OpContext) -> None:
        ctx.read("x").numpy()[54_321] ^= 1

    nodes = [
        Node("make", (Op(writes=("x",), run=make),)),
        Node("look", (Op((Read("x"),), run=look),)),
    ]
    found = violation(compile_plan(StepGraph.build(nodes, [Value("x")], order="keep")))
    assert (found.code, found.node, found.value) == ("SW-INPUT-CHANGED", "look", "x")


def test_a_state_that_is_only_read_may_not_be_changed() -> None:
    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            ctx.state("kv").layers[1].zero_()  # state
        ctx.write("drafts", None)

    found = violation(pipeline(draft, reads=(Read("inputs"), Read("kv"))))
    blamed(found, "SW-INPUT-CHANGED", "kv", "state")
    assert "kv.layers[1]" in str(found)


def test_a_state_that_is_only_read_may_not_be_changed_by_numpy() -> None:
    kv = Cache()
    behind = [layer.numpy() for layer in kv.layers]

    def draft(ctx: OpContext) -> None:
        ctx.state("kv")
        behind[1][3] = 7.0
        ctx.write("drafts", None)

    found = violation(pipeline(draft, reads=(Read("inputs"), Read("kv"))), kv=kv)
    blamed(found, "SW-INPUT-CHANGED", "kv", None)


def test_an_input_that_is_handed_on_is_still_an_input() -> None:
    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            positions: Tensor = ctx.read("inputs").positions
            ctx.write("drafts", positions)
            positions.add_(1)  # handed on

    blamed(violation(pipeline(draft)), "SW-INPUT-CHANGED", "inputs", "handed on")


# --- what was not declared


@EXECUTORS
def test_a_read_of_a_state_through_a_closure_is_caught(executor: str) -> None:
    kv = Cache()
    layer = kv.layers[0]

    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            ctx.write("drafts", layer + 1)  # closure

    found = violation(pipeline(draft), executor, kv=kv)
    blamed(found, "SW-UNDECLARED-READ", "kv", "closure")
    assert "reads kv.layers[0]" in str(found)


def test_a_view_of_undeclared_memory_is_caught_where_it_is_made() -> None:
    kv = Cache()
    layer = kv.layers[0]

    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            part = layer[:2]  # view
            ctx.write("drafts", part.clone())

    blamed(violation(pipeline(draft), kv=kv), "SW-UNDECLARED-READ", "kv", "view")


@EXECUTORS
def test_a_write_to_a_state_through_a_closure_is_caught(executor: str) -> None:
    kv = Cache()
    layer = kv.layers[1]

    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            layer.fill_(3.0)  # write
        ctx.write("drafts", None)

    found = violation(pipeline(draft), executor, kv=kv)
    blamed(found, "SW-UNDECLARED-WRITE", "kv", "write")


def test_a_state_that_is_only_written_may_not_be_read() -> None:
    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            kv: Cache = ctx.state("kv")
            kv.layers[0][:2].copy_(torch.ones(2))
            ctx.write("drafts", kv.layers[0].sum())  # unread

    plan = pipeline(draft, writes=("drafts", "kv"))
    blamed(violation(plan), "SW-UNDECLARED-READ", "kv", "unread")


def test_a_value_kept_from_the_same_step_is_caught() -> None:
    """`other` is handed over outside of the context, under `draft`'s feet."""
    kept: list[Metadata] = []

    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            ctx.write("drafts", kept[-1].positions + 1)  # smuggled

    plan = pipeline(draft)
    original = plan.graph.vertices["forward.device"].op.run
    assert original is not None

    def forward(ctx: OpContext) -> None:
        kept.append(ctx.read("other"))
        original(ctx)

    def late(ctx: OpContext) -> None:
        ctx.read("other")

    nodes = [
        replace(node, device=(replace(node.device[0], run=forward),))
        if node.name == "forward"
        else node
        for node in plan.graph.nodes
    ]
    nodes.append(device("late", late, reads=(Read("other"),)))  # so that `other` is still alive
    graph = StepGraph.build(nodes, plan.graph.values.values(), ("kv",), order="keep")
    found = violation(compile_plan(graph))
    blamed(found, "SW-UNDECLARED-READ", "other", "smuggled")


def test_the_version_before_is_another_value() -> None:
    """An op that declares progress@-1 and keeps them reads progress@-2 one step later."""
    kept: list[Tensor] = []

    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            kept.append(ctx.read("drafts"))
            fresh = torch.ones(3)
            if ctx.step >= 2:
                fresh = fresh + kept[-2]  # two back
            ctx.write("drafts", fresh)

    def late(ctx: OpContext) -> None:
        ctx.read("drafts")

    nodes = [
        device("draft", draft, reads=(Read("drafts", 1),), writes=("drafts",)),
        device("late", late, reads=(Read("drafts", 3),)),
    ]
    values = [Value("drafts", "device", "slots", initial=torch.zeros(3))]
    plan = compile_plan(StepGraph.build(nodes, values, order="keep"))
    found = violation(plan)
    blamed(found, "SW-UNDECLARED-READ", "drafts", "two back")
    assert "a version that it does not declare" in str(found)


def test_memory_that_was_somebody_elses_once_is_the_new_owners() -> None:
    """Part of an array is a value for a moment; later a state has the whole of it."""
    array = np.zeros(8)
    box: dict[str, Tensor] = {}

    def lend(ctx: OpContext) -> None:
        ctx.write("x", torch.from_numpy(array[2:4]) if ctx.step == 0 else None)

    def fill(ctx: OpContext) -> None:
        if ctx.step == 1:
            ctx.state("box")["all"] = torch.from_numpy(array)
        if ctx.step > 1:
            torch.from_numpy(array[2:4]).add_(1)

    nodes = [
        Node("lend", (Op(writes=("x",), run=lend),)),
        Node("fill", (Op(writes=("box",), run=fill),)),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("x")], ("box",), order="keep"))
    strictly(plan, box=box)
    assert array.tolist() == [0, 0, 2, 2, 0, 0, 0, 0]


# --- after the last reader


@EXECUTORS
def test_memory_of_a_version_that_is_over_is_caught(executor: str) -> None:
    kept: list[Metadata] = []

    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            if kept:
                kept[-1].positions.sum()  # too late
            kept.append(ctx.read("inputs"))
        ctx.write("drafts", None)

    found = violation(pipeline(draft), executor)
    blamed(found, "SW-READ-TOO-LATE", "inputs", "too late")
    assert "of step 0, whose last declared reader is done" in str(found)
    assert found.step == 1


def spied(values: list[Value], make: Run, steps: int = 3, **reading: Any) -> list[Any]:
    """What a reader that keeps `x` finds in it one step later, by numpy, behind torch's back."""
    kept: list[Any] = []
    seen: list[Any] = []

    def look(ctx: OpContext) -> None:
        if kept:
            seen.append(kept[-1].tolist())
        kept.append(ctx.read("x").numpy())

    nodes = [
        Node("make", (Op(writes=("x",), run=make),)),
        Node("look", (Op((Read("x"),), run=look),)),
    ]
    plan = compile_plan(StepGraph.build(nodes, values, order="keep"))
    run(plan, executor=Strict(), steps=steps, **reading)
    return seen


@pytest.mark.parametrize(
    ("dtype", "garbage"),
    [
        (torch.float32, "nan"),
        (torch.int64, str(-(2**31))),
        (torch.int16, str(-(2**15))),
        (torch.uint8, str(0xAA)),
        (torch.bool, "True"),
    ],
)
def test_a_late_reader_finds_poison(dtype: torch.dtype, garbage: str) -> None:
    seen = spied([Value("x")], lambda ctx: ctx.write("x", torch.zeros(2, dtype=dtype)))
    assert [str(number) for number in seen[0]] == [garbage, garbage]


def test_a_slot_is_poisoned_before_it_is_filled_again() -> None:
    """A writer that fills less than its readers take would hand on what an older step left."""
    taken: list[list[float]] = []

    def make(ctx: OpContext) -> None:
        buffer: Tensor = ctx.buffer("x")
        buffer[: 3 - ctx.step % 3].fill_(float(ctx.step))
        ctx.write("x", buffer)

    def look(ctx: OpContext) -> None:
        taken.append(ctx.read("x").tolist())

    nodes = [
        Node("make", (Op(writes=("x",), run=make),)),
        Node("look", (Op((Read("x"),), run=look),)),
    ]
    value = Value("x", storage="slots", slots=1, allocate=lambda: torch.zeros(3))
    plan = compile_plan(StepGraph.build(nodes, [value], order="keep"))
    run(plan, steps=2)
    assert taken[1] == [1.0, 1.0, 0.0], "what step 0 left"
    taken.clear()
    run(plan, executor=Strict(), steps=2)
    assert [str(number) for number in taken[1]] == ["1.0", "1.0", "nan"]


def test_what_another_version_shares_is_not_poisoned() -> None:
    """A step that changes nothing hands its tails on: the tensors live under the next version."""
    seen: list[list[float]] = []

    def hand_on(ctx: OpContext) -> None:
        with torch.inference_mode():
            tails: Tensor = ctx.read("x")
            seen.append(tails.tolist())
            ctx.write("x", tails + 1 if ctx.step % 3 == 0 else tails)

    values = [Value("x", initial=torch.zeros(2))]
    nodes = [Node("sample", (Op((Read("x", 1),), writes=("x",), run=hand_on),))]
    plan = compile_plan(StepGraph.build(nodes, values, order="keep"))
    run(plan, executor=Strict(), steps=8)
    assert [first for first, _ in seen] == [0, 1, 1, 1, 2, 2, 2, 3]


def test_a_constant_that_is_published_is_not_poisoned() -> None:
    constant = torch.arange(3.0)
    spied([Value("x")], lambda ctx: ctx.write("x", constant), steps=5)
    assert constant.tolist() == [0.0, 1.0, 2.0]


def test_versions_that_the_run_returns_are_not_poisoned() -> None:
    def make(ctx: OpContext) -> None:
        ctx.write("x", torch.full((2,), float(ctx.step)))

    def fill(ctx: OpContext) -> None:
        buffer: Tensor = ctx.buffer("y")
        ctx.write("y", buffer.fill_(ctx.step))

    nodes = [
        Node("make", (Op(writes=("x",), run=make),)),
        Node("fill", (Op(writes=("y",), run=fill),)),
    ]
    slots = Value("y", storage="slots", slots=1, allocate=lambda: torch.zeros(1))
    plan = compile_plan(StepGraph.build(nodes, [Value("x"), slots], order="keep"))
    report = run(plan, executor=Strict(), steps=3, keep=["x", "y"])
    assert [tensor.tolist() for tensor in report.kept["x"]] == [[0, 0], [1, 1], [2, 2]]
    assert [tensor.tolist() for tensor in report.kept["y"]] == [[0], [1], [2]]


# --- the wrong version


def test_a_reader_before_its_writer_is_caught() -> None:
    """A plan whose wait was taken away: the slot still holds an older version."""

    def make(ctx: OpContext) -> None:
        time.sleep(0.02)
        ctx.write("x", torch.full((1,), float(ctx.step)))

    def look(ctx: OpContext) -> None:
        ctx.read("x").sum()

    nodes = [
        device("make", make, writes=("x",)),
        device("look", look, stream="copy", reads=(Read("x"),)),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("x", "device", "slots")], order="keep"))
    strictly(plan, "threads")
    assert plan.waits
    found = violation(replace(plan, waits=()), "threads")
    assert (found.code, found.op, found.value) == ("SW-WRONG-VERSION", "look.device", "x")


def test_a_slot_that_was_refilled_too_early_is_caught() -> None:
    def make(ctx: OpContext) -> None:
        ctx.write("x", torch.full((1,), float(ctx.step)))

    def look(ctx: OpContext) -> None:
        ctx.read("x")

    nodes = [
        Node("make", (Op(writes=("x",), run=make),)),
        Node("look", (Op((Read("x", 1),), run=look),)),
    ]
    value = Value("x", storage="slots", slots=2, initial=torch.zeros(1))
    plan = compile_plan(StepGraph.build(nodes, [value], order="keep"))
    strictly(plan, "threads")
    found = violation(replace(plan, slots={"x": 1}), "threads")
    assert (found.code, found.op, found.value) == ("SW-WRONG-VERSION", "look.host", "x")
    assert found.step == 1
    assert "the slot was refilled" in str(found)


def test_a_value_that_is_part_of_a_state_is_refused() -> None:
    def draft(ctx: OpContext) -> None:
        ctx.write("drafts", ctx.state("kv").layers[0])  # alias

    found = violation(pipeline(draft, reads=(Read("kv"),)))
    blamed(found, "SW-SHARED-MEMORY", "drafts", "alias")
    assert "publish a copy" in str(found)


# --- hidden synchronization

X = torch.arange(6.0)
HIDDEN: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "truth": lambda x: bool(x.any()),
    "branch": lambda x: 1 if x[0] > 0 else 0,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu"),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 1),
    "boolean mask": lambda x: x[x > 1],
    "assignment by mask": lambda x: x.clone().__setitem__(x > 1, torch.ones(4)),
    "masked_select": lambda x: x.masked_select(x > 1),
    "unique": lambda x: torch.unique(x),
    "repeat_interleave": lambda x: x.repeat_interleave(torch.ones(6, dtype=torch.int64)),
    "equal": lambda x: torch.equal(x, x),
    "pageable copy": lambda x: x + torch.tensor([1.0] * 6),
}


@pytest.mark.parametrize(
    "mode", [torch.inference_mode, torch.no_grad], ids=["inference", "no_grad"]
)
@pytest.mark.parametrize("name", HIDDEN)
def test_a_hidden_wait_is_an_error_that_names_the_line(name: str, mode: Any) -> None:
    def draft(ctx: OpContext) -> None:
        with mode():
            HIDDEN[name](X)
        ctx.write("drafts", None)

    found = violation(pipeline(draft))
    assert (found.code, found.node, found.op) == ("SW-HIDDEN-SYNC", "draft", "draft.device")
    assert found.file == __file__
    assert found.source_line is not None
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[found.source_line - 1]
    assert line.strip().startswith(f'"{name}"')


@EXECUTORS
def test_a_node_that_may_wait_does(executor: str) -> None:
    def draft(ctx: OpContext) -> None:
        for hidden in HIDDEN.values():
            hidden(X)
        ctx.write("drafts", None)

    strictly(allowing_sync(pipeline(draft)), executor)


def test_what_stays_on_the_device_is_no_wait() -> None:
    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            x: Tensor = ctx.read("inputs").positions
            x.masked_fill(x > 0, 2)[torch.zeros(2, dtype=torch.int64)].any()
            x.repeat_interleave(2, output_size=12).to(torch.float64).to(x.device)
            x.new_empty(6).copy_(x, non_blocking=True)
            ctx.write("drafts", torch.where(x > 1, x, -1))

    strictly(pipeline(draft))


def test_a_wait_inside_an_installed_package_names_both_lines() -> None:
    file = str(Path(sysconfig.get_path("purelib")) / "somebodys" / "model.py")
    theirs: dict[str, Any] = {}
    exec(compile("def ask(x):\n    return x.sum().item()\n", file, "exec"), theirs)

    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            theirs["ask"](X)  # calls
        ctx.write("drafts", None)

    found = violation(pipeline(draft))
    assert (found.code, found.file, found.source_line) == ("SW-HIDDEN-SYNC", file, 2)
    assert f"{file}:2, in ask, called from {__file__}:{line_of('calls')}" in str(found)


def test_a_trial_of_tiles_may_compare_on_the_host() -> None:
    """Invariant layers try, once for each shape, which tiles give equal bits."""
    weight = torch.randn(37, 53)  # a shape that nothing else here has

    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            ctx.write("drafts", linear(torch.randn(5, 53), weight))

    strictly(pipeline(draft))

    def forgotten(ctx: OpContext) -> None:
        with torch.inference_mode():
            torch.equal(weight, weight)  # not a trial
        ctx.write("drafts", None)

    blamed(violation(pipeline(forgotten)), "SW-HIDDEN-SYNC", "", "not a trial")


def test_an_op_that_swallows_the_error_does_not_hide_it() -> None:
    def draft(ctx: OpContext) -> None:
        with suppress(Exception):
            X[0].item()  # swallowed
        ctx.write("drafts", None)

    blamed(violation(pipeline(draft)), "SW-HIDDEN-SYNC", "", "swallowed")


# --- what is declared in vain


def test_a_declared_access_that_never_happens_is_reported() -> None:
    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            ctx.read("other")  # asked for, and not looked at
            ctx.write("drafts", ctx.read("inputs").positions + 1)

    plan = pipeline(
        draft, reads=(Read("inputs"), Read("other"), Read("kv")), writes=("drafts", "kv")
    )
    assert [tuple(each) for each in strictly(plan).unused] == [
        ("draft", "draft.device", "other", "read"),
        ("draft", "draft.device", "kv", "write"),
    ]
    plan = pipeline(draft, reads=(Read("inputs"), Read("other"), Read("kv")))
    assert [tuple(each) for each in strictly(plan).unused] == [
        ("draft", "draft.device", "other", "read"),
        ("draft", "draft.device", "kv", "read"),
    ]


def test_what_is_handed_on_and_what_is_used_once_counts_as_used() -> None:
    def draft(ctx: OpContext) -> None:
        with torch.inference_mode():
            ctx.write("drafts", ctx.read("inputs"))  # used by passing it on
            if ctx.step == 2:
                ctx.read("other").parts[0].sum()

    assert strictly(pipeline(draft, reads=(Read("inputs"), Read("other")))).unused == ()


def test_values_without_tensors_are_not_reported() -> None:
    nodes = [
        Node("make", (Op(writes=("x",), run=lambda ctx: ctx.write("x", 1)),)),
        Node("look", (Op((Read("x"),), run=lambda ctx: None),)),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("x")], order="keep"))
    assert run(plan, executor=Strict(), steps=3).unused == ()


# --- and off


def test_off_leaves_everything_as_it_was() -> None:
    before = {name: getattr(Tensor, name) for name in ("tolist", "numpy", "cpu", "to")}
    factory = torch.tensor

    def draft(ctx: OpContext) -> None:
        assert torch.tensor is not factory, "watched within"
        ctx.write("drafts", None)

    strictly(pipeline(draft))
    assert {name: getattr(Tensor, name) for name in before} == before
    assert "tolist" not in vars(Tensor)
    assert torch.tensor is factory

    def buggy(ctx: OpContext) -> None:
        assert torch.tensor is factory
        ctx.read("inputs").positions.tolist()
        ctx.write("drafts", None)

    report = run(pipeline(buggy), steps=4, states={"kv": Cache()})
    assert report.unused == ()


def test_a_run_that_fails_leaves_nothing_either() -> None:
    factory = torch.tensor

    def draft(ctx: OpContext) -> None:
        X[0].item()

    violation(pipeline(draft), "threads")
    assert torch.tensor is factory


def test_memory_of_a_state_that_an_op_beside_notes_first_is_the_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Users of other keys end while this op runs, and what it gave the state is noted then."""
    looked: list[CheckedRun] = []
    look = CheckedRun.look_at

    def noted(self: CheckedRun, states: tuple[str, ...]) -> None:
        looked.append(self)
        look(self, states)

    def grow(ctx: OpContext) -> None:
        kv: Cache = ctx.state("kv")
        with torch.inference_mode():
            kv.layers.append(torch.zeros(4))
            looked[-1].look_at(("kv",))
            kv.layers[-1].add_(1)
            ctx.write("drafts", kv.layers[-1].clone())

    monkeypatch.setattr(CheckedRun, "look_at", noted)
    reads = (Read("kv"), Read("inputs"))
    strictly(pipeline(grow, reads=reads, writes=("drafts", "kv")))
    found = violation(pipeline(grow, reads=reads, writes=("drafts",)))
    assert found.code in ("SW-INPUT-CHANGED", "SW-UNDECLARED-WRITE"), "it only reads the state"
