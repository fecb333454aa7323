"""The log of rank 0 is what every rank takes in, and what it decides is compared there."""

from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any

import pytest

from stepweave.distributed import verdicts as verdicts_module
from stepweave.distributed.group import Group
from stepweave.distributed.log import Log
from stepweave.distributed.tasks import TaskFailed, Tasks
from stepweave.distributed.verdicts import BEHIND_S, Verdicts
from stepweave.requests.params import SamplingParams
from stepweave.requests.plain_params import params_of, read_params
from tests.distributed.pairs import LONG_S, at_once, ended, groups
from tests.server.leftovers import until


def with_logs(logs: list[Log]) -> Callable[[Group], None]:
    return lambda group: logs.append(Log(group))


def test_entries_come_in_order_with_what_is_in_them() -> None:
    logs: list[Log] = []
    with groups(prepare=with_logs(logs)):
        leading, following = logs
        for step in range(3):
            leading.append("take", step, arrived=[{"uid": step}])
            leading.decided(step, "schedule", (step, "rows"))
        for step in range(3):
            assert following.next("take", step)["arrived"] == [{"uid": step}]
            following.decided(step, "schedule", (step, "rows"))


def test_a_rank_that_decides_otherwise_is_named_before_it_goes_on() -> None:
    logs: list[Log] = []
    with groups(prepare=with_logs(logs)) as made:
        leading, following = logs
        leading.decided(7, "schedule", (1, 2))
        found = at_once([lambda: following.decided(7, "schedule", (1, 3))])
        assert "step 7: op 'schedule' came to something else on rank 1 than on rank 0" in f"{found}"
        assert ended(made[0]) == found[0]


def test_a_rank_that_leaves_out_a_step_is_named() -> None:
    logs: list[Log] = []
    with groups(prepare=with_logs(logs)) as made:
        leading, following = logs
        leading.append("take", 4)
        found = at_once([lambda: following.next("take", 5)])
        assert "step 5: rank 1 is at 'take' of step 5, but rank 0 at 'take' of step 4" in f"{found}"
        assert ended(made[0]) == found[0]


def test_what_an_op_came_to_is_compared_with_the_next_entry() -> None:
    logs: list[Log] = []
    with groups(prepare=with_logs(logs)) as made:
        leading, following = logs
        for step, mine in enumerate(((5,), (6,), (7,))):
            leading.noted(step, "commit", (5 + step,))
            following.noted(step, "commit", mine if step < 2 else (0,))
        leading.append("take", 3)
        found = at_once([lambda: following.next("take", 3)])
        assert "step 2: op 'commit' came to something else on rank 1" in f"{found}"
        assert ended(made[0]) == found[0]


def verdicts(made: list[Verdicts], settle_s: float) -> Callable[[Group], None]:
    return lambda group: made.append(Verdicts(group, settle_s))


def test_a_failure_that_every_rank_has_is_settled_again_and_again() -> None:
    every: list[Verdicts] = []
    with groups(3, verdicts(every, LONG_S)) as made:
        for step in (4, 9):
            jobs = [lambda v=v, s=step: v.settle(f"step {s}", "no room") for v in every]
            assert at_once(jobs) == [None] * 3
        assert [each.failure for each in made] == [None] * 3


def test_a_failure_of_one_rank_alone_ends_the_group_and_names_it() -> None:
    every: list[Verdicts] = []
    with groups(3, verdicts(every, 0.05)) as made:
        found = at_once([lambda: every[2].settle("step 4", "no room")])
        assert found == [ended(made[0])]
        assert "rank 2 failed where rank 0, 1 did not: step 4: no room" in f"{found[0]}"


