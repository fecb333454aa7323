"""Ends of requests, and the text that may be shown before them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepweave.policies.errors import PolicyError
from stepweave.policies.policy import Policy
from stepweave.policies.stopping import OutputView
from stepweave.requests.request import Request, SamplingParams
from stepweave.requests.stopping import StopChecker, StopDecision

EOS = 9


def spelled(*pieces: str) -> tuple[list[int], dict[int, str]]:
    """Tokens 100, 101 … that spell these pieces."""
    table = {100 + index: piece for index, piece in enumerate(pieces)}
    return list(table), table


class Decoder:
    """A decoder that remembers what it was asked."""

    def __init__(self, table: dict[int, str]) -> None:
        self.table, self.seen = table, list[int]()

    def __call__(self, tokens: Sequence[int]) -> str:
        self.seen.extend(tokens)
        return "".join(self.table[token] for token in tokens)


def test_a_stop_token_is_kept_and_its_text_is_not() -> None:
    decoder = Decoder({1: "a", EOS: "<eos>"})
    checker = StopChecker([EOS], [], 10)
    assert checker.push([1, EOS, 1], decoder) == StopDecision(2, "a", "stop", EOS)
    assert decoder.seen == [1], "neither the stop token nor what follows is decoded"
    assert checker.push([1], decoder) == StopDecision(0, "", "stop", EOS), "a late step"
    assert checker.count == 2


def test_the_last_allowed_token_ends_by_length_unless_it_stops() -> None:
    decoder = Decoder({1: "a", EOS: ""})
    assert StopChecker([EOS], [], 2).push([1, 1, 1], decoder) == StopDecision(2, "aa", "length")
    assert StopChecker([EOS], [], 2).push([1, EOS], decoder).finish_reason == "stop"
    assert StopChecker([EOS], ["aa"], 2).push([1, 1], decoder) == StopDecision(2, "", "stop", "aa")


def test_a_stop_string_over_several_tokens_is_held_back_and_cut() -> None:
    tokens, table = spelled("one ", "tw", "o E", "N", "D! ", "three")
    checker = StopChecker([EOS], ["END"], 99)
    decisions = [checker.push([token], Decoder(table)) for token in tokens[:5]]
    assert [d.text for d in decisions] == ["one ", "tw", "o ", "", ""]
    assert decisions[-1] == StopDecision(1, "", "stop", "END")


def test_text_that_turns_out_harmless_is_shown_after_all() -> None:
    tokens, table = spelled("E", "N", "E", "M", "Y")
    checker = StopChecker([EOS], ["END"], 99)
    assert [checker.push([t], Decoder(table)).text for t in tokens] == ["", "", "EN", "EM", "Y"]


@pytest.mark.parametrize("ending", ["stop", "length", "abort"])
def test_held_text_is_shown_when_the_request_ends_otherwise(ending: str) -> None:
    checker = StopChecker([EOS], ["END"], 2 if ending == "length" else 99)
    decode = Decoder({1: "xE", 2: "N"})
    assert checker.push([1], decode).text == "x"
    if ending == "abort":
        assert checker.release() == "E"
        assert checker.release() == ""
    else:
        last = checker.push([EOS if ending == "stop" else 2], decode)
        assert (last.text, last.finish_reason) == ("E" if ending == "stop" else "EN", ending)


@pytest.mark.parametrize("ending", ["stop", "length", "policy", "abort"])
@pytest.mark.parametrize(
    ("strings", "rest", "shown"),
    [
        (["\n"], "\n\N{REPLACEMENT CHARACTER}", "xE"),  # a token that ends inside a character
        (["END"], "ND.", "x"),  # begun by what this class holds back itself
        (["END"], "N", "xEN"),
    ],
)
def test_a_stop_string_in_what_the_decoder_held_back_is_cut_too(
    ending: str, strings: list[str], rest: str, shown: str
) -> None:
    most = 2 if ending == "length" else 99
    policy = Faulty(says=lambda output: len(output.tokens) == 2) if ending == "policy" else None
    checker = StopChecker([EOS], strings, most, policy=policy)
    decode = Decoder({1: "xE", 2: ""})
    text = checker.push([1], decode, lambda: rest).text
    if ending == "abort":
        assert text + checker.release(rest) == shown
        return
    last = checker.push([EOS if ending == "stop" else 2], decode, lambda: rest)
    assert (text + last.text, last.kept) == (shown, 1)
    found = strings[0] in f"xE{rest}"
    assert last.finish_reason == ("length" if ending == "length" and not found else "stop")
    assert (last.stop == strings[0]) == found


class Holding:
    """Shows nothing before the end, as a decoder does behind half of a character."""

    def push(self, ids: Sequence[int]) -> str:
        return ""

    def finish(self) -> str:
        return "a\n\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("ending", ["length", "cancelled"])
def test_no_request_shows_a_stop_string_that_its_decoder_held_back(ending: str) -> None:
    params = SamplingParams(max_tokens=2, stop="\n")
    request = Request(
        uid=0,
        id="0",
        prompt="",
        prompt_ids=(5,),
        params=params,
        max_tokens=2,
        stop_token_ids=frozenset(),
        stopper=StopChecker([], params.stop, 2),
        decoder=Holding(),
    )
    if ending == "length":
        assert request.take_text([7, 8]) == ("a", 2, "stop")
    else:
        assert request.take_text([7]) == ("", 1, None)
        request.finish_reason = "cancelled"
        request.tell_end()
    assert request.text == "a"


def test_what_the_decoder_held_back_counts_from_min_tokens_on() -> None:
    decode = Decoder({1: "", 2: "x"})
    checker = StopChecker([EOS], ["END"], 9, min_tokens=3)
    assert checker.push([1, EOS], decode, lambda: "END") == StopDecision(2, "END", "stop", EOS)

    def rest() -> str:
        raise AssertionError("behind a stop string nothing is shown")

    assert StopChecker([EOS], ["x"], 9).push([2], decode, rest).stop == "x"


def test_the_string_that_completes_first_wins_and_the_longer_of_two() -> None:
    decode = Decoder({1: "abcdef"})
    assert StopChecker([], ["abcdef", "cd"], 9).push([1], decode) == StopDecision(
        1, "ab", "stop", "cd"
    )
    assert StopChecker([], ["cd", "bcd"], 9).push([1], decode) == StopDecision(
        1, "a", "stop", "bcd"
    )
    kept = StopChecker([], ["cd"], 9, include_stop_string=True).push([1], decode)
    assert kept == StopDecision(1, "abcd", "stop", "cd")


def test_before_min_tokens_no_stop_string_counts() -> None:
    decode = Decoder({1: "E", 2: "ND", 3: "x", EOS: ""})
    checker = StopChecker([EOS], ["END"], 9, min_tokens=3)
    assert checker.push([3, 1, 2], decode).finish_reason is None, "'E' came too early to count"
    assert checker.push([1, 2, 1], decode) == StopDecision(2, "", "stop", "END")
    assert StopChecker([EOS], [], 2, min_tokens=2).push([3, 1], decode).finish_reason == "length"


def test_a_stop_token_that_a_grammar_forced_ends_the_request_however_short_it_is() -> None:
    decode = Decoder({1: "E", EOS: ""})
    checker = StopChecker([EOS], [], 9, min_tokens=5)
    assert checker.push([1, EOS, 1], decode) == StopDecision(2, "E", "stop", EOS)


def test_a_placeholder_is_an_error_and_takes_nothing() -> None:
    checker = StopChecker([EOS], [], 9)
    with pytest.raises(ValueError, match="placeholder among settled tokens"):
        checker.push([1, -1], Decoder({1: "a"}))
    assert checker.count == 0


class Faulty(Policy):
    """Ends by what a test says."""

    asks: ClassVar[bool] = True
    says: Any = None

    def ends(self, output: OutputView) -> Any:
        return self.says(output) if callable(self.says) else self.says


def _raises(output: OutputView) -> bool:
    raise RuntimeError("my fault")


class Unasked(Policy):
    """Takes no output."""

    asks: ClassVar[bool] = True

    def ends(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (
            Faulty(says=_raises),
            r"'Faulty': `ends` raised RuntimeError: my fault \(test_stopping\.py:[0-9]+, in ends\)",
        ),
        (
            Unasked(),
            r"'Unasked': `ends` raised TypeError: .* takes 1 positional argument but 2 .*given$",
        ),
        (Faulty(says="no"), r"'Faulty': `ends` returned 'no': return True or False"),
        (Faulty(says=None), r"'Faulty': `ends` returned None: return True or False"),
    ],
)
def test_a_policy_that_gives_no_answer_is_named(policy: Any, told: str) -> None:
    checker = StopChecker([EOS], [], 9, policy=policy)
    with pytest.raises(PolicyError, match=f"^stopping policy {told}"):
        checker.push([1], Decoder({1: "a"}))


@pytest.mark.parametrize(
    ("strings", "most", "least"), [([""], 5, 0), ([], 0, 0), ([], 5, 6), ([], 5, -1)]
)
def test_limits_that_cannot_be_are_refused(strings: list[str], most: int, least: int) -> None:
    with pytest.raises(ValueError, match=r"stop string is empty|max_tokens is"):
        StopChecker([], strings, most, least)


@given(
    text=st.text("ab", max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=12),
    steps=st.lists(st.integers(1, 4), min_size=1, max_size=30),
    strings=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
)
def test_the_text_does_not_depend_on_tokens_or_steps(
    text: str, cuts: list[int], steps: list[int], strings: list[str]
) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    tokens, table = spelled(*(text[a:b] for a, b in itertools.pairwise(edges)))
    decoder, checker = Decoder(table), StopChecker([EOS], strings, 1000)
    shown, kept, rest, turn = "", 0, [*tokens, EOS], 0
    while rest:
        step, rest = rest[: steps[turn % len(steps)]], rest[steps[turn % len(steps)] :]
        turn += 1
        decision = checker.push(step, decoder)
        shown += decision.text
        kept += decision.kept
        assert not any(string in shown for string in strings)

    ends = [(text.find(s) + len(s), text.find(s)) for s in strings if s in text]
    if ends:
        end, start = min(ends)
        assert shown == text[:start]
        assert kept == next(i for i, edge in enumerate(edges) if edge >= end)
        assert checker.finish_reason == "stop"
    else:
        assert shown == text
        assert kept == len(tokens) + 1
