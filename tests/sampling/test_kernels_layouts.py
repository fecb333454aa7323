"""The sampling kernels take every argument in every layout of memory, or refuse it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from tests.models.interpreter import Interpreter
from tests.models.layouts import LAYOUTS, Mixed
from tests.sampling.kernel_cases import generator, masks
from tests.sampling.test_kernels import same

KERNELS = "stepweave.sampling.kernels"
ROWS, PLACES, VOCAB = 3, 3, 70
LINES = ROWS * PLACES


@dataclass(frozen=True)
class Wrapper:
    """A function that launches kernels, and tensors for it. `written`: it changes these."""

    name: str
    tensors: Callable[[], dict[str, Tensor]]
    others: Mapping[str, object] = field(default_factory=dict)
    written: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join([self.name.partition(":")[2], *map(str, self.others)])


def scores(*shape: int) -> Tensor:
    return torch.randn(*shape, VOCAB, generator=generator(1)) * 3


def whole(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=generator(2))


def per_row(rows: int) -> dict[str, Tensor]:
    return {"seeds": whole(1 << 40, rows), "positions": whole(1 << 20, rows)}


def temperatures(rows: int) -> Tensor:
    return torch.tensor([0.7, 0.0, 1.3]).double()[torch.arange(rows) % 3]


def windows() -> dict[str, Tensor]:
    """Drafts of token 2."""
    return {"drafts": torch.full((ROWS, PLACES - 1), 2), "valid": torch.tensor([2, 1, 0])}


def keys() -> Tensor:
    """Keys of `keys.py` of several programs per line; the best is of token 2, but in the last."""
    tokens = torch.tensor([9, 2, 7, 8]).repeat(LINES, 1)
    tokens[-1] += 20
    return (torch.tensor([5, 8, 6, 7]) << 32) | (2**31 - 1 - tokens)


def after_a_step() -> dict[str, Tensor]:
    return {
        "tokens": whole(50, ROWS, PLACES) + 5,
        "counts": torch.tensor([1, 2, 2]),
        "window_start": torch.tensor([4, 0, 7]),
        "request_slot": torch.tensor([3, 0, 4]),
        "history": torch.zeros(6, 12, dtype=torch.int32),
        "last": whole(50, 6),
        "computed": whole(50, 6),
    }


def lines() -> dict[str, Tensor]:
    whose = torch.arange(LINES) - 1
    return {"logits": scores(LINES), "bits": masks(0, LINES, VOCAB), "lines": whose}


def stand_ins() -> dict[str, Tensor]:
    """For the places of rows 2 and 0."""
    places = torch.arange(PLACES)
    return {
        "stand_in_scores": scores(2, PLACES) + 1,
        "stand_in_rows": torch.tensor([2, 0]),
        "stand_in_lines": torch.stack([places + PLACES, places - LINES, places]).clamp(min=-1),
    }


def step() -> dict[str, Tensor]:
    """What `verify.coupled` is asked for a step."""
    return {
        "logits": scores(ROWS, PLACES),
        "bits": masks(0, LINES, VOCAB),
        "lines": torch.arange(LINES - 1, -1, -1).view(ROWS, PLACES),
        **stand_ins(),
        **windows(),
        **per_row(ROWS),
        "temperature": temperatures(ROWS),
        "min_p": torch.tensor([0.0, 0.1, 0.02]).double(),
        "forced": torch.tensor([-1, 5, -1]),
    }


WRAPPERS = [
    Wrapper("choose:argmax", lines),
    Wrapper(
        "choose:draw",
        lambda: {
            "log_probs": scores(LINES).log_softmax(-1),
            **per_row(LINES),
            "greedy": torch.arange(LINES) % 3 == 1,
            "purpose": whole(4, LINES),
        },
    ),
    Wrapper(
        "choose:sample",
        lambda: {
            **lines(),
            **per_row(LINES),
            "temperature": temperatures(LINES),
            "min_p": torch.full((LINES,), 0.01),
            "purpose": whole(4, LINES),
        },
    ),
    Wrapper(
        "cut:cut",
        lambda: {
            "scaled": -scores(2).abs().round(),
            "top_k": torch.tensor([40, 9]),
            "top_p": torch.tensor([0.8, 0.9]).double(),
            "log_min_p": torch.full((2,), -3.0),
        },
        written=("scaled",),
    ),
    Wrapper("keys:tokens_of", lambda: {"keys": keys()}),
    Wrapper("mask:apply_bitmask", lines),
    Wrapper("mask:apply_bitmask", lines, {"in_place": True}, written=("logits",)),
    Wrapper("scale:scaled", lambda: {**lines(), **stand_ins(), "temperature": temperatures(LINES)}),
    Wrapper(
        "settle:keep_equal",
        lambda: {"keys": keys(), **windows(), "forced": torch.tensor([-1, 5, -1])},
    ),
    Wrapper("uniform:uniform", lambda: {**per_row(LINES), "purpose": whole(4, LINES)}),
    Wrapper("verify:coupled", step),
    Wrapper(
        "verify:coupled_scores",
        lambda: {
            "target": scores(ROWS, PLACES),
            **windows(),
            **per_row(ROWS),
            "greedy": torch.tensor([False, True, False]),
        },
    ),
    Wrapper("hand_on:hand_on", after_a_step, written=("history",)),
]

REFUSED = {
    ("history", "expanded"): "history .* several entries in one place",
    ("logits", "expanded"): "logits .* several entries in one place",
    ("logits", "column_view"): "logits .* side by side",
    ("logits", "transposed"): "logits .* side by side",
    ("scaled", "expanded"): "scaled .* several entries in one place",
    ("scaled", "column_view"): "scores .* side by side",
    ("scaled", "transposed"): "scores .* side by side",
}
"""What the kernels do not write to."""

REFUSAL = re.compile(r"ValueError: .* not torch\.int(16|64)")


@pytest.mark.sampled(12)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wrapper", WRAPPERS, ids=str)
def test_the_result_is_the_same_however_the_arguments_lie(
    interpreted: Interpreter, wrapper: Wrapper, layout: str
) -> None:
    """All arguments at once, against the same numbers side by side."""
    given = wrapper.tensors()
    for name, tensor in given.items():
        if name not in wrapper.written or (name, layout) not in REFUSED:
            given[name] = LAYOUTS[layout](tensor)
    compare(interpreted, wrapper, given)


@pytest.mark.nightly
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wrapper", WRAPPERS, ids=str)
def test_the_result_is_the_same_however_each_argument_lies(
    interpreted: Interpreter, wrapper: Wrapper, layout: str
) -> None:
    for name, tensor in wrapper.tensors().items():
        if name not in wrapper.written or (name, layout) not in REFUSED:
            compare(interpreted, wrapper, {**wrapper.tensors(), name: LAYOUTS[layout](tensor)})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wrapper", WRAPPERS, ids=str)
def test_layouts_and_types_may_be_mixed(interpreted: Interpreter, wrapper: Wrapper) -> None:
    mixed_as_plain(interpreted, wrapper, 2)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("wrapper", WRAPPERS, ids=str)
def test_no_mixture_of_layouts_and_types_gives_other_results(
    interpreted: Interpreter, wrapper: Wrapper, seed: int
) -> None:
    mixed_as_plain(interpreted, wrapper, 100 + seed)


def mixed_as_plain(interpreted: Interpreter, wrapper: Wrapper, seed: int) -> None:
    """The results of the same numbers in the usual types, side by side; or a clear refusal."""
    tensors = wrapper.tensors()
    refused = [each for each in REFUSED if each[0] in wrapper.written]
    mixed = Mixed.of(tensors, seed, tensors.keys() - set(wrapper.written), refused)
    wanted = called(interpreted, wrapper, mixed.plain)
    try:
        found = called(interpreted, wrapper, mixed.given)
    except RuntimeError as error:
        if REFUSAL.search(str(error)) is None:
            raise
        return
    assert len(found) == len(wanted) >= 1
    for one, other in zip(found, wanted, strict=True):
        assert same(one.to(other.dtype), other), str(mixed)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("scaled", torch.float16), ("scaled", torch.float64), ("keys", torch.int16)],
    ids=str,
)
def test_numbers_whose_bits_a_kernel_uses_are_of_one_type(
    interpreted: Interpreter, name: str, dtype: torch.dtype
) -> None:
    for wrapper in WRAPPERS:
        tensors = wrapper.tensors()
        if name in tensors:
            with pytest.raises(RuntimeError, match=f"ValueError: .* are {dtype}, not torch"):
                called(interpreted, wrapper, {**tensors, name: tensors[name].to(dtype)})


@pytest.mark.parametrize(("name", "layout"), REFUSED)
def test_what_cannot_be_written_to_is_refused(
    interpreted: Interpreter, name: str, layout: str
) -> None:
    [wrapper] = (wrapper for wrapper in WRAPPERS if name in wrapper.written)
    tensors = wrapper.tensors()
    with pytest.raises(RuntimeError, match=f"ValueError: {REFUSED[name, layout]}"):
        called(interpreted, wrapper, {**tensors, name: LAYOUTS[layout](tensors[name])})


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=str)
def test_tensors_of_other_lengths_are_refused(interpreted: Interpreter, wrapper: Wrapper) -> None:
    """A kernel would read behind the end of the shorter."""
    tensors = wrapper.tensors()
    for name in tensors if len(tensors) > 1 else ():
        # Of masks there may be any number; a line of them has a bit for each token.
        shorter = tensors[name][:, :-1] if name == "bits" else tensors[name][:-1]
        given = {**tensors, name: shorter}
        with pytest.raises(RuntimeError, match="ValueError: "):
            called(interpreted, wrapper, given)


def called(
    interpreted: Interpreter, wrapper: Wrapper, tensors: Mapping[str, Tensor]
) -> list[Tensor]:
    """What the function returns, and what it was to change."""
    found: list[Tensor] = interpreted(
        "tests.sampling.kernel_cases:with_what_changed",
        f"{KERNELS}.{wrapper.name}",
        wrapper.written,
        {**tensors, **wrapper.others},
    )
    return found


def compare(interpreted: Interpreter, wrapper: Wrapper, given: Mapping[str, Tensor]) -> None:
    """The result, and what is written, with the numbers as they lie and side by side."""
    plain = {
        name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in given.items()
    }
    found, wanted = (called(interpreted, wrapper, each) for each in (given, plain))
    assert len(found) == len(wanted) >= 1
    for one, other in zip(found, wanted, strict=True):
        assert same(one, other), list(given)
