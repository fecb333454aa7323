"""The table of metrics in the how-to on watching a server."""

from __future__ import annotations

from collections.abc import Iterator

from sections.markdown import table

from stepweave.server.metrics.engine_figures import ENGINE
from stepweave.server.metrics.histograms import ANSWERS, ANSWERS_LABELS, ANSWERS_SAY, SPREADS
from stepweave.server.metrics.plan_figures import PLAN


def metrics(group: str) -> str:
    """The metrics of one group: `counted`, `timed` or `plan`."""
    return table(("metric", "kind", "labels", "meaning"), _rows(group))


def _rows(group: str) -> Iterator[tuple[str, ...]]:
    if group == "timed":
        for spread in SPREADS:
            yield f"`{spread.name}`", "histogram", _named(spread.labels), spread.says
        return
    if group == "counted":
        for figure in ENGINE:
            yield f"`{figure.name}`", figure.kind, _named(figure.labels), figure.says
        yield f"`{ANSWERS}`", "counter", _named(ANSWERS_LABELS), ANSWERS_SAY
        return
    assert group == "plan", f"there is no group {group!r} of metrics"
    for about in PLAN:
        yield f"`{about.name}`", about.kind, _named(about.labels), about.says


def _named(labels: tuple[str, ...]) -> str:
    return ", ".join(f"`{each}`" for each in labels)
