"""G: the mistakes of the other groups, in nodes that drafting and memory have gained since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from stepweave.cli.planned import planned
from stepweave.graph.plan import Plan
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify
from stepweave.serving.pipeline import compiled
from tests.incidents.incident import (
    Derived,
    Incident,
    Mistake,
    Refusal,
    moved,
    with_slots,
    without_wait,
)
from tests.nodes.test_stage_ranks import in_stages

OWN_STREAM = (
    "sample.device → draft.device +0",
    "sample.device → d2h_copy.device +0",
    "draft.device → prepare_inputs.device +1",
    "d2h_copy.device → commit.host.advance +0",
)


def pipeline(name: str, node: str = "", **settings: str) -> Callable[[], StepGraph]:
    """A shipped pipeline; `settings` of one of its nodes differ."""
    changes = {f"nodes.{node}.{key}": value for key, value in settings.items()}
    return lambda: planned(name, changes).graph


def broken(name: str, change: Callable[[Plan], Plan]) -> Callable[[], None]:
    """A shipped pipeline whose plan somebody has changed is to be proved."""
    return lambda: verify(change(planned(name)))


def waits(name: str, source: str, target: str) -> Callable[[], None]:
    """A shipped pipeline has that wait."""

    def attempt() -> None:
        assert (source, target) in {(w.source, w.target) for w in planned(name).waits}

    return attempt


@cache
def stages() -> Plan:
    """Two stages of a model, three steps in flight."""
    return compiled(in_stages(2, 3, "async_eagle"))


def not_awaited(between: str, source: str, target: str) -> Refusal:
    """Nobody waits for what one stage sends to the other."""
    return Refusal(
        between,
        lambda: verify(without_wait(source, target)(stages())),
        "SW-RAW-DEVICE-DEVICE",
        ("may read it before", f"let {target.removesuffix('.enter')}"),
    )


def encoder_without_its_wait() -> None:
    """That what it has failed at is awaited does not help."""
    plan = planned("async_vision")
    waits = [
        replace(wait, target="commit.host.advance") if wait.source == "encode.device" else wait
        for wait in plan.waits
    ]
    verify(replace(plan, waits=tuple(waits)))


def encoder_is_planned() -> None:
    [wait] = [w for w in planned("async_vision").waits if w.source == "encode.device"]
    assert (wait.target, wait.distance) == ("forward.device", 1)


INCIDENTS = [
    Incident(
        "G1",
        "as A1, in suffix decoding",
        "the ways in which a text may go on are looked up by a thread for the next step, in the "
        "buffer that the device still reads for this one",
        "what is looked up is a pinned value of its step, in two slots",
        Derived(
            pipeline("async_suffix"),
            (
                "sample.host → draft.host +0",
                "sample.device → d2h_copy.device +0",
                "draft.host → prepare_inputs.host +1",
                "d2h_copy.device → commit.host.advance +0",
            ),
            {"ways_on": 2},
        ),
        (
            Mistake(
                "one buffer for what is looked up",
                with_slots(ways_on=1),
                "SW-WAR-DEVICE-HOST",
                ("draft.host of step i+1 may write it before draft.device of step i has read it",),
            ),
        ),
        about=("suffix",),
    ),
    Incident(
        "G2",
        "as B3, in drafts that a grammar forces",
        "forced tokens were looked up with a matcher that still stands before the tokens of the "
        "last step",
        "the node updates the matchers, so it stands behind `commit` and behind the masks",
        Derived(
            pipeline("async_jump_forward"),
            (
                "draft.device → d2h_copy.device +0",
                "d2h_copy.device → commit.host.advance +0",
            ),
        ),
        (
            Mistake(
                "looked up as soon as the forward pass is launched",
                moved("driver", "jump_forward.host", "commit.host.advance"),
                "SW-WAR-HOST-HOST",
                ("jump_forward.host of step i may write it before bitmask.host of step i",),
            ),
        ),
        about=("jump_forward",),
    ),
    Incident(
        "G3",
        "as A2, in a module that predicts further tokens (MTP)",
        "the module runs on a stream of its own, and the next step prepares inputs over those that "
        "it still reads",
        "inputs and drafts are values: the next step's inputs wait for the module",
        Derived(pipeline("async_mtp", "draft", stream="draft"), OWN_STREAM),
        (
            Mistake(
                "no wait for the module",
                without_wait("draft.device", "prepare_inputs.device"),
                "SW-WAR-DEVICE-DEVICE",
                ("prepare_inputs.device of step i+1 may write it before draft.device of step i",),
            ),
        ),
        about=("mtp",),
    ),
    Incident(
        "G4",
        "as B1, in Medusa heads",
        "heads on a stream of their own read which token was sampled before it is there",
        "the sampled token is a value of its step: the heads wait for its writer",
        Derived(pipeline("async_medusa", "draft", stream="draft"), OWN_STREAM),
        (
            Mistake(
                "heads that wait for the forward pass alone",
                without_wait("sample.device", "draft.device"),
                "SW-RAW-DEVICE-DEVICE",
                ("draft.device of step i may read it before sample.device of step i",),
            ),
        ),
        about=("medusa",),
    ),
    Incident(
        "G5",
        "as D3, in swapping",
        "a block that is filled from host memory is read by the forward pass of the request that "
        "resumes, before the copy is done",
        "blocks pass between request and copy by leases: the forward pass waits for the copy",
        safe=waits("async_swap", "swap.device", "forward.device"),
        refusals=(
            Refusal(
                "the forward pass does not wait for the copy",
                broken("async_swap", without_wait("swap.device", "forward.device")),
                "SW-BOUND",
                ("a key of 'kv' passes from 'swap' to 'owner' after 0 steps, too early",),
            ),
        ),
        about=("swap",),
    ),
    Incident(
        "G6",
        "as A2, in completions of one prompt",
        "the last block of a prompt is copied for another completion while a drafter on a stream "
        "of its own still writes keys of the step before",
        "the copy updates both caches, so it waits for the drafter",
        Derived(
            pipeline("drafter_stream", "fork", after="schedule"),
            (
                "sample.device → draft.device +0",
                "sample.device → d2h_copy.device +0",
                "draft.device → fork.device +1",
                "d2h_copy.device → commit.host.advance +0",
            ),
        ),
        (
            Mistake(
                "copied as soon as the forward pass is done",
                without_wait("draft.device", "fork.device"),
                "SW-WAW-DEVICE-DEVICE",
                ("fork.device of step i+1 may write it before draft.device of step i",),
            ),
        ),
        about=("fork",),
    ),
    Incident(
        "G7",
        "as A1, in draft trees",
        "the accepted path is moved in the cache on a stream of its own, by inputs that the next "
        "step prepares anew",
        "the node reads the inputs, and updates the cache: the next step's inputs wait for it",
        Derived(
            pipeline("async_tree", "keep_path", stream="draft"),
            (
                "sample.device → keep_path.device +0",
                "draft.device → d2h_copy.device +0",
                "keep_path.device → prepare_inputs.device +1",
                "d2h_copy.device → commit.host.advance +0",
            ),
        ),
        (
            Mistake(
                "no wait for the move",
                without_wait("keep_path.device", "prepare_inputs.device"),
                "SW-WAR-DEVICE-DEVICE",
                ("prepare_inputs.device of step i+1 may write it before keep_path.device of step",),
            ),
        ),
        about=("keep_path",),
    ),
    Incident(
        "G8",
        "as B1, in a drafter without padding",
        "the drafter's first pass was cut by counts that were not copied to the host yet",
        "the counts are a pinned value: the host waits for the copy before it launches the drafter",
        Derived(
            pipeline("async_eagle", "d2h_counts", after="sample"),
            (
                "sample.device → d2h_counts.device +0",
                "d2h_counts.device → draft.host +0",
                "d2h_copy.device → commit.host.advance +0",
            ),
        ),
        (
            Mistake(
                "launched at once",
                without_wait("d2h_counts.device", "draft.host"),
                "SW-RAW-DEVICE-HOST",
                ("draft.host of step i may read it before d2h_counts.device of step i",),
            ),
        ),
        about=("d2h_counts", "eagle"),
    ),
    Incident(
        "G9",
        "as A2, in look-up",
        "texts are looked up on a stream of their own while the next step adds its tokens to them",
        "the history is a state: the next step's inputs wait for the look-up",
        Derived(pipeline("async_ngram", "draft", stream="draft"), OWN_STREAM),
        (
            Mistake(
                "no wait for the look-up",
                without_wait("draft.device", "prepare_inputs.device"),
                "SW-WAR-DEVICE-DEVICE",
                ("prepare_inputs.device of step i+1 may write it before draft.device of step i",),
            ),
        ),
        about=("ngram", "prepare_inputs"),
    ),
    Incident(
        "G10",
        "as B1, in a draft model",
        "a smaller model on a stream of its own begins before the token is there from which it "
        "goes on",
        "the sampled token is a value of its step: the drafter waits for its writer",
        Derived(pipeline("drafter_stream"), OWN_STREAM),
        (
            Mistake(
                "a drafter that waits for nothing",
                without_wait("sample.device", "draft.device"),
                "SW-RAW-DEVICE-DEVICE",
                ("draft.device of step i may read it before sample.device of step i",),
            ),
        ),
        about=("draft_model", "sample"),
    ),
    Incident(
        "G11",
        "as B3, in masks on a thread of their own",
        "a mask is filled by a matcher that has not taken in the tokens of the last step",
        "masks read the matchers that `commit` changes: their thread waits for it",
        Derived(
            pipeline("grammar_worker"),
            (
                "bitmask.host → sample.host +0",
                "draft.device → d2h_copy.device +0",
                "d2h_copy.device → commit.host.advance +0",
                "commit.host.advance → bitmask.host +1",
            ),
        ),
        (
            Mistake(
                "no wait for commit",
                without_wait("commit.host.advance", "bitmask.host"),
                "SW-WAW-HOST-HOST",
                ("bitmask.host of step i+1 may write it before commit.host.advance of step i",),
            ),
        ),
        about=("bitmask", "commit"),
    ),
    Incident(
        "G12",
        "as B1, in outputs",
        "tokens are settled from the buffer into which they are still being copied",
        "the copy is a pinned value of its step: the host waits for it, and for nothing else",
        Derived(
            pipeline("async"),
            (
                "sample.device → d2h_copy.device +0",
                "d2h_copy.device → commit.host.advance +0",
            ),
        ),
        (
            Mistake(
                "no wait for the copy",
                without_wait("d2h_copy.device", "commit.host.advance"),
                "SW-RAW-DEVICE-HOST",
                ("commit.host.advance of step i may read it before d2h_copy.device of step i",),
            ),
        ),
        about=("d2h_copy", "commit"),
    ),
    Incident(
        "G13",
        "as B2, in scheduling",
        "the model is launched for a step before it is scheduled",
        "rows are a value of their step: whoever launches for them comes after `schedule`",
        Derived(
            pipeline("synchronous"),
            (
                "sample.device → d2h_copy.device +0",
                "d2h_copy.device → commit.host.advance +0",
            ),
        ),
        (
            Mistake(
                "inputs are prepared before",
                moved("driver", "prepare_inputs.host", "schedule.host"),
                "SW-RAW-HOST-HOST",
                ("prepare_inputs.host of step i may read it before schedule.host of step i",),
            ),
        ),
        about=("schedule", "prepare_inputs"),
    ),
    Incident(
        "G14",
        "as D3, in adapters",
        "another adapter is loaded over one that a step in flight still uses",
        "places pass between request and load by leases: the forward pass waits for the load",
        safe=waits("adapters", "load.device", "forward.device"),
        refusals=(
            Refusal(
                "the forward pass does not wait for the load",
                broken("adapters", without_wait("load.device", "forward.device")),
                "SW-BOUND",
                ("a key of 'adapters' passes from 'load' to 'owner' after 1 step, too early",),
            ),
        ),
        encoded_as_graph=True,
        about=("forward",),
    ),
    Incident(
        "G15",
        "as B1, between the stages of a model",
        "a stage reads what another sends before it is there, or sends what is not there yet",
        "a message is two ops, whose values have writers and readers on both ranks",
        safe=lambda: verify(stages()),
        refusals=(
            not_awaited("sent before it is computed", "forward@0.device", "send0@0.device.enter"),
            not_awaited("used before it arrives", "send0@1.device.leave", "forward@1.device"),
            not_awaited("told before it is sampled", "sample@1.device", "tell@1.device.enter"),
            not_awaited("used before it is heard", "tell@0.device.leave", "d2h_copy@0.device"),
            not_awaited(
                "told before it is drafted", "draft@1.device", "tell_drafts@1.device.enter"
            ),
            Refusal(
                "another stage schedules before it hears the log",
                lambda: verify(moved("driver@1", "schedule@1.host", "log1@1.host.enter")(stages())),
                "SW-WAR-HOST-HOST",
                ("schedule@1.host of step i may write it before",),
            ),
        ),
        about=("log", "receive", "send", "tell", "hear", "tell_drafts", "hear_drafts"),
    ),
    Incident(
        "G16",
        "as B3, in masks of the first draft",
        "what a grammar allows next was looked up before it was known what the step had sampled",
        "what was sampled is a pinned value: the walk waits for its copy, the drafter for the mask",
        Derived(
            pipeline("async_allowed_drafts"),
            (
                "sample.device → d2h_tokens.device +0",
                "d2h_tokens.device → draft_mask.host +0",
                "draft.device → d2h_copy.device +0",
                "d2h_copy.device → commit.host.advance +0",
            ),
        ),
        (
            Mistake(
                "a walk that does not wait for the copy",
                without_wait("d2h_tokens.device", "draft_mask.host"),
                "SW-RAW-DEVICE-HOST",
                ("draft_mask.host of step i may read it before d2h_tokens.device of step i",),
            ),
        ),
        about=("d2h_tokens", "draft_mask", "eagle3"),
    ),
    Incident(
        "G17",
        "as D3, in reading images",
        "the encoder runs on a stream of its own, and the forward pass takes in the rows of an "
        "image before they are there",
        "rows pass from the encoder to the request by a lease: the forward pass a step later waits "
        "for the encoder, and the one of the same step does not",
        safe=encoder_is_planned,
        refusals=(
            Refusal(
                "the forward pass does not wait for the encoder",
                encoder_without_its_wait,
                "SW-LEASE",
                ("let forward.device wait for encode.device of the step before",),
            ),
        ),
        about=("encode",),
    ),
]
