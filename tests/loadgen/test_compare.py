"""Two sides in turn: the order of turns, and ratios of one round each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from stepweave.loadgen.compare import Comparison, Turn, compare, comparison_table
from stepweave.loadgen.load import Load, Result
from stepweave.loadgen.session import Session
from stepweave.loadgen.words import WordCost
from stepweave.loadgen.workload import RandomPrompts
from tests.loadgen.test_table import matches_golden
from tests.loadgen.virtual import Scripted, chunk, clock, total, virtually

LOAD = Load(RandomPrompts(10, 3), 2, limit=1, seed=7, percentiles=(99.0,))


class Side:
    """Takes so many seconds for the first token and for each other one, round by round."""

    def __init__(self, name: str, turns: list[str], *seconds: tuple[float, float]) -> None:
        self.name, self.turns, self.seconds = name, turns, list(seconds)
        self.prompts: list[set[str]] = []

    def turn(self, session: Session) -> Turn:
        async def run(load: Load) -> Result:
            first, other = self.seconds[len(self.prompts)]
            self.turns.append(self.name)
            script = [
                *((first, chunk("a")), (other, chunk("b")), (other, chunk("c", finish="stop"))),
                (0.0, total(10, 3)),
            ]
            server = Scripted(script)
            ran = await session.run(server, load, WordCost())
            self.prompts.append({str(ask.prompt) for ask in server.sent})
            return Result(load, ran, {}, date="")

        return run


def compared(
    a: Side, b: Side, rounds: int, during: Callable[[Session], None] = lambda session: None
) -> Comparison:
    async def main() -> Comparison:
        session = Session(clock=clock)
        session.begin()
        during(session)
        return await compare(("a", "b"), (a.turn(session), b.turn(session)), LOAD, rounds)

    return virtually(main)


def sides() -> tuple[Side, Side, list[str]]:
    turns: list[str] = []
    a = Side("a", turns, (1.0, 0.5), (2.0, 1.0), (1.0, 0.5))
    b = Side("b", turns, (2.0, 0.25), (1.0, 0.25), (1.5, 0.25))
    return a, b, turns


def test_sides_take_turns_in_alternating_order_with_the_same_requests() -> None:
    a, b, turns = sides()
    compared(a, b, 3)
    assert turns == ["a", "b", "b", "a", "a", "b"]
    assert a.prompts == b.prompts
    assert len(set.union(*a.prompts)) == 6  # other ones in each round


def test_ratios_are_those_of_one_round() -> None:
    a, b, _ = sides()
    ratios = {each.figure.key: each for each in compared(a, b, 3).ratios()}
    # By hand: two requests, one after another, of 2, 4 and 2 s on a, of 2.5, 1.5 and 2 s on b.
    assert ratios["mean_ttft_ms"].rounds == (2.0, 0.5, 1.5)
    assert ratios["mean_ttft_ms"].median == 1.5
    assert (ratios["mean_ttft_ms"].a, ratios["mean_ttft_ms"].b) == (1000.0, 1500.0)
    assert ratios["median_itl_ms"].rounds == (0.5, 0.25, 0.5)
    assert ratios["p99_tpot_ms"].rounds == (0.5, 0.25, 0.5)
    assert ratios["mean_e2el_ms"].rounds == pytest.approx((2.5 / 2, 1.5 / 4, 2 / 2))
    assert ratios["output_throughput"].rounds == pytest.approx((2 / 2.5, 4 / 1.5, 2 / 2))
    assert ratios["output_throughput"].a == pytest.approx(6 / 4)


def test_the_table_reads_as_it_did() -> None:
    a, b, _ = sides()
    matches_golden("comparison.txt", comparison_table(compared(a, b, 3)) + "\n")


def test_the_json_has_the_ratios_and_every_result() -> None:
    a, b, _ = sides()
    found = compared(a, b, 2).to_json(requests=True)
    ratio = found["ratios"]["mean_ttft_ms"]["ratio"]
    assert ratio == {"median": 1.25, "min": 0.5, "max": 2.0, "rounds": [2.0, 0.5]}
    assert [[each["seed"] for each in both] for both in found["rounds"]] == [[7, 7], [8, 8]]
    assert len(found["rounds"][0][0]["requests"]) == 2


def test_a_round_that_is_interrupted_does_not_count() -> None:
    a, b, _ = sides()

    def stop(session: Session) -> None:
        asyncio.get_running_loop().call_later(10.0, session.stop)  # a: 4 s, b: 5 s, b: …

    found = compared(a, b, 3, stop)
    assert (len(found.rounds), found.interrupted) == (1, True)
    assert [each.median for each in found.ratios()][:1] == [pytest.approx(0.8)]


@pytest.mark.parametrize("rounds", [0, 1])
def test_finished_rounds_count_where_a_side_is_interrupted_while_it_starts(rounds: int) -> None:
    a, b, _ = sides()

    def starting(turn: Turn) -> Turn:
        async def run(load: Load) -> Result:
            await asyncio.sleep(100.0)  # a server comes up, or weights are loaded
            return await turn(load)

        return run

    async def main() -> tuple[Comparison, int]:
        session = Session(clock=clock)
        session.begin()
        asyncio.get_running_loop().call_later(50.0 + 250 * rounds, session.stop)
        turns = starting(a.turn(session)), starting(b.turn(session))
        found = await compare(("a", "b"), turns, LOAD, 3)
        task = asyncio.current_task()
        assert task is not None
        return found, task.cancelling()

    if not rounds:
        with pytest.raises(asyncio.CancelledError):  # there is nothing to keep
            virtually(main)
        return
    found, cancelling = virtually(main)
    assert (len(found.rounds), found.interrupted, cancelling) == (1, True, 0)


def test_figures_that_a_lacks_have_no_ratio() -> None:
    nothing = Comparison(("a", "b"), ())
    assert nothing.ratios() == []
    assert "0 rounds" in comparison_table(nothing)

    async def silent() -> Comparison:
        session = Session(clock=clock)

        async def turn(load: Load) -> Result:
            ran = await session.run(Scripted([(1.0, '{"error": "no"}')]), load, WordCost())
            return Result(load, ran, {}, date="")

        return await compare(("a", "b"), (turn, turn), LOAD, 1)

    found = virtually(silent)
    assert found.failed == 4
    assert {each.median for each in found.ratios()} == {None}
    assert "–" in comparison_table(found)
