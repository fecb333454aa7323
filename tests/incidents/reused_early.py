"""A: a buffer is used again too early (write after read)."""

from __future__ import annotations

import torch

from stepweave.cli.planned import planned
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from tests.graph.build import device, host, op, staged, value
from tests.graph.pipelines import decode
from tests.incidents.incident import (
    Derived,
    Incident,
    Mistake,
    Refusal,
    planned_for,
    strictly,
    with_slots,
    without_wait,
    written,
)

LOOP_WAITS = (
    "forward.device → d2h_copy.device +0",
    "d2h_copy.device → commit.host +0",
)


def the_shipped_pipelines_stage_in_two_buffers() -> None:
    """With one buffer they get the guard that was written by hand elsewhere."""
    for name in ("async", "quickstart"):
        free, tight = planned(name), planned(name, {"slots.staging": "1"})
        assert free.slots["staging"] == 2
        guard = "prepare_inputs.device → prepare_inputs.host +1"
        assert guard in set(written(tight)) - set(written(free))


def lengths(drafter_writes: bool = True) -> StepGraph:
    """Sequence lengths on the host: uploaded for the model, moved on by the drafter's launch."""
    return StepGraph.build(
        [
            host("schedule", op("lengths", "lengths", 300)),
            device("prepare", op(cost=100), op("lengths", "inputs", 30)),
            device("forward", op(cost=150), op("inputs kv", "sampled kv", 4000)),
            device(
                "draft",
                op("lengths", "lengths" if drafter_writes else "", 80),
                op("sampled", "drafts", 600),
            ),
        ],
        [value("inputs", "device"), value("sampled", "device"), value("drafts", "device")],
        ["lengths", "kv"],
        order="keep",
    )


def change_what_is_only_read() -> None:
    """A drafter that moves lengths on in place, having declared that it reads them."""

    def drafts(ctx: OpContext) -> None:
        ctx.read("lengths").add_(1)
        ctx.write("drafts", ctx.read("lengths") * 2)

    strictly(
        StepGraph.build(
            [
                Node(
                    "schedule",
                    (Op(writes=("lengths",), run=lambda c: c.write("lengths", torch.ones(4))),),
                ),
                Node("draft", (Op(reads=(Read("lengths"),), writes=("drafts",), run=drafts),)),
            ],
            [Value("lengths"), Value("drafts")],
            order="keep",
        )
    )


def stages(depth: int) -> StepGraph:
    """Two pipeline stages; the second reads the step's metadata long after the first."""
    return StepGraph.build(
        [
            host("schedule", op("settled@-" + str(depth), "batch", 300)),
            device("prepare", op("batch", "staging", 400), op("staging", "inputs", 30)),
            device("stage0", op(cost=100), op("inputs kv0", "hidden kv0", 2000)),
            device(
                "stage1", op(cost=100), op("hidden staging kv1", "sampled kv1", 2000), stream="s1"
            ),
            device("d2h_copy", op(cost=30), op("sampled", "out", 40), stream="copy"),
            host("commit", op("out", "settled", 200), offset=depth - 1),
        ],
        [
            value("settled"),
            value("batch"),
            value("staging", "pinned"),
            value("inputs", "device"),
            value("hidden", "device"),
            value("sampled", "device"),
            value("out", "pinned"),
        ],
        ["kv0", "kv1"],
        order="keep",
    )


def captured(drafter_writes: bool = True) -> StepGraph:
    """Two captured graphs in one pool: the drafter's replay writes where the logprobs lie."""
    return StepGraph.build(
        [
            device("forward", op(cost=100), op("kv", "pool kv", 4000)),
            device("logprobs", op(cost=30), op("pool", "copied", 40), stream="copy"),
            device("draft", op(cost=80), op("kv", "drafts" + " pool" * drafter_writes, 600)),
            host("commit", op("copied", "settled", 200), offset=1),
        ],
        [value("copied", "pinned"), value("drafts", "device"), value("settled")],
        ["pool", "kv"],
        order="keep",
    )


def request_table(phases: bool = True) -> StepGraph:
    """The table of a request's blocks: written by the scheduler, read to build the metadata."""
    parts = (
        (op("table", "metadata", 50, "metadata"), op("metadata kv", "sampled kv", 4000, "attend"))
        if phases
        else (op("table kv", "metadata sampled kv", 4050),)
    )
    return StepGraph.build(
        [
            host("schedule", op("table", "table", 300)),
            device("forward", op(cost=150), *parts),
        ],
        [value("metadata", "device"), value("sampled", "device")],
        ["table", "kv"],
        order="keep",
    )