def test_a_rank_that_waits_for_others_since_an_op_of_it_failed_ends_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could settle nothing: its run ends when no op of it is under way."""
    monkeypatch.setattr(verdicts_module, "STUCK_S", 0.0)
    every: list[Verdicts] = []
    with groups(3, verdicts(every, LONG_S)) as made:
        every[1].failing("step 4", "no room")
        for _ in range(3):
            every[1]._look()
        assert made[1].failure is None, "it waits for nobody"
        with made[1].meeting("hearing from rank 2"):
            for each in made:
                assert "rank 1 failed where rank 0, 2 did not: step 4: no room" in ended(each)


def test_failures_that_differ_end_the_group() -> None:
    every: list[Verdicts] = []
    with groups(2, verdicts(every, LONG_S)) as made:
        jobs = [lambda r=r: every[r].settle("step 4", f"at {r}") for r in (0, 1)]
        found = at_once(jobs)
        assert "rank 1 failed otherwise than rank 0: step 4: at 1; on rank 0: step 4: at 0" in (
            f"{found[0]}"
        )
        assert {ended(each) for each in made} == set(found)


def test_what_fails_of_one_request_on_rank_1_only_ends_the_group() -> None:
    every: list[Verdicts] = []
    with groups(2, verdicts(every, 0.05)) as made:
        every[0].object(3, "ValueError: both")
        every[1].object(3, "ValueError: both")
        every[0].object(4, "ValueError: of rank 0, which decides")
        every[1].object(5, "ValueError: alone")
        assert "request 5 failed on rank 1, and not on rank 0: ValueError: alone" in ended(made[0])


def test_what_rank_0_has_told_long_ago_is_kept_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    every: list[Verdicts] = []
    with groups(2, verdicts(every, LONG_S)):
        mine = every[0]
        for uid in range(100):
            mine.object(uid, "ValueError: of this request")
        mine._look()
        assert len(mine._own) == 100, "others may be behind"
        later = monotonic() + 2 * BEHIND_S
        monkeypatch.setattr("stepweave.distributed.verdicts.monotonic", lambda: later)
        mine._look()
        assert not mine._own


def tasks(made: list[Tasks], answer: Callable[[int], str | Exception]) -> Callable[[Group], None]:
    def prepare(group: Group) -> None:
        each = Tasks(group)
        each.serve(lambda task: done(answer(group.rank)))
        made.append(each)

    return prepare


def done(said: str | Exception) -> "Future[str]":
    future: Future[str] = Future()
    if isinstance(said, Exception):
        future.set_exception(said)
    else:
        future.set_result(said)
    return future


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        (("a", "a", "a"), None),
        (("a", "a", "b"), "ranks came to different results: rank 0: a; rank 1: a; rank 2: b"),
        (("a", ValueError("too long"), "a"), "rank 1: too long"),
    ],
)
def test_a_task_is_done_when_every_rank_has_done_it_alike(
    answers: tuple[Any, ...], error: str | None
) -> None:
    every: list[Tasks] = []
    with groups(3, tasks(every, lambda rank: answers[rank])):
        future = every[0].everywhere({"kind": "json"}, done(answers[0]))
        if error is None:
            assert future.result(LONG_S) is None
        else:
            with pytest.raises(TaskFailed, match=error):
                future.result(LONG_S)


def test_nothing_is_kept_of_a_task_that_rank_0_has_done_last() -> None:
    every: list[Tasks] = []
    with groups(3, tasks(every, lambda rank: "a")):
        own: Future[str] = Future()
        future = every[0].everywhere({"kind": "json"}, own)
        [waiting] = every[0]._waiting.values()
        until(lambda: len(waiting._found) == 2, "the others have done it")
        assert not future.done()
        own.set_result("a")
        assert future.result(LONG_S) is None
        assert every[0]._waiting == {}


def test_parameters_are_the_same_after_they_went_as_plain_data() -> None:
    import json

    for given in (
        {},
        {"temperature": 0.7, "seed": 5, "stop": ("a", "b"), "logit_bias": {3: 1.5, 9: -2}},
        {"structured_outputs": {"json": {"type": "object"}}, "logprobs": 3, "bad_words": ["x"]},
        {"structured_outputs": {"choice": ["yes", "no"]}, "n": 3, "priority": -4},
    ):
        params = SamplingParams.of(given)
        assert read_params(json.loads(json.dumps(params_of(params)))) == params
