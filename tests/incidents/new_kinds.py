"""G: the mistakes of the other groups, in nodes that drafting and memory have gained since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepweave.cli.planned import planned
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify
from tests.incidents.incident import (
    Derived,
    Incident,
    Mistake,
    Refusal,
    moved,
    with_slots,
    without_wait,
)

OWN_STREAM = (
    "sample.device → draft.device +0",
    "sample.device → d2h_copy.device +0",
    "draft.device → prepare_inputs.device +1",
    "d2h_copy.device → commit.host.advance +0",
)


def pipeline(name: str, **changes: Any) -> Callable[[], StepGraph]:
    """A shipped pipeline, with changes such as `draft_stream="draft"`."""
    settings = {f"nodes.{key.replace('_', '.')}": value for key, value in changes.items()}
    return lambda: planned(name, settings).graph


def swap_without_its_wait() -> None:
    verify(without_wait("swap.device", "forward.device")(planned("async_swap")))


def swap_is_planned() -> None:
    plan = planned("async_swap")
    assert ("swap.device", "forward.device") in {(w.source, w.target) for w in plan.waits}


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
    ),
    Incident(
        "G3",
        "as A2, in a module that predicts further tokens (MTP)",
        "the module runs on a stream of its own, and the next step prepares inputs over those that "
        "it still reads",
        "inputs and drafts are values: the next step's inputs wait for the module",
        Derived(pipeline("async_mtp", draft_stream="draft"), OWN_STREAM),
        (
            Mistake(
                "no wait for the module",
                without_wait("draft.device", "prepare_inputs.device"),
                "SW-WAR-DEVICE-DEVICE",
                ("prepare_inputs.device of step i+1 may write it before draft.device of step i",),
            ),
        ),
    ),
    Incident(
        "G4",
        "as B1, in Medusa heads",
        "heads on a stream of their own read which token was sampled before it is there",
        "the sampled token is a value of its step: the heads wait for its writer",
        Derived(pipeline("async_medusa", draft_stream="draft"), OWN_STREAM),
        (
            Mistake(
                "heads that wait for the forward pass alone",
                without_wait("sample.device", "draft.device"),
                "SW-RAW-DEVICE-DEVICE",
                ("draft.device of step i may read it before sample.device of step i",),
            ),
        ),
    ),
    Incident(
        "G5",
        "as D3, in swapping",
        "a block that is filled from host memory is read by the forward pass of the request that "
        "resumes, before the copy is done",
        "blocks pass between request and copy by leases: the forward pass waits for the copy",
        safe=swap_is_planned,
        refusals=(
            Refusal(
                "the forward pass does not wait for the copy",
                swap_without_its_wait,
                "SW-BOUND",
                ("a key of 'kv' passes from 'swap' to 'owner' after 0 steps, too early",),
            ),
        ),
    ),
    Incident(
        "G6",
        "as A2, in completions of one prompt",
        "the last block of a prompt is copied for another completion while a drafter on a stream "
        "of its own still writes keys of the step before",
        "the copy updates both caches, so it waits for the drafter",
        Derived(
            pipeline("drafter_stream", fork_after="schedule"),
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
    ),
]
