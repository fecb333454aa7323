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


def outputs(case: Case, ranks: int) -> list[Any]:
    """What a case comes to on so many ranks."""
    with LLM(pipeline=case.pipeline, overrides=case.overrides(ranks)) as llm:
        return [told(each) for each in case.run(llm)]


def told(output: RequestOutput) -> list[Any]:
    """What has to be equal of an output."""
    return [list(output.token_ids), output.finish_reason, output.drafted, output.accepted]


if __name__ == "__main__":
    out, *cases = sys.argv[1:]
    found = []
    for text in cases:
        case = Case.of(json.loads(text))
        alone = outputs(case, 1) if os.environ["RANK"] == "0" else None
        found.append({"alone": alone, "together": outputs(case, 2)})
    write(out, found)
