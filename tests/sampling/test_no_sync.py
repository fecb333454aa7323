"""What runs on the device asks the host nothing and changes nothing that it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stepweave.policies.acceptance import Synthetic
from stepweave.policies.registry import policy
from stepweave.sampling.bad_words import ban_bad_words
from stepweave.sampling.bias import apply_bias, ban_until, give_way
from stepweave.sampling.draw import draw, filtered_log_probs
from stepweave.sampling.logprobs import token_logprobs
from stepweave.sampling.lookup import propose
from stepweave.sampling.noise import Purpose, gumbel, uniform
from stepweave.sampling.penalties import apply_penalties
from stepweave.sampling.repeats import apply_dry, ban_ngrams, find_matches
from stepweave.sampling.stand_ins import StandIns
from stepweave.sampling.windows import Windows
from stepweave.sampling.xtc import thresholds

SYNCHRONIZING = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::is_nonzero",
    "aten::repeat_interleave.Tensor",
    "aten::equal",
}
"""Operations that need a value on the host to go on; `aten::index` only with a boolean mask."""


class NoSync(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises where an operation would make the host wait for the device."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.name()
        masked = name.startswith("aten::index") and any(
            isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8)
            for argument in args
            if isinstance(argument, list | tuple)
            for each in argument
        )
        if masked or name in SYNCHRONIZING:
            raise AssertionError(f"{name} makes the host wait")
        return func(*args, **(kwargs or {}))


def no_sync() -> NoSync:
    return NoSync()  # type: ignore[no-untyped-call]


def inputs() -> dict[str, Tensor]:
    rows, k, vocab = 5, 3, 40
    return {
        "logits": torch.randn(rows, vocab),
        "temperature": torch.tensor([0.0, 1.0, 0.5, 1.0, 2.0]),
        "top_k": torch.tensor([0, 3, 0, 100, 1]),
        "top_p": torch.tensor([1.0, 0.9, 0.5, 1.0, 0.1]),
        "target": torch.randn(rows, k + 1, vocab).log_softmax(-1),
        "q": torch.randn(rows, k, vocab).log_softmax(-1),
        "drafts": torch.randint(-1, vocab, (rows, k)),
        "valid": torch.tensor([3, 2, 0, 1, 3]),
        "seeds": torch.arange(rows),
        "positions": torch.arange(rows),
        "greedy": torch.arange(rows) % 2 == 0,
        "min_p": torch.tensor([0.0, 0.1, 0.0, 0.5, 0.9]),
        "history": torch.randint(0, vocab, (rows, 9), dtype=torch.int32),
        "base": torch.tensor([8, 3, 0, 5, 7]),
        "prompt": torch.tensor([3, 4, 1, 1, 8]),
        "line": torch.tensor([0, 4, 4, -1]),
        "token": torch.tensor([7, 0, 39, -1]),
        "entry": torch.tensor([1, 2, 3, 1]),
        "words": torch.randint(-1, vocab, (4, 3)),
    }


def verify(name: str, drawn: bool) -> Callable[[dict[str, Tensor]], object]:
    def call(x: dict[str, Tensor]) -> object:
        return policy("acceptance", name).verify(
            Windows(
                x["target"],
                x["drafts"],
                x["valid"],
                x["seeds"],
                x["positions"],
                x["greedy"],
                x["q"] if drawn else None,
            )
        )

    return call


CALLS: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "filter": lambda x: filtered_log_probs(x["logits"], x["temperature"], x["top_k"], x["top_p"]),
    "filter with min-p": lambda x: filtered_log_probs(
        x["logits"], x["temperature"], x["top_k"], x["top_p"], min_p=x["min_p"]
    ),
    "filter with stand-ins": lambda x: filtered_log_probs(
        x["logits"],
        x["temperature"],
        x["top_k"],
        x["top_p"],
        stand_ins=StandIns(x["target"][:2, :1], x["prompt"][1:3], x["line"].repeat(2)[:5, None]),
    ),
    "penalties": lambda x: apply_penalties(
        x["target"],
        x["drafts"],
        x["history"],
        x["base"],
        x["prompt"],
        x["temperature"] + 1,
        x["min_p"],
        x["top_p"],
    ),
    "filter with XTC": lambda x: filtered_log_probs(
        x["logits"],
        x["temperature"],
        x["top_k"],
        x["top_p"],
        xtc=thresholds(x["seeds"], x["positions"], x["top_p"], x["min_p"]),
    ),
    "repeats": lambda x: ban_ngrams(
        apply_dry(
            x["target"],
            matched := find_matches(x["drafts"], x["history"], x["base"], 40, 4),
            x["temperature"],
            x["temperature"] + 1,
            x["prompt"],
            x["valid"],
            x["drafts"],
        ),
        matched,
        x["valid"],
    ),
    "bias": lambda x: apply_bias(x["target"], x["line"], x["token"], x["entry"].float()),
    "min_tokens": lambda x: ban_until(
        x["target"], x["positions"], x["line"], x["token"], x["entry"]
    ),
    "bad words": lambda x: ban_bad_words(
        x["target"], x["drafts"], x["history"], x["base"], x["line"], x["entry"], x["words"]
    ),
    "give way": lambda x: give_way(x["target"], x["target"]),
    "log-probabilities": lambda x: token_logprobs(x["logits"], x["drafts"][:, 0], 3),
    "look-up": lambda x: propose(x["history"], x["base"] + 1, 3, 3, 1),
    "synthetic": lambda x: Synthetic(rates=(0.5, 0.2)).verify(
        Windows(x["target"], x["drafts"], x["valid"], x["seeds"], x["positions"], x["greedy"])
    ),
    "draw": lambda x: draw(x["logits"], x["seeds"], x["positions"], x["greedy"], Purpose.TARGET),
    "gumbel": lambda x: gumbel(x["seeds"], x["positions"], Purpose.TARGET, 40),
    "uniform": lambda x: uniform(x["seeds"], x["positions"], Purpose.ACCEPT),
    "coupled": verify("coupled", False),
    "rejection": verify("rejection", False),
    "rejection, drawn drafts": verify("rejection", True),
    "block": verify("block", False),
    "block, drawn drafts": verify("block", True),
    "typical": verify("typical", False),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_makes_no_host_wait_and_changes_no_input(name: str) -> None:
    given = inputs()
    versions = {key: value._version for key, value in given.items()}
    with no_sync():
        CALLS[name](given)
    assert {key: value._version for key, value in given.items()} == versions


@pytest.mark.parametrize(
    "hidden",
    [lambda x: x[x > 0], lambda x: float(x[0]), lambda x: x.nonzero(), lambda x: bool(x.any())],
    ids=["boolean mask", "item", "nonzero", "truth"],
)
def test_the_check_itself_bites(hidden: Callable[[Tensor], object]) -> None:
    with pytest.raises(AssertionError, match="makes the host wait"), no_sync():
        hidden(torch.ones(3))


def test_the_check_lets_through_what_stays_on_the_device() -> None:
    with no_sync():
        x = torch.ones(3)
        x.masked_fill(x > 0, 2.0)[torch.tensor([0, 1])].any()
