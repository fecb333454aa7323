"""Run on each of two ranks: pipelines and families, as rank 0 runs them alone, and as both do."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from stepweave import LLM
from stepweave.requests.request import RequestOutput
from tests.distributed.cases import Case
from tests.distributed.launched import write
from tests.memory import settle

CLOSING_S = 5.0
"""How long threads may take, in which they close the files of an engine that has ended."""


def outputs(case: Case, ranks: int) -> list[Any]:
    """What a case comes to on so many ranks."""
    with LLM(pipeline=case.pipeline, overrides=case.overrides(ranks)) as llm:
        return [told(each) for each in case.run(llm)]


def told(output: RequestOutput) -> list[Any]:
    """What has to be equal of an output."""
    return [list(output.token_ids), output.finish_reason, output.drafted, output.accepted]


def together(cases: Sequence[Case]) -> Iterator[tuple[list[Any], int]]:
    """What each case comes to on two ranks, and the open files that are left when it is closed."""
    settle()  # what was imported would be gone through after each case
    usual: dict[str, int] = {}
    for case in cases:
        served = outputs(case, 2)
        gc.collect()
        files = open_files(usual.get(case.divided))
        usual.setdefault(case.divided, files)
        yield served, files


def open_files(usual: int | None) -> int:
    """How many files are open; where that is more than usual, when threads have closed theirs."""
    until = monotonic() + CLOSING_S
    while True:
        found = len([*Path("/proc/self/fd").iterdir()])
        if usual is None or found <= usual or monotonic() > until:
            return found
        sleep(0.01)


def found(out: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Each case on one rank, by rank 0 alone, and on two; then a mutant, which ends the group."""
    leads = os.environ["RANK"] == "0"
    cases = [Case.of(each) for each in job.get("cases", ())]
    alone = [outputs(case, 1) for case in cases] if leads else None
    needed = [name for name in sys.modules if name.startswith("stepweave.distributed.")]
    from tests.distributed import families, serving  # not before: they know of ranks

    served = [*together(cases)]
    return {
        "alone": alone,
        "needed alone": needed,
        "together": [each for each, _ in served],
        "files": [files for _, files in served],
        "families": families.found(out, job.get("families", ())),
        "service": serving.served() if job.get("service") else None,
        "mutant": serving.broken(job["mutant"]) if "mutant" in job else None,
    }


if __name__ == "__main__":
    out, job = sys.argv[1:]
    write(out, found(out, json.loads(job)))
