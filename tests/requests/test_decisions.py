"""A policy that breaks a rule is named, with the rule; what was settled is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stepweave.executors.errors import NodeFailure
from stepweave.policies.admission import Eager
from stepweave.policies.chosen import Policies
from stepweave.policies.errors import PolicyError
from stepweave.policies.policy import Policy
from stepweave.policies.preemption import RunningView
from stepweave.policies.scheduling import DecodesFirst, RowView
from stepweave.requests.pacer import Pacer
from stepweave.requests.request import SamplingParams
from stepweave.requests.table import RequestTable
from stepweave.testing.engines import TinyConfig, serve, tiny_engine, tiny_requests
from tests.requests.memory_model import limits, request, settle


class Wrong(DecodesFirst):
    """Breaks the rule that it is told to, once something decodes."""

    rule: str

    def share(self, budget: int, widest: int, prompts: int) -> int:
        wrong: dict[str, Any] = {
            "no room": widest - 1 if widest else budget,
            "beyond": budget + 1,
            "half": budget / 2,
        }
        share: int = wrong.get(self.rule, budget)
        return share

    def order(self, rows: Sequence[RowView]) -> Sequence[RowView]:
        stranger = rows[0]._replace(uid=99)
        small = [row._replace(tokens=1) if row.decodes else row for row in rows]
        wrong: dict[str, Any] = {
            "stranger": [stranger],
            "twice": [rows[0], rows[0]],
            "nobody": [],
            "small": small,
            "forgotten": None,
            "uids": [row.uid for row in rows],
        }
        ordered: Sequence[RowView] = wrong.get(self.rule, rows)
        return ordered

    def tokens(self, row: RowView, left: int) -> int:
        if self.rule == "overrun":
            return left + 1
        if self.rule == "trimmed" and row.decodes:
            return row.tokens - 1
        if self.rule == "more" and not row.decodes:
            return row.tokens + 1
        wrong: dict[str, Any] = {"nothing": 0, "negative": -1, "none": None}
        tokens: int = wrong.get(self.rule, super().tokens(row, left))
        return tokens


class Nobody(Policy):
    """Names somebody who is not running."""

    def victim(self, running: Sequence[RunningView]) -> int:
        return 77


class Held(Eager):
    """Holds steps back for this long."""

    seconds: Any

    def delay_s(self, in_flight: int, past: Any) -> float:
        seconds: float = self.seconds
        return seconds


BROKEN = {
    "no room": "leaves 2 of 16 tokens to rows that decode; the widest of their windows has 3",
    "beyond": "leaves 17 of 16 tokens",
    "half": "leaves 8.0 to rows that decode: return a number of tokens",
    "forgotten": "its order is None: return the rows that it was given, in a list",
    "uids": "its order has 0 in it: return the rows that it was given",
    "none": "request 0 gets None: return a number of tokens",
    "stranger": "names request 99, which was not offered to it",
    "twice": "names request 0, which was not offered to it, or was ordered before",
    "nobody": "gives nobody tokens though there are some",
    "nothing": "gives nobody tokens though there are some",
    "negative": "overruns the budget: request 0 gets -1 tokens, but 16 are left",
    "overrun": "overruns the budget: request 0 gets 17 tokens, but 16 are left",
    "trimmed": "request 0 gets 2 tokens, but decodes 3: a row that decodes gets its whole window",
    "small": "request 0 gets 1 tokens, but decodes 3",
    "more": "request 0 gets 7 tokens, but its prompt has 6 left",
}


def run(table: RequestTable, steps: int) -> None:
    for step in range(steps):
        settle(table, table.schedule(step))


@pytest.mark.parametrize("rule", BROKEN)
def test_a_scheduling_policy_that_breaks_a_rule_is_named_with_the_rule(rule: str) -> None:
    table = RequestTable(limits(), policies=Policies(scheduling=Wrong(rule=rule)))
    for uid in range(2):
        table.submit(request(uid))
    with pytest.raises(PolicyError) as broken:
        run(table, 4)
    assert broken.value.code == "SW-POLICY"
    assert broken.value.message.startswith("scheduling policy 'Wrong': ")
    assert BROKEN[rule] in broken.value.message
    table.check_conservation()


def test_a_victim_that_cannot_be_one_is_refused() -> None:
    tight = limits(num_blocks=8, draft_tokens=0, token_budget=32)
    table = RequestTable(tight, policies=Policies(preemption=Nobody()))
    table.submit_all([request(0, prompt=12, window=1), request(1, prompt=8, window=1)])
    with pytest.raises(PolicyError, match=r"'Nobody': it names request 77, which .*\(1\)"):
        run(table, 20)
    table.check_conservation()


def test_a_better_request_is_never_offered_as_a_victim() -> None:
    offered: list[list[int]] = []

    class Watching(Nobody):
        def victim(self, running: Sequence[RunningView]) -> int:
            offered.append([view.priority for view in running])
            return max(running).uid

    table = RequestTable(
        limits(num_blocks=8, draft_tokens=0, token_budget=32),
        policies=Policies(preemption=Watching()),
    )
    better, worse = request(0, prompt=12, window=1), request(1, prompt=8, window=1, priority=1)
    table.submit_all([better, worse])
    for step in range(60):
        settle(table, table.schedule(step))
        for row in table.requests.values():
            assert row.phase != "preempted" or row is worse
    assert offered
    assert all(1 in priorities for priorities in offered)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 601.0, None, "soon"])
def test_a_delay_that_is_no_time_to_wait_is_refused(seconds: Any) -> None:
    pacer = Pacer(Held(seconds=seconds), sleep=lambda s: pytest.fail("slept"))
    pacer.before_schedule(0)  # nothing is in flight: it is not asked
    with pytest.raises(PolicyError, match="admission policy 'Held': it holds a step back for"):
        pacer.before_schedule(1)


def crowd() -> list[Any]:
    return tiny_requests([SamplingParams(max_tokens=9, ignore_eos=True)] * 4)


class Tired(DecodesFirst):
    """Overruns the budget from the given turn on."""

    turn: int

    def tokens(self, row: RowView, left: int) -> int:
        return left + 1 if row.turn > self.turn else super().tokens(row, left)


@pytest.mark.parametrize("depth", [1, 3])
def test_requests_keep_what_was_settled_and_another_policy_goes_on_from_it(depth: int) -> None:
    config = TinyConfig(depth=depth, executor="threads", draft_tokens=2)
    wanted = serve(tiny_engine(config), crowd())
    engine = tiny_engine(replace(config, policies=Policies(scheduling=Tired(turn=14))))
    table, requests = engine.new_table(), crowd()
    for each in requests:
        each.window = 3
        table.submit(each)
    with pytest.raises(NodeFailure, match=r"'schedule'.*scheduling policy 'Tired': it overruns"):
        engine.run(table)
    assert all(each.error is None for each in requests), "none of them is to blame"
    assert any(each.finish_reason is None for each in requests)
    settled = [list(each.output_ids) for each in requests]
    assert any(settled)
    assert all(
        tokens == right[: len(tokens)] for tokens, right in zip(settled, wanted, strict=True)
    )
    table.decisions = RequestTable(engine.limits).decisions
    engine.run(table)
    assert [list(each.output_ids) for each in requests] == wanted
