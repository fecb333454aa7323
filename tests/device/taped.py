"""A pipeline as executor cuda would have it where there is no GPU: its graphs are tapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from stepweave import LLM
from stepweave.configs.schema import PipelineConfig
from stepweave.nodes.ops.staging import Staging
from stepweave.requests.buckets import powers_of_two
from stepweave.testing.devices.recorded_calls import RecordedCalls


@contextmanager
def sizes_of_a_gpu() -> Iterator[None]:
    """Few sizes of batches, and block tables of one width, as they are for `executor: cuda`."""
    whole = property(lambda staging: False, lambda staging, gathered: None)
    with (
        patch("stepweave.serving.engine.every_size", powers_of_two),
        patch.object(Staging, "_gathered", whole, create=True),
    ):
        yield


def taped(name: str, **overrides: str) -> tuple[LLM, RecordedCalls]:
    """The plan and the sizes that executor cuda would have, captured as tapes."""
    with patch.object(PipelineConfig, "captured", property(lambda config: True)):
        llm = LLM(pipeline=name, overrides=overrides)
    assert llm.engine.buckets == powers_of_two(llm.engine.limits.max_rows)
    device = RecordedCalls(graphs=True, pieces=512)
    llm.engine.executor = device
    return llm, device
