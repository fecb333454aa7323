"""The figures of a load, against numbers that were worked out by hand."""

from __future__ import annotations

import pytest

from stepweave.loadgen.ask import Ask
from stepweave.loadgen.outcome import Outcome, peak_concurrency
from stepweave.loadgen.runner import Ran, Runner
from stepweave.loadgen.summary import Distribution, Summary, throughput
from tests.loadgen.virtual import Scripted, chunk, clock, total, virtually

# Sent at 0 s: first token after 1/4 s, then after 1/8 and 1/2 s; two tokens in the last chunk.
QUICK = [
    (0.25, chunk("a")),
    (0.125, chunk("b")),
    (0.5, chunk("cd", finish="stop")),
    (0.0, total(10, 4, 3)),
]
# First token after 1 s, one more after 1 s.
SLOW = [(1.0, chunk("a")), (1.0, chunk("b", finish="length")), (0.0, total(20, 2))]
FAILED = [(0.5, chunk("a")), (2.5, '{"error": {"message": "out of memory"}}')]


def summary(wanted: tuple[float, ...] = (90, 99)) -> Summary:
    async def main() -> Ran:
        server = Scripted(QUICK, SLOW, FAILED)
        asks = [Ask(str(k), "x") for k in range(3)]
        return await Runner(server, clock=clock).run(asks, [0.0, 0.0, 1.0])

    return Summary.of(virtually(main), wanted)


def test_counts_and_rates() -> None:
    found = summary()
    assert (found.completed, found.failed, found.seconds) == (2, 1, 4.0)
    assert (found.input_tokens, found.cached_tokens, found.output_tokens) == (30, 3, 6)
    assert found.request_throughput == 2 / 4
    assert found.output_throughput == 6 / 4
    assert found.total_throughput == 36 / 4
    assert found.peak_concurrency == 2  # the quick one had ended when the third was sent
    assert found.errors == {"out of memory": 1}


def test_latencies_are_those_of_requests_that_succeeded() -> None:
    found = summary().latencies
    # By hand: ttft 250 and 1000; tpot (875-250)/3 = 208.33 and 1000; itl 125, 500, 1000;
    # e2el 875 and 2000. A percentile p of n sorted numbers lies at place (n-1)·p.
    assert (found["ttft"].mean, found["ttft"].median, found["ttft"].std) == (625, 625, 375)
    assert found["ttft"].percentiles[90] == pytest.approx(250 + 0.9 * 750)
    assert found["tpot"].mean == pytest.approx((625 / 3 + 1000) / 2)
    assert found["itl"].mean == pytest.approx(1625 / 3)
    assert found["itl"].median == 500
    assert found["itl"].percentiles[90] == pytest.approx(500 + 0.8 * 500)
    assert found["itl"].percentiles[99] == pytest.approx(500 + 0.98 * 500)
    assert found["e2el"].mean == 1437.5
    assert found["e2el"].percentiles[99] == pytest.approx(875 + 0.99 * 1125)


def test_throughput_by_the_second_spreads_tokens_over_the_moments_they_came_at() -> None:
    quick = Outcome("a", 10.0, 10.0, 11.5, (10.25, 10.75, 11.5), tokens=6)
    late = Outcome("b", 10.0, 10.0, 13.0, (13.0,), tokens=3)
    assert throughput([quick, late], 10.0) == [4.0, 2.0, 0.0, 3.0]
    assert throughput([], 10.0) == []


def test_one_that_begins_when_another_ends_does_not_run_beside_it() -> None:
    outcomes = [Outcome(str(k), k, float(k), float(k + 1)) for k in range(3)]
    assert peak_concurrency(outcomes) == 1
    assert peak_concurrency([*outcomes, Outcome("long", 0, 0.5, 9.0)]) == 2
    assert peak_concurrency([]) == 0


def test_nothing_done_is_all_zero() -> None:
    found = Summary.of(Ran((), 1.0, 1.0))
    assert found.cached_tokens is None
    assert (found.request_throughput, found.peak_output_throughput) == (0.0, 0.0)
    assert {each.mean for each in found.latencies.values()} == {0.0}
    assert Distribution.of([None, 0.002], [50.0]) == Distribution(1, 2.0, 0.0, {50.0: 2.0})


def test_what_no_request_came_to_is_null_and_not_zero() -> None:
    refused = Ran((Outcome("a", 0, 0.0, 1.0, error="no"),), 0.0, 1.0)
    found = Summary.of(refused).to_json()
    assert found["failed"] == 1
    assert found["output_throughput"] == 0
    latencies = {key: value for key, value in found.items() if key.endswith("_ms")}
    assert len(latencies) == 4 * 5
    assert set(latencies.values()) == {None}
    one_token = Ran((Outcome("a", 0, 0.0, 1.0, (1.0,), tokens=1),), 0.0, 1.0)
    found = Summary.of(one_token).to_json()
    assert found["mean_ttft_ms"] == 1000
    assert found["mean_itl_ms"] is None


def test_the_json_has_the_names_that_scripts_read() -> None:
    found = summary((99,)).to_json()
    assert found["mean_ttft_ms"] == 625
    assert found["median_itl_ms"] == 500
    assert found["p99_e2el_ms"] == pytest.approx(875 + 0.99 * 1125)
    assert "p90_ttft_ms" not in found
    assert found["completed"] == 2
