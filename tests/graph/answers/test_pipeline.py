"""The period of a pipeline and its groups, against plans of pipelines."""

from __future__ import annotations

import pytest

from stepweave.graph.answers.pipeline import Pipeline, feedback_capacity
from stepweave.graph.errors import GraphError
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.ranks import ends
from stepweave.graph.verifier.verify import verify
from stepweave.timelines.simulated import simulate
from tests.graph.ranked import pipeline

SHAPES = [(1000.0, 1000.0), (900.0, 300.0), (400.0, 700.0, 500.0), (300.0,) * 4]


@pytest.mark.parametrize("stages", SHAPES)
def test_the_period_is_that_of_the_slowest_stage_or_of_a_round_of_all_groups(
    stages: tuple[float, ...],
) -> None:
    """Theorem D, on plans whose stages hand over on the stream that computes."""
    comm, back, last = 20.0, 50.0, len(stages) - 1
    for groups in range(1, len(stages) + 3):
        plan = compile_plan(pipeline(stages, groups, comm_us=comm, host_us=back))
        verify(plan)
        busy = [
            us + comm * ((k > 0) + (k < last)) + back * (k in (0, last))
            for k, us in enumerate(stages)
        ]
        expected = max(*busy, (sum(stages) + comm * last + back) / groups)
        assert plan.period_us == pytest.approx(expected)
        predicted = Pipeline.of(stages, comm_us=comm * last, host_us=back)
        assert (
            predicted.period_us(groups)
            <= plan.period_us
            <= predicted.period_us(groups) + 2 * comm + back
        )
        comms = next(iter(ends(plan.graph)["feedback"].values())).comm
        assert comms is not None
        assert comms.capacity == feedback_capacity(len(stages), groups)


def test_one_group_more_than_stages_hides_the_hand_over_and_fewer_leave_bubbles() -> None:
    equal = Pipeline.of((100.0, 100.0), comm_us=10.0, host_us=5.0)
    assert [equal.period_us(k) for k in (1, 2, 3)] == [215.0, 107.5, 100.0]
    assert equal.groups == 3
    assert equal.bubble(1) == pytest.approx(1 - 100 / 215)
    assert equal.bubble(3) == 0.0
    assert "one round, and 2 of them are in flight; 3 would keep" in equal.reason(2)
    assert equal.reason(3) == "stage 0, the slowest, is always busy"
    assert Pipeline.of((100.0, 10.0)).groups == 2


def test_a_simulated_pipeline_takes_the_period_of_its_plan() -> None:
    for groups in (1, 2, 3):
        plan = compile_plan(pipeline((500.0, 400.0), groups, comm_us=10.0))
        run = simulate(plan, steps=40)
        assert run.period_us == pytest.approx(plan.period_us, rel=1e-6)


def test_times_and_stages_are_checked() -> None:
    for wrong in ((), (-1.0,), ("a",)):
        with pytest.raises(GraphError):
            Pipeline.of(wrong)  # type: ignore[arg-type]
    with pytest.raises(GraphError):
        Pipeline.of((1.0,), comm_us=-1.0)
