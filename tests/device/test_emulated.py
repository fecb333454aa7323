"""The emulated device catches what a GPU would refuse or wait for: each rule, by a wrong node."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stepweave.executors import NodeFailure, run
from stepweave.executors.run import EXECUTORS
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.nodes.ops.transfer import download, packed, pinned, upload
from stepweave.testing.devices.virtual_streams import Deferred
from tests.device.emulated import DEVICE, Emulated, Misplaced, Placed


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_arithmetic_there_is_the_arithmetic_here(executor: str) -> None:
    there, here = run_body(_sums, executor), _sums(torch.arange(12.0).view(3, 4))
    assert torch.equal(there.held, here)


def _sums(x: Tensor) -> Tensor:
    order = x.sum(0).argsort(descending=True)
    picked = x[:, order].clone()
    picked[:, 1:3] = torch.where(x[:, :2] > 4, -1.0, picked[:, 1:3])
    return torch.cat([picked, torch.arange(4, device=x.device)[None].float()])


def run_body(body: Callable[[Tensor], Tensor], executor: str = "serial") -> Emulated:
    """Two nodes: one uploads a pinned buffer, the other does `body` with what has arrived."""

    def copy(ctx: OpContext) -> None:
        ctx.write("x", upload(packed(ctx.read("staging"), 3, 4), DEVICE))

    def work(ctx: OpContext) -> None:
        with torch.inference_mode():
            ctx.write("y", body(ctx.read("x")))

    def stage(ctx: OpContext) -> None:
        buffer = ctx.buffer("staging")
        buffer.view(-1).numpy()[:12] = range(12)
        ctx.write("staging", buffer)

    def given() -> Tensor:
        return pinned(4, 8, dtype=torch.float32, device=DEVICE)

    op = Op((Read("x"),), ("y",), run=work)
    graph = StepGraph.build(
        [
            Node(
                "copy",
                (Op(writes=("staging",), run=stage),),
                (Op((Read("staging"),), ("x",), run=copy),),
                stream="compute",
            ),
            Node("work", (Op(),), (op,), stream="other"),
        ],
        [
            Value("staging", "pinned", "slots", allocate=given),
            Value("x", "device", "slots"),
            Value("y", "device", "slots"),
        ],
    )
    below = Deferred(1) if executor == "deferred" else EXECUTORS[executor]
    report = run(compile_plan(graph), executor=Placed(below), steps=2, keep=["y"])
    found = report.kept["y"][0]
    return found  # type: ignore[no-any-return]


HOST = torch.ones(3, 4)
WRONG: dict[str, tuple[str, Callable[[Tensor], object]]] = {
    "a number for the host": ("asks the device", lambda x: x.sum().item()),
    "a decision on the host": ("asks the device", lambda x: x if x.sum() > 3 else -x),
    "where something is": ("asks the device", lambda x: x.nonzero()),
    "a mask as an index": ("asks the device", lambda x: x[x > 3]),
    "a mask as a place to write": ("asks the device", lambda x: x.index_put_((x > 3,), x.sum())),
    "how often each occurs": ("asks the device", lambda x: x.long().flatten().bincount()),
    "whether two are equal": ("asks the device", lambda x: torch.equal(x, x + 1)),
    "repeats that only the device knows": (
        "asks the device",
        lambda x: x.repeat_interleave(x[0].long(), dim=1),
    ),
    "the device's tensor on the host": ("pageable copy", lambda x: x.cpu()),
    "a buffer that is not pinned": (
        "pageable copy",
        lambda x: torch.empty_like(x).copy_(HOST, non_blocking=True),
    ),
    "a copy that waits": ("waiting copy", lambda x: torch.empty_like(x).copy_(HOST)),
    "a pageable copy that says it does not wait": (
        "pageable copy",
        lambda x: HOST.to(DEVICE, non_blocking=True),
    ),
    "a list": ("host", lambda x: x + torch.tensor([1.0, 2, 3, 4]).to(DEVICE)),
    "no device given": ("allocates on the host", lambda x: x + torch.arange(4)),
    "a constant of the host": ("mixed", lambda x: x + HOST),
    "arithmetic on the host": ("computes on the host", lambda x: HOST + 1),
    "a choice of a number of the host": ("mixed", lambda x: torch.where(x > 3, HOST[0, 0], x)),
}


@pytest.mark.parametrize("executor", ["serial", "deferred"])
@pytest.mark.parametrize("what", WRONG)
def test_what_a_device_op_must_not_do(what: str, executor: str) -> None:
    rule, body = WRONG[what]
    assert rule in refused(lambda: run_body(body, executor))  # type: ignore[arg-type]


def refused(work: Callable[[], object]) -> str:
    with pytest.raises(NodeFailure) as failure:
        work()
    cause = failure.value.__cause__
    assert isinstance(cause, Misplaced), cause
    return cause.rule


def test_a_host_op_must_not_touch_the_device() -> None:
    """The graph refuses a host op that reads a value of the device; these do it past the graph."""
    kept = torch.ones(3, device=DEVICE)
    for body in (lambda: kept + 1, lambda: torch.zeros(3, device=DEVICE), lambda: kept.cpu()):

        def work(ctx: OpContext, body: Callable[[], Tensor] = body) -> None:
            body()

        graph = StepGraph.build([Node("work", (Op(run=work),))], [])
        executor = Placed(EXECUTORS["serial"])
        rule = refused(lambda: run(compile_plan(graph), executor=executor, steps=1))  # noqa: B023
        assert rule == "host op on the device"


def test_copies_into_pinned_memory_must_be_packed_and_must_not_wait() -> None:

    def copied(copy: Callable[[Tensor, Tensor], object]) -> list[object]:
        def work(ctx: OpContext) -> None:
            found = torch.ones(2, 3, device=DEVICE)
            copy(found, ctx.buffer("host"))
            ctx.write("host", ctx.buffer("host"))

        graph = StepGraph.build(
            [Node("work", (Op(),), (Op(writes=("host",), run=work),), stream="compute")],
            [
                Value(
                    "host",
                    "pinned",
                    "slots",
                    allocate=lambda: pinned(3, 4, dtype=torch.float32, device=DEVICE),
                )
            ],
        )
        executor = Placed(EXECUTORS["serial"])
        report = run(compile_plan(graph), executor=executor, steps=1, keep=["host"])
        return report.kept["host"][0].view(-1).tolist()  # type: ignore[no-any-return]

    right = copied(lambda found, host: download(found, packed(host, 2, 3)))
    assert right == [1.0] * 6 + [0.0] * 6
    rule = refused(lambda: copied(lambda found, host: download(found, host[:2, :3])))
    assert rule == "scattered copy"
    assert refused(lambda: copied(lambda found, host: host[:2].copy_(found[:, :1]))) == (
        "waiting copy"
    )


def test_host_and_device_never_meet_even_outside_of_ops() -> None:
    with pytest.raises(Misplaced, match="mixed"):
        torch.ones(2, device=DEVICE) @ torch.ones(2)
    assert torch.equal(
        (torch.ones(2, device=DEVICE) + torch.tensor(2)).cpu(), torch.full((2,), 3.0)
    )
