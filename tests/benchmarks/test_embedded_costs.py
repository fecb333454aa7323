"""The costs of the embedded model: files of several pipelines put together."""

from __future__ import annotations

from benchmarks.embedded_costs import KINDS, graph_of, together
from stepweave.configs.costs import CostsFile


def file(**ops: float) -> CostsFile:
    named = {name.replace("__", "."): cost for name, cost in ops.items()}
    return CostsFile.model_validate(
        {"version": 1, "basis": "measured", "describes": "one", "date": "today", "ops": named}
    )


def test_nodes_of_kinds_come_from_their_pipelines_and_what_was_known_stays() -> None:
    base = file(forward__device=100, draft__device=50)
    found = together(base, {"ngram": file(forward__device=90, draft__device=5)})
    assert found.ops == base.ops
    assert {kind: list(ops) for kind, ops in found.kinds.items()} == {"ngram": ["draft.device"]}
    assert found.kinds["ngram"]["draft.device"].us == 5
    assert (found.basis, found.date) == ("measured", "today")
    both = file(draft_mask__host=7, d2h_tokens__host=1, draft__device=8)
    again = together(found, {"draft_mask": both})
    assert {kind: list(ops) for kind, ops in again.kinds.items()} == {
        "ngram": ["draft.device"],
        "draft_mask": ["draft_mask.host"],
    }


def test_every_kind_is_timed_in_a_pipeline_that_has_it() -> None:
    for kind, pipeline in KINDS.items():
        assert kind in {node.kind for node in graph_of(pipeline).nodes}
