"""Engines on paper: their steps, and what a drafting policy is shown of them."""

from __future__ import annotations

from typing import Any

from stepweave.policies.drafting import DraftView
from stepweave.policies.windows import Window
from stepweave.requests.batch import RequestSpec, ScheduledRow
from stepweave.requests.params import SamplingParams
from stepweave.requests.step_times import StepTimes

K = 4


def of_steps(times: StepTimes, rows: int) -> dict[str, Any]:
    """What a view of so many rows says of steps."""
    last, stays, before = times.offered(rows)
    return {
        "took_us": times.of(rows),
        "took_unsure": times.unsure(rows),
        "came": times.came(rows),
        "last": last,
        "stays": stays,
        "before": before,
    }


def window_of(drafts: int, uid: int = 0) -> ScheduledRow:
    """A row that decodes a window with so many drafts."""
    spec = RequestSpec(uid, str(uid), SamplingParams(), prompt_tokens=1, window=drafts + 1)
    return ScheduledRow(spec, uid, 0, ())


def view(
    most: int = K, rows: int = 1, own: list[Window] | None = None, all_: list[Window] | None = None
) -> DraftView:
    """What a policy sees, of these windows."""
    return DraftView(most, rows, own or [], all_ or [], len(own or []))
