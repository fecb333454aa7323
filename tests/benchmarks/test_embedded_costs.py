"""The costs of the embedded model: files of several pipelines put together."""

from __future__ import annotations

from benchmarks.embedded_costs import together
from stepweave.configs.costs import CostsFile


def file(**ops: float) -> CostsFile:
    named = {name.replace("__", "."): cost for name, cost in ops.items()}
    return CostsFile.model_validate(
        {"version": 1, "basis": "measured", "describes": "one", "date": "today", "ops": named}
    )


def test_the_drafters_of_other_pipelines_are_kinds_of_the_one_file() -> None:
    base = file(forward__device=100, draft__device=50)
    found = together(base, {"ngram": file(forward__device=90, draft__device=5)})
    assert found.ops == base.ops
    assert {kind: list(ops) for kind, ops in found.kinds.items()} == {"ngram": ["draft.device"]}
    assert found.kinds["ngram"]["draft.device"].us == 5
    assert (found.basis, found.date) == ("measured", "today")
