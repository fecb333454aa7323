"""Two ranks serve what one rank serves: the same tokens, drafts and ends, in float64."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.distributed.cases import DEPTHS, DRAFTERS, GRAMMARS, TRAFFIC, Case, drawn
from tests.distributed.launched import environment, ranks

SAMPLE = list(drawn(5, seed=1))
STAGES = list(drawn(5, seed=2, divided="pipeline"))


def require_equal(cases: Sequence[Case], out: Path) -> None:
    texts = [json.dumps(case.data()) for case in cases]
    leading, following = ranks("equal.py", out, *texts)
    for case, one, other in zip(cases, leading, following, strict=True):
        assert one["together"] == one["alone"], case
        assert other["together"] == one["together"], case
        tokens = sum(len(each[0]) for each in one["together"])
        assert tokens >= 20, f"{case}: too few tokens to tell anything"


def test_a_sample_of_pipelines_is_equal_on_two_ranks(tmp_path: Path) -> None:
    require_equal(SAMPLE, tmp_path)


def test_a_sample_of_pipelines_is_equal_in_two_stages(tmp_path: Path) -> None:
    require_equal(STAGES, tmp_path)


@pytest.mark.parametrize("sample", [SAMPLE, STAGES], ids=["tensor", "pipeline"])
def test_the_sample_has_every_drafter_and_every_kind_of_traffic(sample: list[Case]) -> None:
    assert {case.drafter for case in sample} == set(DRAFTERS)
    assert {case.traffic for case in sample} == set(TRAFFIC)
    assert {case.grammar for case in sample} == set(GRAMMARS)
    assert {case.depth for case in sample} == set(DEPTHS)


@pytest.mark.nightly
@pytest.mark.parametrize("divided", ["tensor", "pipeline"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_pipeline_is_equal_on_two_ranks(drafter: str, divided: str, tmp_path: Path) -> None:
    every = [
        Case(drafter, grammar, traffic, depth, "threads", seed, divided)
        for seed, (grammar, traffic, depth) in enumerate(
            (grammar, traffic, depth)
            for grammar in GRAMMARS
            for traffic in TRAFFIC
            for depth in DEPTHS
        )
    ]
    require_equal(every, tmp_path)


@pytest.mark.nightly
def test_the_command_starts_its_stages_and_prints_what_one_rank_prints() -> None:
    def printed(*options: str) -> list[object]:
        command = [sys.executable, "-m", "stepweave", "run", "quickstart", "--json", "--ordered"]
        done = subprocess.run(
            [*command, *options], env=environment(), capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr[-4000:]
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return [
            [each[key] for key in ("id", "token_ids", "finish_reason", "drafted", "accepted")]
            for each in lines
            if "token_ids" in each
        ]

    alone = printed()
    assert len(alone) > 3
    assert printed("--pp", "2") == alone
