"""B: something is read before it is there (read after write)."""

from __future__ import annotations

from stepweave.cli.planned import planned
from stepweave.testing import decode_step
from tests.graph.pipelines import decode
from tests.incidents.incident import (
    Derived,
    Incident,
    Mistake,
    exchanged,
    loosened_wait,
    moved,
    without_wait,
    written,
)
from tests.incidents.reused_early import LOOP_WAITS


def every_shipped_pipeline_waits_for_the_copy() -> None:
    for name in ("synchronous", "async", "async_eagle3_grammar", "grammar_worker", "quickstart"):
        assert "d2h_copy.device → commit.host.advance +0" in written(planned(name))


def masks_follow_the_commit_at_every_depth() -> None:
    for name in ("quickstart", "grammar_worker"):
        for depth in "123":
            plan = planned(name, {"depth": depth})
            assert any(
                (edge.source, edge.target, edge.distance, edge.hazard, edge.value)
                == ("commit.host.advance", "bitmask.host", 1, "RAW", "matchers")
                for edge in plan.edges
            )


INCIDENTS = [
    Incident(
        "B1",
        "vLLM #36013",
        "the host read a copied-back value before the copy was done",
        "a host reader of a device-written value waits for it on the host",
        Derived(
            lambda: decode(None),
            LOOP_WAITS,
            orders=("RAW out: d2h_copy.device → commit.host +0",),
        ),
        (
            Mistake(
                "no wait for the copy",
                without_wait("d2h_copy.device", "commit.host"),
                "SW-RAW-DEVICE-HOST",
                (
                    "commit.host of step i may read it before d2h_copy.device of step i has",
                    "let commit.host wait for d2h_copy.device of the same step",
                ),
            ),
        ),
        safe=every_shipped_pipeline_waits_for_the_copy,
    ),
    Incident(
        "B2",
        "vLLM #37601, SGLang #14214",
        "a stream's wait was enqueued before its event was recorded, and so did nothing",
        "the order of the launches is proved too: a wait is enqueued after its record",
        Derived(lambda: decode(None), LOOP_WAITS),
        (
            Mistake(
                "the copy is launched before the forward that it copies from",
                exchanged("driver", "forward.host", "d2h_copy.host"),
                "SW-HOST-ORDER",
                ("the wait may be enqueued before the event is recorded, and then does nothing",),
            ),
        ),
    ),
    Incident(
        "B3",
        "SGLang #25361",
        "one code path missed the guard: masks were filled from the grammar state of two steps ago",
        "there is one graph and no second path; masks read the state that the commit of the step "
        "before leaves",
        Derived(
            lambda: decode_step(2),
            (
                "draft.device → d2h_copy.device +0",
                "d2h_copy.device → commit.host.advance +0",
            ),
            orders=("RAW matchers: commit.host.advance → bitmask.host +1",),
        ),
        (
            Mistake(
                "masks filled before the commit",
                moved("driver", "bitmask.host", "commit.host.advance"),
                "SW-WAR-HOST-HOST",
                (
                    "bitmask.host of step i+1 may write it before commit.host.advance of step i",
                    "RAW matchers: commit.host.advance(i) before bitmask.host(i+1)",
                ),
            ),
            Mistake(
                "commit takes the copy of a step before",
                loosened_wait("d2h_copy.device", "commit.host.advance"),
                "SW-RAW-DEVICE-HOST",
                ("present  only d2h_copy.device(i) before commit.host.advance(i+1)",),
            ),
        ),
        safe=masks_follow_the_commit_at_every_depth,
    ),
]
