"""With which plan an engine goes on: the fastest for its load, predicted and then measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.executors.course import Course
from stepweave.serving.plans import USUAL, Load
from stepweave.serving.steering import TRIAL, Fastest, Terms, terms_of


def course(**periods: float) -> Course:
    """Plans by name with their predicted periods."""
    plans: Any = {name: SimpleNamespace(step_us=us) for name, us in periods.items()}
    return Course(plans, {}, next(iter(plans)), lambda step: cast(Any, None))


class Steps:
    """An engine of which a step takes so many µs in each plan.

    In plans that have drafts, each of `rows` rows verifies a window in a step, of which so many
    drafts are kept.
    """

    def __init__(
        self, plans: Course, terms: dict[str, Terms] | None = None, kept: int = 0, **took: float
    ) -> None:
        self.plans, self.took, self.now, self.step = plans, took, 0.0, 0
        self.terms, self.kept, self.rows = terms or {}, kept, 1
        self.windows = 0
        self.steer = Fastest(self.terms, lambda: self.now)
        self.went: list[tuple[str, str]] = []  # plan, reason

    def run(self, steps: int, rows: int = 1) -> list[tuple[str, str]]:
        """Where it went in so many steps, and why."""
        before = len(self.went)
        for _ in range(steps):
            load = Load(rows, self.windows, self.windows * self.kept)
            goal = self.steer(self.plans, self.step, load)
            if goal.plan != self.plans.at:
                assert goal.said
                self.went.append((goal.plan, goal.reason))
            self.plans.at = goal.plan
            self.now += self.took[goal.plan] * 1e-6
            if goal.plan in self.terms and self.terms[goal.plan].drafts:
                self.windows += rows
            self.step += 1
        return self.went[before:]


def test_it_goes_to_the_plan_that_is_predicted_to_be_the_fastest_and_stays() -> None:
    steps = Steps(course(usual=500, deep=400, slow=900), usual=1000, deep=800, slow=2000)
    assert steps.run(10 * TRIAL) == [("deep", "predicted")]


def test_a_wrong_prediction_is_tried_once_and_left_again() -> None:
    steps = Steps(course(usual=500, deep=400), usual=1000, deep=1500)
    assert steps.run(10 * TRIAL) == [("deep", "predicted"), ("usual", "measured")]


def test_a_gain_of_little_is_no_reason() -> None:
    assert Steps(course(usual=500, deep=490), usual=500, deep=100).run(10 * TRIAL) == []


DRAFTED = {"usual": Terms(1, drafts=True), "bare": Terms(1)}


def test_a_shorter_step_without_drafts_is_no_gain_where_drafts_are_kept() -> None:
    steps = Steps(course(usual=500, bare=300), DRAFTED, kept=2, usual=1000, bare=600)
    assert steps.run(10 * TRIAL) == []


def test_a_drafter_whose_drafts_are_refused_is_left_out() -> None:
    steps = Steps(course(usual=500, bare=300), DRAFTED, kept=0, usual=1000, bare=600)
    assert steps.run(10 * TRIAL) == [("bare", "predicted")]


def test_a_plan_for_many_rows_runs_while_there_are_as_many() -> None:
    terms = {"usual": Terms(1, drafts=True), "bare": Terms(16)}
    steps = Steps(course(usual=500, bare=900), terms, kept=3, usual=500, bare=900)
    assert steps.run(4 * TRIAL, rows=15) == []
    assert steps.run(4 * TRIAL, rows=16) == [("bare", "rows")]
    assert steps.run(4 * TRIAL, rows=40) == []
    assert steps.run(4 * TRIAL, rows=4) == [("usual", "rows")]


def test_what_was_measured_with_few_rows_says_nothing_of_many() -> None:
    steps = Steps(course(usual=500, deep=400), usual=1000, deep=1500)
    assert steps.run(10 * TRIAL, rows=2) == [("deep", "predicted"), ("usual", "measured")]
    steps.took = {"usual": 3000, "deep": 1500}
    assert steps.run(10 * TRIAL, rows=20) == [("deep", "predicted")]


def test_a_step_with_nothing_to_do_says_nothing() -> None:
    assert Steps(course(usual=500, deep=100), usual=1000, deep=10).run(10 * TRIAL, rows=0) == []


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


def test_a_plan_may_do_without_the_drafter_from_so_many_rows_on() -> None:
    plans = {"bare": {"without": ["draft"], "from_rows": 8}}
    config = load_config("async_eagle3_grammar", {"plans": plans})
    assert isinstance(config, PipelineConfig)
    assert [name for name in config.nodes if name not in config.forms["bare"].nodes] == ["draft"]
    assert terms_of(config) == {USUAL: Terms(1, drafts=True), "bare": Terms(8)}


@pytest.mark.parametrize(
    ("without", "overrides", "said"),
    [
        ("bitmask", {}, "requests would notice it if steps had no node 'bitmask'"),
        ("commit", {}, "only drafters can be left out"),
        ("drat", {}, "has no node 'drat' \\(did you mean 'draft'\\?\\)"),
        ("draft", {"policies.acceptance": "rejection"}, "use acceptance 'coupled'"),
    ],
)
def test_what_no_plan_can_do_without_is_refused_with_the_reason(
    without: str, overrides: dict[str, Any], said: str
) -> None:
    plans = {"bare": {"without": [without]}}
    with pytest.raises(ConfigError, match=said) as caught:
        load_config("async_eagle3_grammar", {"plans": plans, **overrides})
    assert [problem.code for problem in caught.value.problems] == ["SW-SWITCH"]
