"""Two ranks serve what one rank serves: the same tokens, drafts and ends, in float64."""

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.cases import (
    DEPTHS,
    DRAFTERS,
    GRAMMARS,
    IN_PAIRS,
    TRAFFIC,
    WITH_SWAP,
    Case,
    drawn,
)
from tests.distributed.families import DIVIDED, REFUSED
from tests.distributed.launched import environment, ranks, started, written

SAMPLE = [
    *drawn(2, seed=1),
    # What a drafter's cache asks of the prefixes that are reused, only the last stage has.
    Case("eagle3", "none", "prefixes", 2, "threads", 6, "pipeline"),
    # Every stage copies its own layers of a block to the host, and moves what is kept of a tree.
    Case("grown", "none", "swapped", 3, "threads", 8, "pipeline"),
]
FAMILIES = [*random.Random(1).sample(DIVIDED, 1), "gpt_oss"]


def require_equal(cases: Sequence[Case], found: Sequence[Any]) -> None:
    leading, following = found
    assert following["together"] == leading["together"]
    for case, alone, together in zip(cases, leading["alone"], leading["together"], strict=True):
        assert together == alone, case
        tokens = sum(len(each[0]) for each in together)
        assert tokens >= 20, f"{case}: too few tokens to tell anything"


def require_closed(cases: Sequence[Case], found: Sequence[Any]) -> None:
    """Engines that are divided alike do not each leave a file open.

    The last one's own few are closed when the ranks meet for the next, by threads of theirs, so
    that one may still be there at a count.
    """
    for rank in found:
        for divided in {case.divided for case in cases}:
            files = [
                count
                for case, count in zip(cases, rank["files"], strict=True)
                if case.divided == divided
            ]
            assert max(files) - files[0] < len(files) - 1, (divided, files)


def require_families(asked: Sequence[str], found: Sequence[Any]) -> None:
    leading, following = (each["families"] for each in found)
    assert following["together"] == leading["together"]
    assert set(leading["together"]) == set(asked)
    for family, result in leading["together"].items():
        if family in REFUSED:
            assert REFUSED[family] in result["refused"], family
            continue
        assert "served" in result, (family, result)
        alone = leading["alone"][family]
        assert result["served"] == alone["served"], family
        assert [tokens for tokens, *_ in result["served"]] == alone["own"], family
        assert sum(drafted for _, drafted, _ in result["served"]), f"{family}: nothing drafted"
        assert result["latents"] == alone["latents"], f"{family}: latents are whole on each rank"
        assert bool(alone["latents"]) == (family == "deepseek_v3")


def require_served(found: dict[str, Any]) -> None:
    """A service with a drafter and a grammar gives what one rank gives, piece by piece."""
    text, accepted = found["alone"]
    assert json.loads(text)["age"] == 61
    assert len(found["streamed"]) > 3
    assert ("".join(found["streamed"]), found["whole"]) == (text, text)
    assert found["accepted"] == 2 * accepted > 0
    assert found["counted"] == 2 * found["tokens"]
    assert found["health"] == [200, 200]


def job(**parts: Any) -> str:
    if "cases" in parts:
        parts["cases"] = [case.data() for case in parts["cases"]]
    return json.dumps(parts)


def test_pipelines_and_families_are_equal_on_two_ranks_until_their_logits_differ(
    tmp_path: Path,
) -> None:
    # One start of two ranks for all: it is most of what this costs.
    asked = job(cases=SAMPLE, families=FAMILIES, service=True, mutant="no_agreement")
    launched = started("equal.py", tmp_path, asked)
    found = written(tmp_path)
    assert None not in found, launched.stdout[-4000:] + launched.stderr[-8000:]
    require_equal(SAMPLE, found)
    require_closed(SAMPLE, found)
    require_families(FAMILIES, found)
    said = "step 5: op 'advance of commit' came to something else on rank 1 than on rank 0"
    require_served(found[0]["service"])
    assert found[0]["needed alone"] == [], "what one rank runs knows nothing of others"
    for each in found:
        assert said in each["mutant"]["failure"]
    clients = found[0]["mutant"]
    assert clients["statuses"] == [500, 503]
    assert clients["refusal"] == clients["failure"]
    assert (clients["health"], clients["unended"]) == ([503, 503], 0)


