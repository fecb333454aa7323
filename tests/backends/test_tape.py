"""A tape does what the body did, on new numbers, whatever is left in its memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stepweave.backends.tape.arrange import Pool
from stepweave.backends.tape.calls import same_bits
from stepweave.backends.tape.recording import Tape
from stepweave.executors.moves import Moves

ROWS, COLUMNS = 6, 8

Body = Callable[[list[Tensor]], list[Tensor]]


def recorded(body: Callable[[], object], pool: Pool | None = None) -> Tape:
    tape = Tape(Pool() if pool is None else pool)
    with torch.inference_mode(), tape.capture():
        body()
    return tape


def spoil(pool: Pool) -> None:
    """What a replay finds in its memory may be anything: all ones is nan, −1 and true."""
    with torch.inference_mode():
        for block in pool.blocks:
            block.fill_(255)


@torch.inference_mode()
def follows(body: Body, inputs: list[Tensor], tries: int = 3) -> Tape:
    """Asserts that replays give what the body gives, for `tries` further contents.

    The recording does, and so does the same on other memory, in turn.
    """
    pool, generator = Pool(), torch.Generator().manual_seed(1)
    here, there = ([given.clone() for given in inputs] for _ in range(2))
    made = [each.contiguous().clone() for each in body(here)]
    slots, elsewhere = made, [torch.zeros_like(each) for each in made]

    def settle(given: list[Tensor], places: list[Tensor]) -> None:
        for place, each in zip(places, body(given), strict=True):
            place.copy_(each)

    tape = recorded(lambda: settle(here, slots), pool)
    assert tape.refused is None
    moves = Moves()
    for before, now in zip((*here, *slots), (*there, *elsewhere), strict=True):
        moves.add(before, now)
    moved = tape.moved(moves)
    assert moved.size == tape.size
    for again, given, places in tries * ((tape, here, slots), (moved, there, elsewhere)):
        for each in given:
            if each.is_floating_point():
                each.normal_(generator=generator)
            elif each.dtype == torch.bool:
                each.copy_(torch.rand(each.shape, generator=generator) < 0.5)
            else:
                each.random_(0, ROWS, generator=generator)
        begun = [each.clone() for each in given]
        spoil(pool)
        again.replay()
        replayed, after = [each.clone() for each in places], [each.clone() for each in given]
        for each, held in zip(given, begun, strict=True):
            each.copy_(held)
        settle(given, places)
        assert all(map(same_bits, replayed, places))
        assert all(map(same_bits, after, given))  # what the body changes, the replay changes
    return tape


def floats() -> Tensor:
    return torch.randn(ROWS, COLUMNS)


CASES: dict[str, tuple[Body, list[Tensor]]] = {
    "products": (lambda t: [F.linear(t[0], t[1]), t[0] @ t[1].T, t[2] @ t[2]],
                 [floats(), torch.randn(5, COLUMNS), torch.randn(2, 4, 4)]),
    "a norm": (lambda t: [F.rms_norm(t[0], (COLUMNS,), t[1]), F.layer_norm(t[0], (COLUMNS,))],
               [floats(), torch.randn(COLUMNS)]),
    "attention": (lambda t: [F.scaled_dot_product_attention(t[0], t[0], t[0], is_causal=True)],
                  [torch.randn(1, 2, 5, 8)]),
    "views": (lambda t: [t[0].T.reshape(2, -1)[1], t[0][1:3].flatten(),
                         torch.cat([*torch.split(t[0], 2)])],
              [floats()]),
    "lookups": (lambda t: [F.embedding(t[1], t[0]), t[0][t[1]], t[0].index_select(0, t[1])],
                [floats(), torch.arange(ROWS)]),
    "pads": (lambda t: [F.pad(t[0], (1, 2, 0, 3), value=-1.0), F.pad(t[0], (0, 0)),
                        F.pad(t[0], (0, -2))], [floats()]),
    "masks": (lambda t: [t[0].masked_fill(t[1], -torch.inf), torch.where(t[1], t[0], 0.0), ~t[1]],
              [floats(), torch.zeros(ROWS, COLUMNS, dtype=torch.bool)]),
    "types": (lambda t: [t[0].double(), t[0].to(torch.bfloat16), t[1].float() / 3, t[1].clone()],
              [floats(), torch.arange(ROWS)]),
    "reductions": (lambda t: [t[0].amax(1), t[0].argmax(1), t[0].sum(), t[0].softmax(-1),
                              t[0].logsumexp(0), t[0].cumsum(1)], [floats()]),
    "several results": (lambda t: [*t[0].max(dim=1), *t[0].topk(3), *t[0].sort(dim=1)], [floats()]),
    "no elements": (lambda t: [t[0][:0] * 2, torch.cat([t[0][:0], t[0]])], [floats()]),
    "numbers of Python": (lambda t: [t[0] // 0.3, t[0] * 7919 * 0.1, t[1].sum() * 0.1, t[0] / 3,
                                     t[1].sum() > 0.1, t[1] + 2], [torch.arange(ROWS), floats()]),
    "no dimensions": (lambda t: [t[0].sum(dim=()), t[0].mean(dim=())], [floats()]),
    "composites": (lambda t: [F.interpolate(t[0][None, None], size=(9, 5), mode="bilinear"),
                              t[0][0] @ t[1]], [floats(), torch.randn(3, COLUMNS, 5)]),
    "of numbers only": (lambda t: [torch.arange(COLUMNS) * t[0], torch.zeros(3).new_ones(2)],
                        [floats()]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_replay_gives_what_the_body_gives(case: str) -> None:
    body, inputs = CASES[case]
    follows(body, inputs)


def test_bits_of_a_single_element_are_compared_whatever_its_stride() -> None:
    column = torch.arange(12.0).view(4, 3)[1:2, 2]
    assert column.stride() == (3,)
    assert same_bits(column, torch.tensor([5.0]))
    assert not same_bits(column, torch.tensor([4.0]))


def test_what_is_changed_in_place_is_changed_by_the_replay() -> None:
    def body(t: list[Tensor]) -> list[Tensor]:
        made = t[0] * 2
        view = made[1:3]
        view += t[0][:2]  # through a view of what was made
        t[1].index_copy_(0, torch.tensor([0, 2]), made[:2])  # in memory from outside
        t[1][4].fill_(7)
        return [made.sigmoid_(), t[1].clone()]

    follows(body, [floats(), floats()])


def test_what_nobody_reads_is_not_done_and_what_never_changes_is_done_once() -> None:
    x, out = floats(), torch.empty(COLUMNS)

    def body() -> None:
        (x @ x.T).softmax(-1)  # thrown away
        key = torch.arange(COLUMNS) * 3 + 1  # the same each time
        out.copy_(x[0] + key)

    assert recorded(body).size == 1  # the sum, put where it belongs


def test_what_is_around_a_place_that_is_written_over_is_written_once() -> None:
    x, outs = floats(), torch.empty(3, ROWS, COLUMNS)

    def body() -> None:
        padded = F.pad(x[:4], (0, 0, 0, 2), value=3.0)
        zeros = torch.zeros(ROWS, COLUMNS)
        zeros[:2] = x[:2]
        zeros[3:4] = x[:1]
        for out, made in zip(outs, (padded, zeros), strict=False):
            out.copy_(made * 2)

    assert recorded(body).size == 5, "three copies, two products"
    follows(lambda t: [F.pad(t[0][:4], (0, 0, 0, 2), value=3.0) * 2], [x])


def _elsewhere(t: list[Tensor]) -> Tensor:
    made = torch.zeros(ROWS, COLUMNS)
    return made.index_copy_(0, t[1], t[0][: len(t[1])])


def _read_before(t: list[Tensor]) -> Tensor:
    made = torch.zeros(ROWS, COLUMNS)
    before = made + t[0]
    made[:2] = t[0][:2]
    return made * before


def _onto_itself(t: list[Tensor]) -> Tensor:
    made = torch.zeros(ROWS, COLUMNS)
    made[:2] = made[3:5]  # zeros
    made[3:5] = t[0][:2]
    return made


def _changed_for_nobody(t: list[Tensor]) -> Tensor:
    zeros, key = F.pad(t[0][:3], (0, 0, 0, 3), value=1.0), torch.arange(COLUMNS)
    sums = zeros + key
    zeros.mul_(2)
    key.mul_(2)
    return sums


@pytest.mark.parametrize("body", [_elsewhere, _read_before, _onto_itself, _changed_for_nobody])
def test_what_is_not_written_over_in_one_place_is_made_anew(
    body: Callable[[list[Tensor]], Tensor],
) -> None:
    follows(lambda t: [body(t) * 1], [floats(), torch.arange(2)])


def test_a_result_is_put_where_it_belongs_unless_somebody_looks_there_before() -> None:
    x, seen, out = floats(), torch.empty(ROWS, COLUMNS), torch.ones(ROWS, COLUMNS)

    def body() -> None:
        made = x * 2
        seen.copy_(out + made)  # reads what lies there from before
        out.copy_(made)

    tape = recorded(body)
    out.fill_(10)
    tape.replay()
    assert torch.equal(seen, 10 + x * 2)
    assert torch.equal(out, x * 2)
    assert tape.size == 3  # two operations, and one copy: that of what was seen is left out


def test_what_is_changed_after_it_was_copied_is_copied() -> None:
    x, first, second = floats(), torch.empty(ROWS, COLUMNS), torch.empty(ROWS, COLUMNS)

    def body() -> None:
        made = x + 1
        first.copy_(made)
        made.neg_()
        second.copy_(made)

    tape = recorded(body)
    x.normal_()
    tape.replay()
    assert torch.equal(first, x + 1)
    assert torch.equal(second, -(x + 1))


def test_what_is_read_after_its_copy_was_changed_is_not_read_there() -> None:
    x, out, seen = floats(), torch.empty(ROWS, COLUMNS), torch.empty(ROWS, COLUMNS)

    def body() -> None:
        made = x + 1
        out.copy_(made)
        out.neg_()
        seen.copy_(made * 2)

    tape = recorded(body)
    x.normal_()
    tape.replay()
    assert torch.equal(out, -(x + 1))
    assert torch.equal(seen, (x + 1) * 2)


def test_two_results_that_come_to_one_place_are_not_both_computed_there() -> None:
    x, out, seen = floats(), torch.empty(ROWS, COLUMNS), torch.empty(ROWS, COLUMNS)

    def body() -> None:
        first = x + 1
        out.copy_(first)
        second = x * 2
        seen.copy_(first * 3)  # by now the second would lie where the first does
        out.copy_(second)

    tape = recorded(body)
    x.normal_()
    tape.replay()
    assert torch.equal(seen, (x + 1) * 3)
    assert torch.equal(out, x * 2)


def test_what_a_call_knows_beside_its_tensors_is_written_when_it_was() -> None:
    """A call that is made anew each time may look at other memory than its own, and change it."""
    x, known, told = floats(), torch.zeros(ROWS, COLUMNS), torch.empty(ROWS, COLUMNS)
    again, tape = torch.empty(ROWS, COLUMNS), Tape(Pool())

    def call(given: Tensor) -> None:
        given.copy_(known)
        known.neg_()

    with torch.inference_mode(), tape.capture():
        made = x + 1
        tape.between(call, told)
        known.copy_(made)
        tape.between(call, again)
        told.add_(made)
    x.normal_()
    known.fill_(7)
    tape.replay()
    assert torch.equal(told, 7 + (x + 1))
    assert torch.equal(again, x + 1)
    assert torch.equal(known, -(x + 1))


def test_recordings_of_one_pool_share_its_memory() -> None:
    pool, x, out = Pool(), torch.randn(64, 64), torch.empty(64, 64)

    def body() -> None:
        a = x @ x
        b = a.relu() @ a
        out.copy_((b.softmax(-1) @ b).tanh() * b.sum())

    tapes = [recorded(body, pool) for _ in range(4)]
    with torch.inference_mode():
        body()
    expected, taken = out.clone(), sum(map(len, pool.blocks))
    assert taken <= 4 * x.numel() * x.element_size()
    for tape in tapes:
        spoil(pool)
        out.zero_()
        tape.replay()
        assert same_bits(out, expected)


def random_body(seed: int, steps: int) -> Body:
    """Operations drawn at random on what earlier ones made, some in place, some on views."""

    def body(t: list[Tensor]) -> list[Tensor]:
        choose, made = random.Random(seed), [t[0], t[1], t[0] + 0]
        for _ in range(steps):
            a, b = choose.choice(made), choose.choice(made[2:])
            match choose.randrange(12):
                case 0:
                    made.append(a + b)
                case 1:
                    made.append(a @ t[2])
                case 2:
                    b.mul_(0.5)
                case 3:
                    b[1:4].add_(t[0][:3])
                case 4:
                    made.append(b.reshape(COLUMNS, ROWS).T.reshape(ROWS, COLUMNS))
                case 5:
                    made.append(torch.cat([a[3:], b[:3]]))
                case 6:
                    t[1].copy_(b * 1)
                case 7:
                    made.append(b[:, :4].repeat(1, 2))
                case 8:
                    made.append(a.tanh())
                case 9:
                    made.append(F.pad(a[1:4], (0, 0, 1, 2), value=2.0))
                case 10:
                    made.append(t[0].new_zeros(ROWS, COLUMNS))
                    made[-1][2:5] = a[:3]
                case 11:
                    b[:2] = a[2:4]
        return [choose.choice(made), choose.choice(made)]

    return body


@pytest.mark.parametrize("seed", range(60))
def test_random_bodies(seed: int) -> None:
    follows(random_body(seed, steps=4 + seed // 3), [floats(), floats(), torch.randn(8, 8)], 2)


def test_what_gives_numbers_to_the_host_is_not_recorded_but_done() -> None:
    x, out = floats(), torch.empty(ROWS, COLUMNS)

    def body() -> None:
        out.copy_(x * float(x[0, 0].item()) + 1)

    tape = recorded(body)
    assert "number" in str(tape.refused)
    assert torch.equal(out, x * x[0, 0] + 1)


def test_what_an_operation_gives_beside_what_it_changes_is_given_again() -> None:
    made: Any = torch.library.Library
    library = made("stepweave_tests", "FRAGMENT")
    library.define("fill_and_sum(Tensor(a!) cache, Tensor x) -> (Tensor, Tensor?)")
    library.impl("fill_and_sum", lambda cache, x: (cache.add_(x).sum(dim=0), None), "CPU")
    follows(lambda t: [torch.ops.stepweave_tests.fill_and_sum(*t)[0] * 2], [floats(), floats()])


def turned(x: Tensor) -> Tensor:
    row = x.clone()
    return row[0, 0] + row.t_()


REFUSED: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "from the host": ("changes what came from the host", lambda x: torch.tensor(1.0).add_(x.sum())),
    "of an array": (
        "came from the host",
        lambda x: torch.from_numpy(numpy.ones(8, "f")).add_(x[0]),
    ),
    "a conjugate": ("conjugate", lambda x: x.to(torch.complex64).conj() * 2),
    "a negated view": ("negated", lambda x: x.to(torch.complex64).conj().imag * 2),
    "another shape": ("the shape of a tensor", turned),
    "sparse": ("_to_sparse", lambda x: x.to_sparse().to_dense()),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_recording_can_hold_is_refused_and_done(case: str) -> None:
    said, body = REFUSED[case]
    x, out = floats(), torch.zeros(())
    tape = recorded(lambda: out.copy_(body(x).abs().sum()))
    assert said in str(tape.refused)
    assert torch.equal(out, body(x).abs().sum())


@pytest.mark.parametrize("draw", [torch.rand, torch.randn])
def test_what_draws_from_a_generator_is_not_recorded(draw: Callable[[int], Tensor]) -> None:
    out = torch.empty(4)
    assert "generator" in str(recorded(lambda: out.copy_(draw(4))).refused)


def test_what_raises_in_a_body_comes_out() -> None:
    tape = Tape(Pool())
    with pytest.raises(ValueError, match="mine"), tape.capture():
        raise ValueError("mine")
    with pytest.raises(RuntimeError), tape.capture():
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))


def test_a_part_does_what_was_done_after_the_part_before() -> None:
    first, second, tape = torch.zeros(3), torch.zeros(3), Tape(Pool())
    with torch.inference_mode(), tape.capture():
        half = torch.ones(3) + first.add_(1)
        tape.part()
        second.copy_(half * first)
    assert (first.tolist(), second.tolist()) == ([1.0] * 3, [2.0] * 3)
    tape.replay(0)
    assert (first.tolist(), second.tolist()) == ([2.0] * 3, [2.0] * 3)
    tape.replay(1)
    assert (first.tolist(), second.tolist()) == ([2.0] * 3, [6.0] * 3)
