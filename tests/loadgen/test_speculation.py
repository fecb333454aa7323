"""Speculative decoding as a server's counters tell of it."""

from __future__ import annotations

import pytest

from stepweave.loadgen.speculation import Counts

BEFORE = """\
# HELP vllm:spec_decode_num_drafts_total Number of drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e9
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 6.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 3.0
"""
AFTER = """\
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 20.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 1.5e2
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 69.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 36.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 23.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 10.0
"""


def counts(page: str) -> Counts:
    found = Counts.read(page)
    assert found is not None
    return found


def test_what_counts_is_the_difference_over_all_engines() -> None:
    found = counts(AFTER).since(counts(BEFORE))
    assert found == Counts(40.0, 120.0, 60.0, (30.0, 20.0, 10.0))
    assert found.rate == 0.5
    assert found.length == 2.5
    assert found.rates_by_position == (0.75, 0.5, 0.25)


@pytest.mark.parametrize("prefix", ["stepweave", "sglang"])
def test_the_names_count_not_whose_they_are_nor_the_total_at_their_end(prefix: str) -> None:
    other = AFTER.replace("vllm:", f"{prefix}:").replace("_total{", "{")
    assert counts(other) == counts(AFTER)


def test_counters_under_two_names_count_once() -> None:
    assert counts(AFTER + AFTER.replace("vllm:", "stepweave:")) == counts(AFTER)


@pytest.mark.parametrize("page", [None, "", "<html>", "vllm:num_requests_running 3", "\x00"])
def test_a_page_without_these_counters_tells_nothing(page: str | None) -> None:
    assert Counts.read(page) is None


def test_a_page_that_lies_breaks_nothing() -> None:
    huge = 'x:spec_decode_num_accepted_tokens_per_pos{position="99999999"} 1\n'
    found = counts(huge + "x:spec_decode_num_drafts 2\nx:spec_decode_num_draft_tokens what\n")
    assert (found.drafts, found.drafted) == (2.0, 0.0)
    assert len(found.by_position) <= 64


def test_nothing_drafted_is_no_division_by_zero() -> None:
    found = counts(BEFORE).since(counts(BEFORE))
    assert (found.rate, found.length) == (0.0, 0.0)
    assert found.rates_by_position == ()
