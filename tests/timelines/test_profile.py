import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepweave.executors.report import OpEvent
from stepweave.timelines.profile import Spread, op_times, spreads, step_times


def event(op: str, step: int, start_us: float, end_us: float) -> OpEvent:
    return OpEvent(op, step, "compute", start_us / 1e6, end_us / 1e6)


def test_only_the_steps_that_count_are_counted() -> None:
    events = [event("a", step, 10 * step, 10 * step + step) for step in range(6)]
    found = op_times([*events, event("b", 9, 0, 5)], {2, 4, 7})
    assert found.keys() == {"a"}
    assert found["a"] == pytest.approx([2, 4])


def test_a_step_time_needs_two_steps_in_a_row() -> None:
    ends = {0: 100.0, 1: 210.0, 2: 330.0, 4: 560.0, 5: 690.0}
    events = [event("long", step, end - 50, end) for step, end in ends.items()]
    events += [event("short", step, end, end + 7 * step) for step, end in ends.items()]
    assert step_times(events, ends.keys()) == pytest.approx([110, 120, 130])
    assert step_times(events, {0, 2, 4}) == []
    assert step_times(events, ()) == []


def test_the_median_of_few_figures_lies_between_its_deciles() -> None:
    assert Spread.of([7.0]) == (7, 7, 7, 7, 1)
    assert Spread.of([1.0, 2.0, 9.0]).p50 == 2
    assert Spread.of([1.0, 2.0, 9.0]).mean == 4
    with pytest.raises(ValueError, match="at least one"):
        Spread.of([])
    assert spreads({"a": [1.0], "b": []}).keys() == {"a"}


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50))
def test_deciles_are_in_order_and_within_the_figures(figures: list[float]) -> None:
    found = Spread.of(figures)
    assert min(figures) <= found.p10 * (1 + 1e-9)
    assert found.p90 <= max(figures) * (1 + 1e-9)
    assert found.p10 <= found.p50 * (1 + 1e-9) + 1e-9
    assert found.p50 <= found.p90 * (1 + 1e-9) + 1e-9
    assert found.p50 == statistics.median(figures)
    assert found.samples == len(figures)
