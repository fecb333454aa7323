"""Run on each of two ranks: sampled pipelines, each as rank 0 runs it alone, and as both do."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from stepweave import LLM
from stepweave.requests.request import RequestOutput
from tests.distributed.cases import Case
from tests.distributed.launched import write
from tests.distributed.mutants import served


def outputs(case: Case, ranks: int) -> list[Any]:
    """What a case comes to on so many ranks."""
    with LLM(pipeline=case.pipeline, overrides=case.overrides(ranks)) as llm:
        return [told(each) for each in case.run(llm)]


def told(output: RequestOutput) -> list[Any]:
    """What has to be equal of an output."""
    return [list(output.token_ids), output.finish_reason, output.drafted, output.accepted]


def found(out: str, cases: list[Case], mutant: str) -> dict[str, Any]:
    """Each case on one rank, by rank 0 alone, and on two; then a mutant, which ends the group."""
    leads = os.environ["RANK"] == "0"
    return {
        "alone": [outputs(case, 1) for case in cases] if leads else None,
        "together": [outputs(case, 2) for case in cases],
        "mutant": served(mutant) if mutant else None,
    }


if __name__ == "__main__":
    out, mutant, *cases = sys.argv[1:]
    write(out, found(out, [Case.of(json.loads(text)) for text in cases], mutant))
