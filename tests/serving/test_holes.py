"""A shipped node that reads a live request past its declaration is refused by checking mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stepweave.executors.errors import ContractViolation, NodeFailure, UndeclaredAccess
from stepweave.graph.bind import OpFunction
from stepweave.nodes import BATCH, HOST_DRAFTS, MASK_HOST, MATCHERS, STAGING, op
from stepweave.nodes import buffer as buffer_of
from stepweave.nodes import optional as optional_read
from stepweave.nodes import read as read_of
from stepweave.nodes import update as update_of
from stepweave.nodes.bitmask import fill
from stepweave.nodes.kind import NodeKind
from stepweave.nodes.prepare_inputs import stage
from stepweave.nodes.registry import kind
from stepweave.requests.request import SamplingParams
from stepweave.requests.table import RequestTable
from stepweave.testing import TinyConfig, tiny_engine, tiny_requests

ASKED = SamplingParams(max_tokens=4, structured_outputs={"regex": "[a-z]+"})
TABLES: list[RequestTable] = []


def reading(body: Callable[..., Any], look: Callable[[Any, RequestTable], object]) -> Any:
    """The body of a shipped op that also looks at the live table of the run."""

    def holed(batch: Any, *given: Any) -> Any:
        look(batch, TABLES[-1])
        return body(batch, *given)

    return holed


def staging_with_the_hole() -> OpFunction[..., Any]:
    """`prepare_inputs.host` reads the bound of tokens from the request, as it once did."""

    def bounds(batch: Any, table: RequestTable) -> object:
        return [table.find(row.request.uid).upper_bound() for row in batch.rows]

    body = reading(stage.function, bounds)

    @op(writes=STAGING)
    def holed(batch: Any = read_of(BATCH), staging: Any = buffer_of(STAGING)) -> Any:
        return body(batch, staging)

    return holed


def filling_with_the_hole() -> OpFunction[..., Any]:
    """`bitmask.host` reads the output so far from the request, as it once did."""

    def outputs(batch: Any, table: RequestTable) -> object:
        return [len(table.find(row.request.uid).output_ids) for row in batch.rows]

    body = reading(fill.function, outputs)

    @op(writes=MASK_HOST)
    def holed(
        batch: Any = read_of(BATCH),
        matchers: Any = update_of(MATCHERS),
        host_drafts: Any = optional_read(HOST_DRAFTS, 1),
        mask_host: Any = buffer_of(MASK_HOST),
    ) -> Any:
        return body(batch, matchers, host_drafts, mask_host)

    return holed


@pytest.mark.parametrize(
    ("node", "hole"),
    [("prepare_inputs", staging_with_the_hole), ("bitmask", filling_with_the_hole)],
)
@pytest.mark.parametrize("check", ["off", "strict"])
def test_a_shipped_node_with_the_hole_put_back_is_refused(
    node: str,
    hole: Callable[[], OpFunction[..., Any]],
    check: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def patched(name: str) -> NodeKind:
        found = kind(name)
        return replace(found, host=(hole(),)) if name == node else found

    monkeypatch.setattr("stepweave.nodes.decode_step.kind", patched)
    engine = tiny_engine(TinyConfig(depth=2, structured=True, check=check))  # type: ignore[arg-type]
    table = engine.new_table()
    TABLES.append(table)
    requests = tiny_requests([ASKED] * 2)
    table.submit_all(requests)
    if check == "off":
        engine.run(table)
        assert [request.error for request in requests] == [None, None], "so nobody else sees it"
        return
    with pytest.raises(NodeFailure, match="'requests'") as refused:
        engine.run(table)
    assert refused.value.op == f"{node}.host"
    assert isinstance(refused.value.__cause__, UndeclaredAccess | ContractViolation)
