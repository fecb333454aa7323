"""What every policy has to keep to, asked of each that there is."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepweave.policies.acceptance import Acceptance
from stepweave.policies.admission import PastSteps
from stepweave.policies.chosen import Policies
from stepweave.policies.preemption import LastCome, RunningView
from stepweave.policies.registry import DECISIONS, check_policy
from stepweave.policies.scheduling import DecodesFirst
from stepweave.requests.params import SamplingParams
from stepweave.requests.pools import one_class
from stepweave.requests.stopping import StopChecker
from stepweave.requests.table import RequestTable
from stepweave.sampling.draw import draw
from stepweave.sampling.noise import Purpose
from stepweave.sampling.windows import Verified, Windows
from stepweave.testing.engines import TinyConfig, serve, tiny_engine, tiny_requests
from tests.policies.samples import EVERY, sample, samples
from tests.requests.memory_model import Device, Simulation, limits, request

PAIRS = [
    pytest.param(one, two, id=f"{one!r}-{two!r}")
    for one, two in product(samples("scheduling"), samples("preemption"))
]


@pytest.mark.parametrize(("decision", "name"), EVERY)
def test_it_does_what_its_protocol_says_and_tells_what_it_is_for(decision: str, name: str) -> None:
    made = sample(decision, name)
    check_policy(decision, made)
    summary = (type(made).__doc__ or "").splitlines()[0]
    assert summary[0].isupper()
    assert summary.endswith("."), "its line in a list is one sentence"
    assert all(field.description for field in type(made).model_fields.values())
    with pytest.raises(ValueError, match="frozen"):
        made.anything = 1
    assert hash(made) == hash(sample(decision, name)), "one object serves any number of runs"


# --- who runs, and who gives way ---


@pytest.mark.parametrize(("scheduling", "preemption"), PAIRS)
@pytest.mark.parametrize("seed", range(3))
def test_everybody_ends_although_others_keep_arriving_and_nothing_is_lost(
    scheduling: Any, preemption: Any, seed: int
) -> None:
    """The simulation checks each batch: who holds which block, and what each read would find."""
    rnd = random.Random(seed)
    table = RequestTable(
        limits(num_blocks=rnd.randrange(14, 20), token_budget=rnd.randrange(6, 20), max_queue=99),
        block_leases=one_class(2),
        policies=Policies(scheduling=scheduling, preemption=preemption),
    )
    world = Simulation(table, Device(table.limits), depth=rnd.randrange(1, 4), reuse=2, rnd=rnd)
    asked = [
        request(
            uid,
            prompt=rnd.randrange(1, 20),
            max_tokens=rnd.randrange(1, 12),
            window=rnd.choice([1, 3]),
        )
        for uid in range(60)
    ]
    submitted: dict[int, int] = {}
    while len(submitted) < len(asked) or not table.idle:
        if len(submitted) < len(asked) and world.steps % 2 == 0:
            submitted[len(submitted)] = world.steps
            table.submit(asked[len(submitted) - 1])
        world.step()
        waited = max(
            (world.steps - submitted[uid] for uid in table.requests if uid in submitted), default=0
        )
        assert waited < 700, "a request starves"
    world.drain()
    assert all(each.finish_reason == "length" for each in asked)
    assert table.request_slots.held == table.blocks.pool.held == frozenset()


@cache
def alone() -> list[list[int]]:
    """The tokens of the serial loop, with room for everybody."""
    return serve(tiny_engine(TinyConfig(draft_tokens=2)), crowd())


def crowd() -> list[Any]:
    mixed = [
        SamplingParams(max_tokens=12, temperature=0.8 * (uid % 2), seed=uid, ignore_eos=True)
        for uid in range(6)
    ]
    return tiny_requests(mixed)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("scheduling", "preemption"), PAIRS)
def test_tokens_are_those_of_the_serial_loop(scheduling: Any, preemption: Any) -> None:
    tight = TinyConfig(
        depth=3,
        executor="threads",
        draft_tokens=2,
        num_blocks=26,
        token_budget=14,
        policies=Policies(scheduling=scheduling, preemption=preemption),
    )
    requests = crowd()
    assert serve(tiny_engine(tight), requests) == alone()
    assert sum(each.preemptions for each in requests) > 0, "memory was not short"


@given(
    st.lists(
        st.tuples(st.integers(-2, 2), st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=8
    ),
    st.randoms(use_true_random=False),
)
def test_whoever_is_named_is_one_of_the_lowest_priority_whatever_the_order(
    known: list[tuple[int, int, int]], rnd: random.Random
) -> None:
    views = [
        RunningView(priority, uid, tokens, blocks)
        for uid, (priority, tokens, blocks) in enumerate(known)
    ]
    for preemption in samples("preemption"):
        named = preemption.victim(views)
        assert views[named].priority == max(view.priority for view in views)
        assert preemption.victim(rnd.sample(views, len(views))) == named


# --- acceptance ---


def windows(seed: int, rows: int = 24, k: int = 3, vocab: int = 9) -> Windows:
    """Random windows: some rows greedy, some drafts missing, some tokens impossible."""
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, k + 1, vocab, generator=g) * 2
    scores = scores.masked_fill(torch.rand(scores.shape, generator=g) < 0.3, -torch.inf)
    scores[..., 0] = 0.0
    return Windows(
        target=scores.log_softmax(dim=-1),
        drafts=torch.randint(-1, vocab, (rows, k), generator=g),
        valid=torch.randint(0, k + 1, (rows,), generator=g),
        seeds=torch.randint(0, 2**40, (rows,), generator=g),
        positions=torch.randint(0, 50, (rows,), generator=g),
        greedy=torch.rand(rows, generator=g) < 0.3,
        draft_log_probs=torch.randn(rows, k, vocab, generator=g).log_softmax(dim=-1),
    )


def picked(of: Windows, rows: torch.Tensor) -> Windows:
    return replace(of, **{
        name: getattr(of, name)[rows]
        for name in ("target", "drafts", "valid", "seeds", "positions", "greedy", "draft_log_probs")
    })  # fmt: skip


def equal(one: Verified, two: Verified) -> bool:
    return torch.equal(one.tokens, two.tokens) and torch.equal(one.counts, two.counts)


@pytest.mark.parametrize("rule", samples("acceptance"), ids=repr)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_a_window_comes_to_some_drafts_and_one_possible_token(rule: Acceptance, seed: int) -> None:
    given_ = windows(seed)
    if not rule.compares:
        given_ = replace(given_, draft_log_probs=None)
    out = rule.verify(given_)
    rows, k = given_.drafts.shape
    places = torch.arange(k + 1)
    assert out.tokens.shape == (rows, k + 1)
    assert out.counts.shape == (rows,)
    usable = (given_.drafts >= 0) & (places[:k] < given_.valid[:, None])
    kept = out.counts - 1
    assert ((kept >= 0) & (kept <= usable.cumprod(1).sum(1))).all()
    assert ((out.tokens == -1) == (places > kept[:, None])).all()
    before = places[:k] < kept[:, None]
    assert torch.equal(out.tokens[:, :k][before], given_.drafts[before])
    at = torch.arange(rows)
    last = out.tokens[at, kept]
    assert torch.isfinite(given_.target[at, kept, last]).all()


@pytest.mark.parametrize("rule", samples("acceptance"), ids=repr)
def test_a_row_comes_to_the_same_in_any_company(rule: Acceptance) -> None:
    case = windows(5)
    whole = rule.verify(case)
    assert equal(whole, rule.verify(case))
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    shuffled = rule.verify(picked(case, order))
    assert equal(shuffled, Verified(whole.tokens[order], whole.counts[order]))
    alone = rule.verify(picked(case, order[:1]))
    assert equal(alone, Verified(whole.tokens[order[:1]], whole.counts[order[:1]]))


@pytest.mark.parametrize("rule", samples("acceptance"), ids=repr)
def test_of_a_greedy_row_only_the_best_token_counts(rule: Acceptance) -> None:
    """Its scores are plain in a batch of greedy rows, and filtered beside others."""
    case = windows(7)
    case = replace(case, greedy=torch.ones_like(case.greedy), draft_log_probs=None)
    best = case.target.argmax(dim=-1, keepdim=True)
    only = torch.full_like(case.target, -torch.inf).scatter(-1, best, 0.0)
    plain = rule.verify(replace(case, any_random=False))
    assert equal(rule.verify(replace(case, target=only)), plain)
    assert equal(rule.verify(replace(case, target=case.target * 5)), plain)


@pytest.mark.parametrize("rule", [each for each in samples("acceptance") if each.exact], ids=repr)
@pytest.mark.parametrize("seed", range(4))
def test_an_exact_rule_gives_the_draws_of_decoding_without_drafts(
    rule: Acceptance, seed: int
) -> None:
    """So kernels may verify for it: there is nothing left to choose."""
    case = windows(seed)
    out = rule.verify(case)
    for place in range(case.target.shape[1]):
        drawn = draw(
            case.target[:, place], case.seeds, case.positions + place, case.greedy, Purpose.TARGET
        )
        settled = out.counts > place
        assert torch.equal(out.tokens[settled, place], drawn[settled])
        ends = out.counts == place + 1
        if place < case.drafts.shape[1]:
            usable = (case.drafts[:, : place + 1] >= 0).all(1) & (case.valid > place)
            assert not (ends & usable & (case.drafts[:, place] == drawn)).any()


# --- when a request ends ---


def spelled(tokens: Sequence[int]) -> str:
    return "".join(" ab"[token - 1] for token in tokens)


@pytest.mark.parametrize("stopping", samples("stopping"), ids=repr)
@given(
    tokens=st.lists(st.sampled_from([1, 1, 2, 2, 3, 4]), min_size=1, max_size=30),
    most=st.integers(1, 25),
    least=st.integers(0, 10),
    cuts=st.lists(st.integers(1, 5), min_size=30, max_size=30),
)
def test_the_end_does_not_depend_on_steps_and_is_never_later_than_asked(
    stopping: Any, tokens: list[int], most: int, least: int, cuts: list[int]
) -> None:
    def ended(sizes: list[int], policy: Any) -> tuple[int, str, str | None]:
        checker = StopChecker([4], ["bb"], most, min(least, most), policy=policy)
        text, rest = "", list(tokens)
        for size in sizes:
            text += checker.push(
                rest[:size], lambda ids: "".join(" ab"[each - 1] for each in ids)
            ).text
            rest = rest[size:]
        return checker.count, text + checker.release(), checker.finish_reason

    singly = ended([1] * 30, stopping)
    assert ended(cuts, stopping) == singly
    usual = ended([1] * 30, None)
    assert singly[0] <= usual[0] <= most
    if singly[2] is None:
        assert usual[2] is None


# --- when a step is scheduled ---

MOMENTS = st.floats(0, 2, allow_nan=False)


@given(
    past=st.dictionaries(
        st.integers(1, 9),
        st.lists(st.tuples(MOMENTS, MOMENTS, MOMENTS), max_size=12).map(
            lambda rows: PastSteps(*(zip(*rows, strict=True) if rows else ((), (), ())))
        ),
        max_size=4,
    ),
    in_flight=st.integers(1, 4096),
)
def test_a_delay_is_a_time_and_no_longer_than_what_was_seen(
    past: dict[int, PastSteps], in_flight: int
) -> None:
    for admission in samples("admission"):
        delay = admission.delay_s(in_flight, past)
        assert 0 <= delay < math.inf
        assert delay <= max(
            (each for steps in past.values() for each in steps.periods_s), default=0
        )
        assert admission.window >= 0
        assert admission.delay_s(in_flight, {}) == 0


def test_the_defaults_are_those_that_an_engine_has_without_any_choice() -> None:
    policies = Policies()
    assert (policies.scheduling, policies.preemption) == (DecodesFirst(), LastCome())
    for decision in DECISIONS:
        check_policy(decision, getattr(policies, decision))
