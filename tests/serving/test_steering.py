"""With which plan an engine goes on: the fastest, as predicted and then as measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.executors.course import Course
from stepweave.serving.steering import TRIAL, Fastest


def course(**periods: float) -> Course:
    """Plans by name with their predicted periods."""
    plans: Any = {name: SimpleNamespace(step_us=us) for name, us in periods.items()}
    return Course(plans, {}, next(iter(plans)), lambda step: cast(Any, None))


class Steps:
    """An engine of which a step takes so many µs in each plan."""

    def __init__(self, plans: Course, **took: float) -> None:
        self.plans, self.took, self.now, self.step = plans, took, 0.0, 0
        self.steer = Fastest(lambda: self.now)
        self.went: list[str] = []

    def run(self, steps: int) -> list[str]:
        """Where it went in so many steps."""
        for _ in range(steps):
            goal = self.steer(self.plans, self.step)
            if goal.plan != self.plans.at:
                assert goal.reason
                self.went.append(goal.plan)
            self.plans.at = goal.plan
            self.now += self.took[goal.plan] * 1e-6
            self.step += 1
        return self.went


def test_it_goes_to_the_plan_that_is_predicted_to_be_the_fastest_and_stays() -> None:
    steps = Steps(course(usual=500, deep=400, slow=900), usual=1000, deep=800, slow=2000)
    assert steps.run(10 * TRIAL) == ["deep"]


def test_a_wrong_prediction_is_tried_once_and_left_again() -> None:
    steps = Steps(course(usual=500, deep=400), usual=1000, deep=1500)
    assert steps.run(10 * TRIAL) == ["deep", "usual"]


def test_a_gain_of_little_is_no_reason() -> None:
    assert Steps(course(usual=500, deep=490), usual=500, deep=100).run(10 * TRIAL) == []


def test_depth_auto_is_short_for_plans_of_three_depths() -> None:
    config = load_config("async_grammar", {"depth": "auto"})
    assert isinstance(config, PipelineConfig)
    assert config.depth == 2
    assert {name: form.depth for name, form in config.forms.items()} == {"depth_1": 1, "depth_3": 3}


def test_a_plan_may_have_a_node_on_another_thread() -> None:
    config = load_config("adaptive")
    assert isinstance(config, PipelineConfig)
    form = config.forms["masks_apart"]
    assert (config.nodes["bitmask"].actor, form.nodes["bitmask"].actor) == ("driver", "grammar")
    assert form.nodes["draft"] is config.nodes["draft"]  # so that its model is loaded once