def the_read_ends_with_the_metadata() -> None:
    fine, coarse = compile_plan(request_table()), compile_plan(request_table(phases=False))
    assert [wait.source for wait in coarse.waits] == ["forward.device"]
    assert coarse.period_us - fine.period_us == 450, "the schedule and launch are hidden"


def library_plan(declared: bool = True) -> StepGraph:
    """An attention library that plans on the host, in a pinned buffer of its own."""
    hidden = "workspace" if declared else ""
    return StepGraph.build(
        [
            host("schedule", op(writes="batch", cost=300)),
            device("attention_plan", op("batch", hidden, 100), op(hidden, "plan", 20)),
            device("forward", op(cost=150), op("plan kv", "kv", 4000)),
        ],
        [value("batch"), value("plan", "device")],
        ["kv", "workspace"],
        order="keep",
    )


def freed(declared: bool = True) -> StepGraph:
    """A tensor of the compute stream, read on a side stream, then given to the allocator."""
    return StepGraph.build(
        [
            device("forward", op(cost=150), op("memory kv", "memory kv", 4000)),
            device("offload", op(cost=30), op("memory", "copied", 900), stream="side"),
            host("release", op("", "memory" if declared else "", 10)),
            host("commit", op("copied", "settled", 200), offset=1),
        ],
        [value("copied", "pinned"), value("settled")],
        ["memory", "kv"],
        order="keep",
    )


def recorded_event(slots: int | None = None) -> StepGraph:
    """An event as what it is: recorded by the copy, looked at by who waits for it."""
    return StepGraph.build(
        [
            host("schedule", op(writes="batch", cost=300)),
            device("forward", op("batch", cost=150), op("kv", "sampled kv", 4000)),
            device("d2h_copy", op(cost=30), op("sampled", "event", 40)),
            host("commit", op("event", "settled", 200), offset=1),
        ],
        [
            value("batch"),
            value("sampled", "device"),
            value("event", "pinned", slots),
            value("settled"),
        ],
        ["kv"],
        order="keep",
    )


