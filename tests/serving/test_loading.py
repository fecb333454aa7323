"""Models load under the settings that their runs have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stepweave import LLM
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.models import threads as threads_file
from stepweave.models.causal_lm import CausalLM
from stepweave.serving.engine import EngineError
from stepweave.serving.loading import load_engine


@pytest.mark.parametrize(("setting", "threads"), [("auto", 1), ("3", 3), ("1024", 3), ("null", 2)])
def test_a_model_loads_with_as_many_threads_as_its_runs_have(
    setting: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    load = CausalLM.load

    def watched(*args: Any, **kwargs: Any) -> CausalLM:
        seen.append(torch.get_num_threads())
        torch.set_num_threads(1)  # several that have one processor wait for each other for seconds
        try:
            return load(*args, **kwargs)
        finally:
            torch.set_num_threads(seen[-1])

    monkeypatch.setattr(CausalLM, "load", watched)
    monkeypatch.setattr(threads_file, "usable_processors", lambda: {0, 1, 2})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # who sets it has chosen
    config = load_config("quickstart", {"torch_threads": setting})
    assert isinstance(config, PipelineConfig)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        load_engine(config)
        assert torch.get_num_threads() == 2, "as it was"
    finally:
        torch.set_num_threads(before)
    assert seen == [threads, threads], "of the target and of the drafter"


def test_no_request_is_longer_than_the_context_that_is_served() -> None:
    with LLM(pipeline="base", overrides={"scheduler.max_context": "24"}) as llm:
        assert llm.engine.limits.context_length == 24
        prompt = list(range(5, 25))
        [output] = llm.generate([prompt], {"max_tokens": 9, "ignore_eos": True})
        assert (len(output.token_ids), output.finish_reason) == (4, "length")
        [refused] = llm.generate([prompt + [7] * 4], {"max_tokens": 1})
        assert "the context of 24 tokens must hold it" in str(refused.error)


def test_no_more_context_is_served_than_the_model_has() -> None:
    config = load_config("base", {"scheduler.max_context": "4096"})
    assert isinstance(config, PipelineConfig)
    with pytest.raises(EngineError, match=r"max_context is 4096, .* context of 1024 tokens"):
        load_engine(config)
