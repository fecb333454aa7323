"""Draw the pictures of the documentation from plans that the compiler makes.

    python docs/make_images.py

writes `docs/images/`. A test draws them again and compares, so a picture cannot outlive its plan.
"""

from __future__ import annotations

import sys
from pathlib import Path

from stepweave.cli.planned import planned
from stepweave.configs.stages import for_stages
from stepweave.graph.plan import Plan
from stepweave.views.svg_dag import dag_svg
from stepweave.views.svg_lanes import lanes_svg
from stepweave.views.svg_slots import slots_svg

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))  # for `sections`, which is no part of the package

from sections import pipelines  # noqa: E402

IMAGES = FOLDER / "images"

# Assumed durations in µs, the model being large enough for the device to dominate.
COSTS = {
    "schedule.host": 300,
    "prepare_inputs.host": 200,
    "prepare_inputs.device": 60,
    "forward.host": 150,
    "forward.device": 4000,
    "commit.host.advance": 100,
    "commit.host.finish": 250,
    "bitmask.host": 900,
    "bitmask.device": 40,
    "sample.host": 60,
    "sample.device": 150,
    "draft.host": 90,
    "draft.device": 900,
    "d2h_copy.host": 30,
    "d2h_copy.device": 60,
}
FULL = "Asynchronous scheduling, speculation and grammars: quickstart, depth 2"


def pictures() -> dict[str, str]:
    """Every picture by file name."""
    plan = _quickstart("2")
    return {
        "plan.svg": lanes_svg(plan, title=FULL),
        "synchronous.svg": lanes_svg(
            _quickstart("1"), title="The same declarations at depth 1: the synchronous loop"
        ),
        "graph.svg": dag_svg(plan, title=FULL),
        "slots.svg": slots_svg(plan, title=FULL),
        "stages_one_group.svg": lanes_svg(
            _in_stages(1), title="Two stages, one group of rows: each waits for the other"
        ),
        "stages.svg": lanes_svg(
            _in_stages(3), title="Two stages, three groups of rows: both work all the time"
        ),
        **pipelines.pictures(),
    }


def _quickstart(depth: str) -> Plan:
    costs = {f"costs.{op}": str(us) for op, us in COSTS.items()}
    return planned("quickstart", {"depth": depth, **costs})


def _in_stages(groups: int) -> Plan:
    """Without drafter and grammars, so that the lanes are few."""
    plain = ("schedule", "prepare_inputs", "forward", "commit", "sample", "d2h_copy")
    costs = {f"costs.{op}": us for op, us in COSTS.items() if op.startswith(plain)}
    return planned("async", {"depth": groups, **for_stages(2, {"depth": groups}), **costs})


def main() -> None:
    for name, drawn in pictures().items():
        (IMAGES / name).parent.mkdir(parents=True, exist_ok=True)
        (IMAGES / name).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
