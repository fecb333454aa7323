"""A published experiment in the simulator: who is faster than whom, from assumed costs.

Llama-3.1-8B with an EAGLE-3 head, 3 drafts, 10 requests at once, with and without structured
outputs, asynchronous or synchronous scheduling. Published mean times per output token, in ms:

                            with grammars   without
    async, no speculation            4.44      4.34
    speculation, synchronous         3.11      2.66
    async and speculation            2.56      2.43

Only the order and the rough size of the effects are reproduced: the costs are those of `llama_8b`,
which are arithmetic and not fitted. Synchronous is the serial loop; a row gets 2.25 tokens in a
speculative step.
"""

import pytest

from stepweave.cli.planned import planned
from stepweave.configs.costs import assumed_costs
from stepweave.timelines.simulated import simulate

TOKENS_PER_STEP = 2.25
ROWS = 10


def period_us(config: str, *, depth: int, serial: bool = False) -> float:
    plan = planned(config, {"depth": str(depth)}, costs="llama_8b", rows=ROWS)
    return simulate(plan, steps=60, serial=serial).period_us


def tpot_us(*, asynchronous: bool, speculation: bool, grammar: bool) -> float:
    """Time per output token of a row."""
    config = {
        (True, True): "async_eagle3_grammar",
        (True, False): "async_eagle",
        (False, True): "async_grammar",
        (False, False): "async",
    }[speculation, grammar]
    depth = 2 if asynchronous else 1
    per_step = TOKENS_PER_STEP if speculation else 1.0
    return period_us(config, depth=depth, serial=not asynchronous) / per_step


@pytest.mark.parametrize("grammar", [True, False])
def test_the_published_order_comes_out(grammar: bool) -> None:
    both = tpot_us(asynchronous=True, speculation=True, grammar=grammar)
    speculation = tpot_us(asynchronous=False, speculation=True, grammar=grammar)
    asynchronous = tpot_us(asynchronous=True, speculation=False, grammar=grammar)
    neither = tpot_us(asynchronous=False, speculation=False, grammar=grammar)
    assert both < speculation < asynchronous < neither


@pytest.mark.parametrize("speculation", [True, False])
def test_a_grammar_costs_little_where_it_overlaps(speculation: bool) -> None:
    plain, masked = (
        tpot_us(asynchronous=True, speculation=speculation, grammar=grammar)
        for grammar in (False, True)
    )
    assert 1 < masked / plain < 1.02


def test_a_grammar_costs_much_in_the_serial_loop_where_it_has_drafts_to_check() -> None:
    plain, masked = (
        tpot_us(asynchronous=False, speculation=True, grammar=grammar) for grammar in (False, True)
    )
    assert 1.08 < masked / plain < 1.25  # published: 1.17


def test_what_overlap_gains_is_mostly_the_grammar() -> None:
    gains = {
        grammar: tpot_us(asynchronous=False, speculation=True, grammar=grammar)
        / tpot_us(asynchronous=True, speculation=True, grammar=grammar)
        for grammar in (True, False)
    }
    assert gains[True] - 1 > 1.5 * (gains[False] - 1)  # published: 1.21 and 1.09


@pytest.mark.parametrize("name", assumed_costs())
def test_at_depth_2_the_device_alone_sets_the_pace_and_never_waits(name: str) -> None:
    plan = planned("async_eagle3_grammar", costs=name)
    vertices = plan.graph.vertices
    assert {vertices[op].side for op, _ in plan.critical_cycle} == {"device"}
    assert simulate(plan, steps=60).gap_us("compute") == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", assumed_costs())
def test_at_depth_1_the_critical_cycle_runs_through_the_host(name: str) -> None:
    plan = planned("async_eagle3_grammar", {"depth": "1"}, costs=name)
    sides = {plan.graph.vertices[op].side for op, _ in plan.critical_cycle}
    assert sides == {"host", "device"}
    timeline = simulate(plan, steps=60)
    assert timeline.gap_us("compute") > 0.05 * timeline.period_us


@pytest.mark.parametrize("rows", [1, 8, 32, 128])
@pytest.mark.parametrize("name", ["llama_8b", "llama_70b"])
def test_a_large_model_hides_its_grammars_at_every_batch_size(name: str, rows: int) -> None:
    plan = planned("async_eagle3_grammar", costs=name, rows=rows)
    assert all(plan.graph.vertices[op].side == "device" for op, _ in plan.critical_cycle)


def test_a_small_model_is_bound_by_its_grammars_until_they_have_a_thread_of_their_own() -> None:
    alone, worker = (
        planned(name, costs="llama_1b", rows=8)
        for name in ("async_eagle3_grammar", "grammar_worker")
    )
    assert any(alone.graph.vertices[op].side == "host" for op, _ in alone.critical_cycle)
    assert all(worker.graph.vertices[op].side == "device" for op, _ in worker.critical_cycle)
    assert worker.period_us < 0.95 * alone.period_us
