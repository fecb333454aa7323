"""What a pipeline leaves open is that of the shipped preset where its model lies on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config, shipped
from stepweave.configs.preset import GPU
from stepweave.configs.schema import PipelineConfig
from stepweave.configs.yaml_source import read_yaml
from tests.graph.shipped_plans import GRAPHS


def pipeline(name: str | Path, **settings: Any) -> PipelineConfig:
    found = load_config(name, {key.replace("__", "."): each for key, each in settings.items()})
    assert isinstance(found, PipelineConfig)
    return found


def open_keys(config: PipelineConfig) -> tuple[Any, ...]:
    model, scheduler = config.model, config.scheduler
    return (
        (model.dtype, model.invariant, model.compile),
        (scheduler.max_rows, scheduler.token_budget, scheduler.num_blocks),
    )


ON_HOST = (("auto", True, "off"), (16, 256, 512))
ON_A_GPU = (("auto", False, "auto"), (128, 4096, "auto"))


def test_the_executor_alone_is_enough() -> None:
    for name in shipped():
        if name not in GRAPHS:
            assert open_keys(pipeline(name)) == ON_HOST, name
            assert open_keys(pipeline(name, executor="cuda")) == ON_A_GPU, name


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({"model__device": "cuda:1"}, ON_A_GPU),
        ({"executor": "threads", "model__device": "cpu"}, ON_HOST),
        ({"executor": "serial", "model__device": "cuda"}, ON_A_GPU),
    ],
)
def test_it_is_the_device_that_counts(settings: dict[str, str], keys: Any) -> None:
    assert open_keys(pipeline("async", **settings)) == keys


def test_a_file_and_a_setting_go_before_it(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "extends: async\nexecutor: cuda\nmodel: {invariant: true}\nscheduler: {max_rows: 8}\n"
    )
    own = pipeline(file, scheduler__num_blocks=64)
    assert open_keys(own) == (("auto", True, "auto"), (8, 4096, 64))


def test_the_synchronous_reference_has_the_sizes_of_its_pipeline() -> None:
    from stepweave.serving.pipeline import synchronous

    assert open_keys(synchronous(pipeline("quickstart", executor="cuda"))) == ON_A_GPU


def test_the_preset_names_keys_that_a_pipeline_has() -> None:
    keys: Any = read_yaml(GPU).plain()
    assert keys.keys() <= PipelineConfig.model_fields.keys()
    for section, named in keys.items():
        if isinstance(named, dict):
            assert named.keys() <= type(getattr(pipeline("base"), section)).model_fields.keys()


@pytest.mark.parametrize("setting", ["executor=cudda", "model.device=7", "model.device=tpu"])
def test_a_device_that_there_is_not_is_told_at_its_key(setting: str) -> None:
    key, value = setting.split("=")
    with pytest.raises(ConfigError, match=value) as error:
        load_config("async", {key: value})
    assert "presets" not in f"{error.value}"