INCIDENTS = [
    Incident(
        "A1",
        "vLLM #23569, #24527, #25279",
        "pinned input buffers were rewritten by the next step's host work while the copy to the "
        "device was in flight",
        "the copy is a device-side read of the pinned value: two slots, so that the host fills one "
        "while the other is read",
        Derived(
            lambda: decode(None),
            LOOP_WAITS,
            {"staging": 2},
            ("WAR staging: prepare.device → prepare.host +2",),
        ),
        (
            Mistake(
                "one buffer and no guard",
                with_slots(staging=1),
                "SW-WAR-DEVICE-HOST",
                (
                    "prepare.host of step i+1 may write it before prepare.device of step i has",
                    "let prepare.host wait for prepare.device of the step before; or give "
                    "'staging' 2 slots",
                ),
            ),
            Mistake(
                "one buffer, its guard lost",
                lambda plan: without_wait("prepare.device", "prepare.host")(
                    compile_plan(decode(1))
                ),
                "SW-WAR-DEVICE-HOST",
                ("'staging' (1 slot)",),
            ),
        ),
        safe=the_shipped_pipelines_stage_in_two_buffers,
    ),
    Incident(
        "A2",
        "vLLM #24799",
        "the drafter changed `seq_lens_cpu` in place while the main model's copy of it was in "
        "flight: 656 drafts of 2,094 accepted instead of 1,024 of 2,034, and no error",
        "the change is a write, so the drafter waits for the copy; undeclared, it is an error",
        Derived(
            lengths,
            ("prepare.device → draft.host +0",),
            orders=("WAR lengths: prepare.device → draft.host +0",),
        ),
        (
            Mistake(
                "declared as a read only",
                planned_for(lambda: lengths(drafter_writes=False)),
                "SW-WAR-DEVICE-HOST",
                ("draft.host of step i may write it before prepare.device of step i has read it",),
            ),
        ),
        refusals=(
            Refusal(
                "a node changes in place what it declares to read (checking mode)",
                change_what_is_only_read,
                "SW-INPUT-CHANGED",
                ("op 'draft.host', in step 0, changes lengths in place",),
            ),
        ),
    ),
    Incident(
        "A3",
        "vLLM #47644",
        "the guard of the input buffers existed for asynchronous mode only; pipeline-parallel "
        "depth needs it too",
        "slots follow from the distance to the last reader, whatever makes it long: four buffers "
        "at depth 4, two at depth 2",
        Derived(
            lambda: stages(4),
            (
                "stage0.device → stage1.device +0",
                "stage1.device → d2h_copy.device +0",
                "d2h_copy.device → commit.host +0",
            ),
            {"staging": 4, "out": 4},
        ),
        (
            Mistake(
                "the two buffers that depth 2 needs",
                with_slots(staging=2),
                "SW-WAR-DEVICE-HOST",
                ("stage1.device", "give 'staging' 4 slots"),
            ),
        ),
        safe=lambda: _two_slots_at_depth_two(),
        encoded_as_graph=True,
    ),
    Incident(
        "A4",
        "vLLM #53057, #54269",
        "a ring of host buffers was overwritten in steps in which the host happened not to wait",
        "each slot has a wait before it is filled again, or a path that every mix of steps has; "
        "a step with nothing to do keeps its waits",
        Derived(
            lambda: staged(3),
            ("prepare.device → prepare.host +3",),
            {"staging": 3},
        ),
        (
            Mistake(
                "a ring of three, protected in most steps by a wait for another value",
                without_wait("prepare.device", "prepare.host"),
                "SW-WAR-DEVICE-HOST",
                (
                    "present  no ordering between them",
                    "let prepare.host wait for prepare.device of 3 steps before",
                ),
            ),
        ),
    ),
    Incident(
        "A5",
        "vLLM #53520",
        "log-probabilities were read after the drafter's captured graph had reused the output "
        "buffer",
        "memory that captured graphs share is a state: the drafter waits for the copy",
        Derived(
            captured,
            (
                "forward.device → logprobs.device +0",
                "logprobs.device → draft.device +0",
                "logprobs.device → commit.host +0",
            ),
        ),
        (
            Mistake(
                "the drafter's use of the pool undeclared",
                planned_for(lambda: captured(drafter_writes=False)),
                "SW-WAR-DEVICE-DEVICE",
                ("draft.device of step i may write it before logprobs.device of step i has read",),
            ),
        ),
        encoded_as_graph=True,
    ),
    Incident(
        "A6",
        "SGLang #26380 and seven followers",
        "the scheduler wrote the request-to-token table while the forward before still read it; "
        "the coarse fix cost 20 % elsewhere",
        "access by phases: the read ends when the metadata is built, so the schedule waits for "
        "that and no longer",
        Derived(
            request_table,
            ("forward.device.metadata → schedule.host +1",),
            orders=("WAR table: forward.device.metadata → schedule.host +1",),
        ),
        (
            Mistake(
                "no wait at all",
                without_wait("forward.device.metadata", "schedule.host"),
                "SW-WAR-DEVICE-HOST",
                ("schedule.host of step i+1 may write it before forward.device.metadata",),
            ),
        ),
        safe=the_read_ends_with_the_metadata,
        encoded_as_graph=True,
    ),
    Incident(
        "A7",
        "mini-SGLang #58, #103; FlashInfer's plan buffer",
        "a library's own pinned staging buffer was reused with a copy of it in flight",
        "a node declares the buffers that its library hides, like any state",
        Derived(
            library_plan,
            ("attention_plan.device → attention_plan.host +1",),
        ),
        (
            Mistake(
                "the library's buffer undeclared",
                planned_for(lambda: library_plan(declared=False)),
                "SW-WAR-DEVICE-HOST",
                ("attention_plan.host of step i+1 may write it", "'workspace'"),
            ),
        ),
        encoded_as_graph=True,
    ),
    Incident(
        "A8",
        "SGLang #34076, TRT-LLM #15265, vLLM #29623",
        "a tensor was freed while a side stream still read it; seen on some allocators only, in 0 "
        "of 40 runs on one, 19 of 20 on another",
        "freeing is a write after the last reader on any stream",
        Derived(
            freed,
            (
                "forward.device → offload.device +0",
                "offload.device → release.host +0",
            ),
        ),
        (
            Mistake(
                "freed when its own stream is done with it",
                planned_for(lambda: freed(declared=False)),
                "SW-WAR-DEVICE-HOST",
                ("release.host of step i may write it before offload.device of step i has read",),
            ),
        ),
        encoded_as_graph=True,
    ),
    Incident(
        "A9",
        "vLLM #53899, #39115",
        "one event was recorded again before its waiter had waited",
        "an event is versioned like any value: as many as there are steps between record and wait",
        Derived(
            recorded_event,
            ("d2h_copy.device → commit.host +0",),
            {"event": 2},
        ),
        (
            Mistake(
                "one event for all steps",
                with_slots(event=1),
                "SW-WAR-HOST-DEVICE",
                ("'event' (1 slot)", "give 'event' 2 slots (a wait would be a deadlock)"),
            ),
        ),
        encoded_as_graph=True,
    ),
]


def _two_slots_at_depth_two() -> None:
    assert compile_plan(stages(2)).slots["staging"] == 2
    assert compile_plan(stages(3)).slots["staging"] == 3