@pytest.mark.nightly
@pytest.mark.parametrize("divided", ["tensor", "pipeline"])
@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_pipeline_is_equal_on_two_ranks(
    drafter: str, grammar: str, divided: str, tmp_path: Path
) -> None:
    every = [
        Case(drafter, grammar, traffic, depth, "threads", seed, divided)
        for seed, (traffic, depth) in enumerate((t, d) for t in TRAFFIC for d in DEPTHS)
    ]
    require_equal(every, ranks("equal.py", tmp_path, job(cases=every)))


@pytest.mark.nightly
@pytest.mark.parametrize("divided", ["tensor", "pipeline"])
@pytest.mark.parametrize("drafter", IN_PAIRS)
def test_other_drafters_are_equal_on_two_ranks_in_pairs(
    drafter: str, divided: str, tmp_path: Path
) -> None:
    every = [*drawn(len(WITH_SWAP), 11, divided, [drafter], WITH_SWAP)]
    require_equal(every, ranks("equal.py", tmp_path, job(cases=every)))


@pytest.mark.nightly
def test_every_family_is_equal_on_two_ranks_or_refused_by_name(tmp_path: Path) -> None:
    asked = [*DIVIDED, *REFUSED]
    require_families(asked, ranks("equal.py", tmp_path, job(families=asked)))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mutant", "said"),
    [
        ("no_log", "step 0: op 'schedule' came to something else on rank 1 than on rank 0"),
        ("no_agreement", "op 'advance of commit' came to something else on rank 1"),
        ("one_raises", "op 'finish of commit' came to something else on rank 1 than on rank 0"),
        ("op_raises", "rank 1 failed where rank 0 did not: step 5.* op 'sample.device' failed"),
        ("one_skips", "step 5: op 'schedule' came to something else on rank 1 than on rank 0"),
        ("listener_raises", "request . failed on rank 1, and not on rank 0: ValueError: this lis"),
        ("killed", "rank 1 is gone: its connection "),
        ("stopped", "rank 1 is gone: it said nothing for "),
    ],
)
def test_what_one_rank_does_otherwise_is_named_by_every_rank(
    mutant: str, said: str, tmp_path: Path
) -> None:
    import re

    launched = started("mutants.py", tmp_path, mutant)
    found = written(tmp_path)
    there = 1 if mutant in ("killed", "stopped") else 2
    assert found[:there].count(None) == 0, launched.stdout[-4000:] + launched.stderr[-8000:]
    for each in found[:there]:
        assert re.search(said, each["failure"]), each


@pytest.mark.nightly
def test_what_fails_on_every_rank_ends_the_requests_of_its_step_alone(tmp_path: Path) -> None:
    for each in ranks("mutants.py", tmp_path, "all_raise"):
        assert [reason for reason, _ in each["ends"]] == ["error", "error", "length"]
        assert "op 'sample.device' failed in step 4: MemoryError: no room" in each["ends"][0][1]


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


@pytest.mark.nightly
def test_the_cost_of_agreeing_is_measured_on_both_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "benchmarks.agreement"]
    done = subprocess.run(
        [*command, "--tokens", "4", "--layers", "2", "--json", f"{tmp_path / 'found.json'}"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert {each["rank"] for each in found} == {0, 1}
    for each in found:
        assert each["steps"] >= 4
        assert 0 < each["share"] < 1
        assert each["agreement_us"] + each["log_us"] < each["step_us"]
    saved = json.loads((tmp_path / "found.json").read_text())["ranks"]
    assert saved == sorted(found, key=lambda each: int(each["rank"]))
