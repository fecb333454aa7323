"""Models load under the settings that their runs have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.models.causal_lm import CausalLM
from stepweave.serving.loading import load_engine


@pytest.mark.parametrize(("setting", "threads"), [("auto", 1), ("3", 3), ("null", 2)])
def test_a_model_loads_with_as_many_threads_as_its_runs_have(
    setting: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    load = CausalLM.load

    def watched(*args: Any, **kwargs: Any) -> CausalLM:
        seen.append(torch.get_num_threads())
        return load(*args, **kwargs)

    monkeypatch.setattr(CausalLM, "load", watched)
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
