"""Verification of drafts: the right distribution, the right shapes, and nothing else."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.policies.acceptance import Acceptance, Block, Coupled, Rejection, Typical
from stepweave.sampling.draw import draw, filtered_log_probs
from stepweave.sampling.noise import Purpose, of_window
from stepweave.sampling.windows import Verified, Windows

RULES: dict[str, Acceptance] = {
    "coupled": Coupled(),
    "rejection": Rejection(),
    "block": Block(),
}
N = 120_000
INF = float("inf")


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> Acceptance:
    return RULES[request.param]


def distributions(*shape: int, seed: int = 0) -> Tensor:
    """Log-probabilities `[*shape]` with some tokens cut, float32."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, generator=generator) * 1.5
    cut = torch.rand(*shape, generator=generator) < 0.25
    cut[..., 0] = False
    return logits.masked_fill(cut, float("-inf")).log_softmax(-1)


def batch(rows: int, k: int, vocab: int, seed: int = 0) -> dict[str, Any]:
    """Arguments of a rule, all of them random, some rows greedy, some drafts missing."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "target": distributions(rows, k + 1, vocab, seed=seed),
        "drafts": torch.randint(-1, vocab, (rows, k), generator=generator),
        "valid": torch.randint(0, k + 1, (rows,), generator=generator),
        "seeds": torch.randint(-(2**40), 2**40, (rows,), generator=generator),
        "positions": torch.randint(0, 100, (rows,), generator=generator),
        "greedy": torch.rand(rows, generator=generator) < 0.3,
    }


def chi_square(counts: Tensor, expected: Tensor) -> float:
    """The statistic over cells with an expectation; a count in any other cell is an error."""
    possible = expected > 0
    assert (counts[~possible] == 0).all(), "something impossible came out"
    counts, expected = counts[possible].double(), expected[possible].double()
    rare = expected < 8  # pooled, as the approximation needs
    if rare.any():
        counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
        expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    return float(((counts - expected) ** 2 / expected.clamp(min=1e-9)).sum())


def limit(cells: int) -> float:
    """About the 0.9999 quantile of chi-square with `cells - 1` degrees (Wilson, Hilferty 1931)."""
    degrees = max(1, cells - 1)
    return float(degrees * (1 - 2 / (9 * degrees) + 3.719 * (2 / (9 * degrees)) ** 0.5) ** 3)


def filtered(log_probs: Tensor) -> Tensor:
    """The same after temperature, top-k, top-p and min-p, with other settings in every row."""
    rows = torch.arange(len(log_probs))
    return filtered_log_probs(
        log_probs,
        0.6 + 0.2 * (rows % 4),
        torch.where(rows % 2 == 0, 5, 0),
        torch.where(rows % 3 == 0, 0.9, 1.0),
        min_p=torch.where(rows % 3 == 1, 0.1, 0.0),
    )


def near(p: Tensor, other: Tensor) -> Tensor:
    """Half of each distribution, without token 0: some tokens only p has, some only the drafter."""
    return torch.logaddexp(p, other).index_fill(-1, torch.tensor([0]), -INF).log_softmax(-1)


DRAFTS = {"fixed": None, "drawn": Purpose.DRAFT, "drawn with the target's noise": Purpose.TARGET}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("rows", [30_000, pytest.param(N, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("tails", [False, True], ids=["whole windows", "windows cut short"])
@pytest.mark.parametrize("cut", [False, True], ids=["plain", "filtered"])
@pytest.mark.parametrize(
    ("name", "drafts"),
    [
        (name, d)
        for name in RULES
        for d in DRAFTS
        if not (RULES[name].compares and DRAFTS[d] is Purpose.TARGET)
    ],
)
def test_two_tokens_through_a_window_follow_the_target(
    name: str, drafts: str, cut: bool, tails: bool, rows: int
) -> None:
    """The joint distribution of the first two output tokens, over many seeds.

    The second token has a distribution of its own after each first token. A window gives one token
    or more; where it gives one, the second comes from a second window, as in a real run.
    """
    vocab, rule, purpose = 7, RULES[name], DRAFTS[drafts]
    first = distributions(vocab, seed=3)
    second = distributions(vocab, vocab, seed=4)  # given the first
    if cut:
        first, second = filtered(first[None])[0], filtered(second)
    seeds = torch.arange(rows) * 3 - rows
    zeros = torch.zeros(rows, dtype=torch.int64)
    sampled = torch.zeros(rows, dtype=torch.bool)

    if purpose is not None:
        q_first = near(first, distributions(vocab, seed=5))
        q_second = near(second, distributions(vocab, vocab, seed=6))
        d0 = draw(q_first.expand(rows, -1), seeds, zeros, sampled, purpose)
        d1 = draw(q_second[d0], seeds, zeros + 1, sampled, purpose)
        q = torch.stack([q_first.expand(rows, -1), q_second[d0]], dim=1)
    else:
        d0, q = zeros + int(first.argsort()[-2]), None
        d1 = second[d0].argmax(dim=-1)
    valid = zeros + 2
    if tails:  # cut by row, not by draft: a third each with 0, 1 and 2, by a count or a placeholder
        valid = torch.arange(rows) % 3
        ended = (valid[:, None] <= torch.arange(2)) & (torch.arange(rows) % 2 == 0)[:, None]
        d0, d1 = d0.masked_fill(ended[:, 0], -1), d1.masked_fill(ended[:, 1], -1)
        valid = torch.where(torch.arange(rows) % 2 == 0, 2, valid)
    reached = d0.clamp_min(0)
    bonus = distributions(1, vocab, seed=7).expand(rows, -1)  # of no interest
    out = rule.verify(
        Windows(
            torch.stack([first.expand(rows, -1), second[reached], bonus], dim=1),
            torch.stack([d0, d1], dim=1),
            valid,
            seeds,
            zeros,
            sampled,
            q,
        )
    )
    one = out.counts == 1
    again = rule.verify(
        Windows(
            second[out.tokens[:, 0]][:, None],
            zeros[:, None][:, :0],
            zeros,
            seeds,
            zeros + 1,
            sampled,
        )
    )
    x, y = out.tokens[:, 0], torch.where(one, again.tokens[:, 0], out.tokens[:, 1])
    assert rows / 50 < int(one.sum()) < rows - rows / 50, "both ways must be exercised"

    marginal = first.double().exp() * rows
    assert chi_square(torch.bincount(x, minlength=vocab), marginal) < limit(
        int((first.exp() > 0).sum())
    )
    joint = (first[:, None] + second).double().exp().flatten() * rows
    counts = torch.bincount(x * vocab + y, minlength=vocab**2)
    assert chi_square(counts, joint) < limit(int((joint > 0).sum()))
    # Where the first draft was kept, the second token is still the target's.
    after = torch.bincount((x * vocab + y)[~one], minlength=vocab**2).view(vocab, vocab)
    given = second.double().exp() * after.sum(dim=1, keepdim=True)
    degrees = (given > 0).sum() - (after.sum(dim=1) > 0).sum()
    assert chi_square(after.flatten(), given.flatten()) < limit(int(degrees) + 1)


def test_rejection_keeps_a_draft_as_often_as_is_possible() -> None:
    vocab = 6
    p, q = distributions(vocab, seed=8), distributions(vocab, seed=9)
    seeds, zeros = torch.arange(N), torch.zeros(N, dtype=torch.int64)
    sampled = torch.zeros(N, dtype=torch.bool)
    drafts = draw(q.expand(N, -1), seeds, zeros, sampled, Purpose.DRAFT)
    target = p.expand(N, 2, -1)

    def kept(name: str, tokens: Tensor) -> float:
        out = RULES[name].verify(
            Windows(target, tokens[:, None], zeros + 1, seeds, zeros, sampled, q.expand(N, 1, -1))
        )
        return float((out.counts - 1).double().mean())

    distance = float((p.exp() - q.exp()).abs().sum()) / 2
    error = 4 * (0.25 / N) ** 0.5
    assert kept("rejection", drafts) == pytest.approx(1 - distance, abs=error)
    # The coupling's price: the product of the distributions with independent drafts, at least
    # (1 - TV) / (1 + TV) with drafts drawn by the same noise.
    independent = float((p.exp() * q.exp()).sum())
    assert kept("coupled", drafts) == pytest.approx(independent, abs=error)
    together = draw(q.expand(N, -1), seeds, zeros, sampled, Purpose.TARGET)
    assert kept("coupled", together) > (1 - distance) / (1 + distance) - error
    assert kept("coupled", together) > independent + error


def decode(rule: Acceptance, tables: Tensor, k: int, drafter: int, seeds: Tensor) -> Tensor:
    """20 tokens per row from `tables [V, V]` (next token given the last), with windows of k."""
    rows, vocab = len(seeds), tables.shape[-1]
    outputs = torch.full((rows, 20 + k + 1), -1)
    done = torch.zeros(rows, dtype=torch.int64)
    last = torch.zeros(rows, dtype=torch.int64)
    greedy = torch.arange(rows) % 3 == 0
    while bool((done < 20).any()):
        drafts = torch.stack([(last * drafter + j) % vocab for j in range(k)] or [last], dim=1)
        drafts = drafts[:, :k]
        target = tables[torch.cat([last[:, None], drafts], dim=1)]
        out = rule.verify(Windows(target, drafts, torch.full((rows,), k), seeds, done, greedy))
        place = torch.arange(k + 1)
        for row in range(rows):
            if done[row] < 20:
                count = int(out.counts[row])
                outputs[row, done[row] + place[:count]] = out.tokens[row, :count]
                done[row] += count
                last[row] = out.tokens[row, count - 1]
    return outputs[:, :20]


def test_coupled_tokens_are_those_without_drafts_for_any_drafter_and_length() -> None:
    tables = distributions(7, 7, seed=2)
    seeds = torch.arange(12) * 1_000_003
    plain = decode(RULES["coupled"], tables, 0, 1, seeds)
    for k, drafter in [(1, 1), (3, 2), (5, 3)]:
        assert torch.equal(decode(RULES["coupled"], tables, k, drafter, seeds), plain)


def test_greedy_rows_are_those_without_drafts_under_either_rule(rule: Acceptance) -> None:
    tables = distributions(7, 7, seed=2)
    seeds = torch.arange(9)
    greedy = torch.arange(9) % 3 == 0
    plain = decode(rule, tables, 0, 1, seeds)[greedy]
    expected, last = [], 0
    for _ in range(20):
        last = int(tables[last].argmax())
        expected.append(last)
    assert plain.tolist() == [expected] * 3
    assert torch.equal(decode(rule, tables, 4, 2, seeds)[greedy], plain)


def test_small_greedy_cases_by_hand(rule: Acceptance) -> None:
    best = torch.tensor([3, 1, 2, 0])
    target = torch.full((4, 5), float("-inf")).scatter(1, best[:, None], 0.0)
    cases = {
        # drafts, valid: tokens
        ((3, 1, 2), 3): [3, 1, 2, 0],
        ((3, 1, 4), 3): [3, 1, 2, -1],
        ((3, 4, 2), 3): [3, 1, -1, -1],
        ((0, 1, 2), 3): [3, -1, -1, -1],
        ((3, 1, 2), 2): [3, 1, 2, -1],
        ((3, 1, 2), 0): [3, -1, -1, -1],
        ((3, -1, 2), 3): [3, 1, -1, -1],
        ((-1, -1, -1), 3): [3, -1, -1, -1],
        ((3, 99, 2), 3): [3, 1, -1, -1],
    }
    for (drafts, valid), expected in cases.items():
        for any_random in (False, True):
            out = rule.verify(
                Windows(
                    target[None],
                    torch.tensor([drafts]),
                    torch.tensor([valid]),
                    torch.tensor([1]),
                    torch.tensor([0]),
                    torch.tensor([True]),
                    any_random=any_random,
                )
            )
            assert out.tokens[0].tolist() == expected, (drafts, valid, any_random)
            assert int(out.counts[0]) == sum(token >= 0 for token in expected)


def test_a_forced_draft_is_always_kept_and_an_impossible_one_never(rule: Acceptance) -> None:
    n = 5000
    forced = torch.full((6,), float("-inf"))
    forced[4] = 0.0
    for draft, kept in ((4, 1), (2, 0)):
        out = rule.verify(
            Windows(
                forced.expand(n, 2, -1),
                torch.full((n, 1), draft),
                torch.ones(n, dtype=torch.int64),
                torch.arange(n),
                torch.zeros(n, dtype=torch.int64),
                torch.zeros(n, dtype=torch.bool),
            )
        )
        assert (out.counts == kept + 1).all()
        assert (out.tokens[:, 0] == 4).all()


@pytest.mark.parametrize("drawn", [False, True])
def test_every_token_is_allowed_and_every_row_is_padded(rule: Acceptance, drawn: bool) -> None:
    case = batch(300, 4, 9, seed=5)
    q = distributions(300, 4, 9, seed=6) if drawn else None
    out = rule.verify(Windows(**case, draft_log_probs=q))
    usable = ((case["drafts"] >= 0) & (torch.arange(4) < case["valid"][:, None])).cumprod(1).sum(1)
    assert ((out.counts >= 1) & (out.counts <= usable + 1)).all()
    for row, place in product(range(300), range(5)):
        token = int(out.tokens[row, place])
        if place < out.counts[row]:
            assert case["target"][row, place, token] > float("-inf")
            if place < out.counts[row] - 1:
                assert token == case["drafts"][row, place]
        else:
            assert token == -1


def equal(a: Verified, b: Verified) -> bool:
    return torch.equal(a.tokens, b.tokens) and torch.equal(a.counts, b.counts)


@pytest.mark.parametrize("drawn", [False, True])
def test_a_row_comes_out_the_same_in_any_batch(rule: Acceptance, drawn: bool) -> None:
    case = batch(7, 3, 501, seed=1)
    if drawn:
        case["draft_log_probs"] = distributions(7, 3, 501, seed=2)
    whole = rule.verify(Windows(**case))
    assert equal(whole, rule.verify(Windows(**case))), "seeded"
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    shuffled = rule.verify(Windows(**{name: value[order] for name, value in case.items()}))
    assert equal(shuffled, Verified(whole.tokens[order], whole.counts[order]))
    for row in range(7):
        alone = rule.verify(Windows(**{name: value[row : row + 1] for name, value in case.items()}))
        assert equal(alone, Verified(whole.tokens[row : row + 1], whole.counts[row : row + 1]))


def test_what_stands_behind_the_window_has_no_influence(rule: Acceptance) -> None:
    case = batch(200, 4, 9, seed=9)
    clean = rule.verify(Windows(**case))
    behind = torch.arange(5) > case["valid"][:, None]
    poisoned = case["target"].masked_fill(behind[..., None], float("nan"))
    drafts = case["drafts"].masked_fill(torch.arange(4) >= case["valid"][:, None], -(2**31))
    assert equal(clean, rule.verify(Windows(**{**case, "target": poisoned, "drafts": drafts})))


def test_a_longer_padding_changes_nothing(rule: Acceptance) -> None:
    case = batch(50, 2, 9, seed=4)
    wide = {
        **case,
        "target": torch.cat([case["target"], distributions(50, 3, 9, seed=1)], dim=1),
        "drafts": torch.cat([case["drafts"], torch.full((50, 3), -1)], dim=1),
    }
    narrow, padded = rule.verify(Windows(**case)), rule.verify(Windows(**wide))
    assert torch.equal(padded.tokens[:, :3], narrow.tokens)
    assert (padded.tokens[:, 3:] == -1).all()
    assert torch.equal(padded.counts, narrow.counts)


def test_no_window_at_all_is_plain_sampling(rule: Acceptance) -> None:
    case = batch(30, 0, 9)
    out = rule.verify(Windows(**case))
    assert out.tokens.shape == (30, 1)
    assert (out.counts == 1).all()


def test_a_draft_that_equals_its_own_distribution_is_always_kept() -> None:
    n = 20_000
    p = distributions(n, 1, 40, seed=3)
    seeds, zeros = torch.arange(n), torch.zeros(n, dtype=torch.int64)
    sampled = torch.zeros(n, dtype=torch.bool)
    drafts = draw(p[:, 0], seeds, zeros, sampled, Purpose.DRAFT)[:, None]
    windows = Windows(p.expand(n, 2, -1), drafts, zeros + 1, seeds, zeros, sampled, p)
    out = RULES["rejection"].verify(windows)
    assert (out.counts == 2).all()


def test_the_token_after_a_window_is_keyed_by_its_own_output_position() -> None:
    n, vocab = 300, 30
    forced = torch.full((n, 2, vocab), float("-inf"))
    forced[..., 7] = 0.0
    last = distributions(n, 1, vocab, seed=11)
    seeds, positions = torch.arange(n), torch.arange(n) % 13
    sampled = torch.zeros(n, dtype=torch.bool)
    out = RULES["rejection"].verify(
        Windows(
            torch.cat([forced, last], dim=1),
            torch.full((n, 2), 7),
            torch.full((n,), 2),
            seeds,
            positions,
            sampled,
        )
    )
    expected = draw(last[:, 0], seeds, positions + 2, sampled, Purpose.BONUS)
    assert torch.equal(out.tokens[:, 2], expected)


def test_a_placeholder_before_real_drafts_is_no_refusal(rule: Acceptance) -> None:
    """Nothing is taken out of the distribution for it, token 0 least of all."""
    n, vocab = 3000, 4
    target = distributions(vocab, seed=12).expand(n, 3, -1)
    rest = (torch.arange(n), torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.bool))
    drafts = torch.tensor([-1, 2]).expand(n, 2)
    cut = rule.verify(Windows(target, drafts, torch.full((n,), 2), *rest))
    no_drafts = torch.zeros(n, dtype=torch.int64)
    none = rule.verify(Windows(target[:, :1], drafts[:, :0], no_drafts, *rest))
    assert (cut.counts == 1).all()
    assert torch.equal(cut.tokens[:, 0], none.tokens[:, 0])
    assert (none.tokens == 0).any()


def test_a_greedy_row_takes_the_best_token_whatever_its_drafter_thought(rule: Acceptance) -> None:
    target = torch.tensor([0.5, 0.4, 0.1]).log().expand(1, 2, 3)
    sure_of_the_best = torch.tensor([0.9, 0.05, 0.05]).log().expand(1, 1, 3)
    one = torch.tensor([1])
    out = rule.verify(Windows(target, one[:, None], one, one, one, one == 1, sure_of_the_best))
    assert out.tokens.tolist() == [[0, -1]]


def test_a_refused_draft_that_was_the_only_choice_is_taken_after_all(rule: Acceptance) -> None:
    """Rounding may refuse it; a token that the target forbids must still never come out."""
    n = 400
    only = torch.full((6,), float("-inf"))
    only[4] = -0.7  # as if its probability had been rounded down, by far
    zeros = torch.zeros(n, dtype=torch.int64)
    out = rule.verify(
        Windows(
            only.expand(n, 2, -1), zeros[:, None] + 4, zeros + 1, torch.arange(n), zeros, zeros == 1
        )
    )
    assert (out.tokens[:, 0] == 4).all()


def windows_one_after_the_other(
    rule: Acceptance, first: Tensor, after: Tensor, q: Tensor, rows: int, k: int, length: int
) -> tuple[Tensor, float]:
    """`[rows, length]`: tokens by windows of k drafts that `rule` verifies, of a text whose token
    is drawn from `first[V]`, then from `after[V, V]` given the last; drafts are drawn from `q[V,
    V]` given the last, with the noise of a drafter. And how many drafts a window kept on average.
    """
    vocab = first.shape[0]
    seeds, sampled = torch.arange(rows) * 7 + 3, torch.zeros(rows, dtype=torch.bool)
    done, last = torch.zeros(rows, dtype=torch.int64), torch.full((rows,), vocab)
    target_of, draft_of = torch.cat([after, first[None]]), torch.cat([q, first[None]])
    tokens = torch.full((rows, length + k + 1), -1)
    kept = windows = 0
    while int(done.min()) < length:
        drafts, drawn_from, at = [], [], last
        for place in range(k):
            drawn_from.append(draft_of[at])
            at = draw(draft_of[at], seeds, done, sampled, of_window(Purpose.DRAFT, place))
            drafts.append(at)
        target = target_of[torch.stack([last, *drafts], dim=1)]
        offered, of = torch.stack(drafts, dim=1), torch.stack(drawn_from, dim=1)
        valid = torch.full((rows,), k)
        out = rule.verify(Windows(target, offered, valid, seeds, done, sampled, of))
        live = done < length
        kept, windows = kept + int((out.counts[live] - 1).sum()), windows + int(live.sum())
        places = done[:, None] + torch.arange(k + 1)
        real = (torch.arange(k + 1) < out.counts[:, None]) & live[:, None]
        tokens.scatter_(1, torch.where(real, places, length + k), out.tokens)
        last = torch.where(live, out.tokens.gather(1, out.counts[:, None] - 1)[:, 0], last)
        done = done + torch.where(live, out.counts, 0)
    return tokens[:, :length], kept / windows


@pytest.mark.parametrize("rows", [25_000, pytest.param(N, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", ["rejection", "block"])
def test_texts_of_several_windows_follow_the_target(name: str, rows: int) -> None:
    """A draft that was judged and not kept must have no say in the window after it."""
    vocab, length = 4, 4
    first, after = distributions(vocab, seed=21), distributions(vocab, vocab, seed=22)
    q = near(after, distributions(vocab, vocab, seed=23))
    tokens, kept = windows_one_after_the_other(RULES[name], first, after, q, rows, 3, length)
    assert 0.3 < kept < 2.7, "drafts are kept and refused"
    chances = first.double().exp()
    for _ in range(length - 1):
        chances = (chances.view(-1, vocab)[..., None] * after.double().exp()).reshape(-1)
    cell = torch.zeros(rows, dtype=torch.int64)
    for place in range(length):
        cell = cell * vocab + tokens[:, place]
    counts = torch.bincount(cell, minlength=vocab**length)
    assert chi_square(counts, rows * chances) < limit(int((rows * chances >= 8).sum()) + 1)


@pytest.mark.parametrize("rows", [20_000, pytest.param(N, marks=pytest.mark.nightly)])
def test_a_block_keeps_no_fewer_drafts_than_draft_by_draft_and_more_where_it_can(
    rows: int,
) -> None:
    """With the same drafts. The example of the paper: p = (1/3, 2/3), q = (2/3, 1/3), k = 2."""
    p, q = torch.tensor([1 / 3, 2 / 3]).log(), torch.tensor([2 / 3, 1 / 3]).log()
    means: dict[str, list[float]] = {"rejection": [], "block": []}
    cases = [(p, p.expand(2, -1), q, q.expand(2, -1))]
    for seed in range(2):
        of = [distributions(5, seed=seed + at) for at in (40, 50)]
        given = [distributions(5, 5, seed=seed + at) for at in (60, 70)]
        cases.append((of[0], given[0], of[1], given[1]))
    for target, then, draft, draft_then in cases:
        seeds, zeros = torch.arange(rows), torch.zeros(rows, dtype=torch.int64)
        sampled = torch.zeros(rows, dtype=torch.bool)
        drafts, drawn_from, line = [], [], draft.expand(rows, -1)
        for place in range(3):
            drawn_from.append(line)
            drafts.append(draw(line, seeds, zeros, sampled, of_window(Purpose.DRAFT, place)))
            line = draft_then[drafts[-1]]
        targets = torch.stack([target.expand(rows, -1), *(then[each] for each in drafts)], dim=1)
        windows = Windows(
            targets,
            torch.stack(drafts, dim=1),
            zeros + 3,
            seeds,
            zeros,
            sampled,
            torch.stack(drawn_from, dim=1),
        )
        for name, found in means.items():
            found.append(float((RULES[name].verify(windows).counts - 1).double().mean()))
    error = 4 * 1.5 / rows**0.5
    for alone, together in zip(means["rejection"], means["block"], strict=True):
        assert together > alone - error
    assert means["block"][0] > means["rejection"][0] + 5 * error


def test_two_drafts_of_the_paper_are_kept_as_often_as_it_says() -> None:
    """Section 2 of Sun et al. 2024: 10/9 drafts of two are kept draft by draft, 11/9 as a block."""
    p, q = torch.tensor([1 / 3, 2 / 3]).log(), torch.tensor([2 / 3, 1 / 3]).log()
    seeds, zeros = torch.arange(N), torch.zeros(N, dtype=torch.int64)
    sampled = torch.zeros(N, dtype=torch.bool)
    drafts = [
        draw(q.expand(N, -1), seeds, zeros, sampled, of_window(Purpose.DRAFT, place))
        for place in range(2)
    ]
    windows = Windows(
        p.expand(N, 3, -1), torch.stack(drafts, 1), zeros + 2, seeds, zeros, sampled,
        q.expand(N, 2, -1),
    )  # fmt: skip
    for name, mean in (("rejection", 10 / 9), ("block", 11 / 9)):
        kept = (RULES[name].verify(windows).counts - 1).double().mean()
        assert float(kept) == pytest.approx(mean, abs=4 * 0.9 / N**0.5)


def test_typical_acceptance_keeps_what_is_likely_for_how_sure_the_target_is() -> None:
    chances = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    drafts, each = torch.arange(4)[:, None], torch.ones(4, dtype=torch.int64)
    windows = Windows(chances.expand(4, 2, -1), drafts, each, each, each, each == 0)

    def kept(epsilon: float, delta: float) -> list[int]:
        counts = Typical(epsilon=epsilon, delta=delta).verify(windows).counts
        return [token for token in range(4) if counts[token] == 2]

    assert kept(0.99, 1.0) == [0]  # exp(−entropy) is 0.319
    assert kept(0.99, 0.9) == [0, 1]
    assert kept(0.2, 1.0) == [0, 1]
    assert kept(0.1, 1.0) == [0, 1, 2]
    assert kept(0.04, 1.0) == [0, 1, 2, 3]
    assert kept(0.99, 0.1) == [0, 1, 2, 3]


def test_typical_acceptance_is_not_distributed_as_the_target_but_greedy_rows_are_as_ever() -> None:
    p = distributions(6, seed=13)
    n, draft = 4000, int(p.argsort()[-2])
    zeros = torch.zeros(n, dtype=torch.int64)
    windows = Windows(
        p.expand(n, 2, -1), zeros[:, None] + draft, zeros + 1, torch.arange(n), zeros, zeros == 1
    )
    counts = torch.bincount(Typical().verify(windows).tokens[:, 0], minlength=6)
    assert chi_square(counts, n * p.double().exp()) > 10 * limit(6)
    tables = distributions(7, 7, seed=2)
    seeds, greedy = torch.arange(9), torch.arange(9) % 3 == 0
    plain = decode(RULES["coupled"], tables, 0, 1, seeds)[greedy]
    assert torch.equal(decode(Typical(), tables, 4, 2, seeds)[greedy], plain)
