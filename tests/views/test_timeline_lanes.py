from stepweave.graph.planner.compile import compile_plan
from stepweave.testing import decode_step
from stepweave.timelines.simulated import simulate
from stepweave.views.timeline_lanes import timeline_lanes

PLAN = compile_plan(decode_step(2))
TIMELINE = simulate(PLAN, steps=12)


def test_every_actor_has_a_lane_and_no_line_is_too_long() -> None:
    for width in (60, 80, 120):
        lines = timeline_lanes(TIMELINE, range(4, 7), width=width).splitlines()
        assert [line.split(" ")[0] for line in lines[:3]] == list(PLAN.actors)
        assert all(len(line) <= width for line in lines)


def test_a_block_is_as_wide_as_its_share_of_the_time() -> None:
    drawn = timeline_lanes(TIMELINE, range(4, 7), width=120)
    lane = next(line for line in drawn.splitlines() if line.startswith("compute"))
    start = lane.index("├forward 5")
    width = lane.index("┤", start) + 1 - start
    whole = 3 * TIMELINE.period_us
    margin = max(len(actor) for actor in PLAN.actors) + 1
    expected = TIMELINE.span("forward.device", 5).us / whole * (120 - margin)
    assert abs(width - expected) <= 1.5


def test_letters_in_the_lanes_are_in_the_key_and_no_others() -> None:
    drawn = timeline_lanes(TIMELINE, range(5, 6), width=200)
    lanes, key = drawn.split("key", 1)
    entries = dict(
        entry.strip().split(" ") for entry in key.replace("\n", " · ").split("·") if entry.strip()
    )
    assert "forward.device" not in entries.values(), "it is spelled out"
    assert "sample.device" in entries.values()
    for letter, op in entries.items():
        actor = PLAN.graph.vertices[op].actor
        lane = next(line for line in lanes.splitlines() if line.startswith(actor))
        assert letter in lane.removeprefix(actor)


def test_neighbouring_steps_are_drawn_where_they_reach_into_the_time_shown() -> None:
    lane = timeline_lanes(TIMELINE, range(5, 6), width=200).splitlines()[0]
    commit = next(op for op in PLAN.graph.vertices if op.startswith("commit.host.finish"))
    assert TIMELINE.span(commit, 4).start_us > TIMELINE.span("schedule.host", 5).start_us
    assert "n──────┤o──────┤" in lane, "commit, of step 4"


def test_steps_that_were_not_run_draw_nothing() -> None:
    assert timeline_lanes(TIMELINE, range(50, 52)) == ""
