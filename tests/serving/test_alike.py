"""Ranks and replicas have one pipeline wherever its models lie, and not with other weights."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stepweave.cli import ranks as cli_ranks
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.distributed import start
from stepweave.distributed.errors import GroupEnded
from stepweave.distributed.group import Group
from stepweave.distributed.membership import Membership
from stepweave.distributed.ranks import variables_of
from stepweave.graph.errors import StepweaveError
from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import ModelNotFound
from stepweave.models.source import resolve
from stepweave.serving.alike import (
    Likeness,
    digest_of_models,
    digest_of_rest,
    models_are_here,
)
from stepweave.serving.loading import load_engine
from stepweave.testing import save_adapter
from tests.distributed.pairs import at_once, groups


def pipeline(model: str | Path, **changes: Any) -> PipelineConfig:
    asked = {"model.invariant": False, "model.parallel.tensor": 2, "nodes.draft.model": f"{model}"}
    found = load_config("async_speculation", {"model.name": f"{model}", **asked, **changes})
    assert isinstance(found, PipelineConfig)
    return found


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(resolve("embedded-draft"), folder))


def digests(config: PipelineConfig) -> tuple[str, dict[str, str]]:
    return digest_of_rest(config), digest_of_models(config)


def test_copies_of_a_model_are_one_and_each_key_that_names_it_is_compared(tmp_path: Path) -> None:
    here, there = (digests(pipeline(copied(tmp_path / name))) for name in ("a", "elsewhere"))
    assert here == there
    assert set(here[1]) == {"model.name", "nodes.draft.model"}


def with_a_nudged_weight(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    largest = max(weights, key=lambda name: weights[name].numel())
    weights[largest] = weights[largest] * 1.01
    save_file(weights, file, metadata={"format": "pt"})


def with_tensors_of_other_names(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    weights = {name[::-1]: tensor for name, tensor in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})


def with_another_end(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": 5}))


def without_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    "doctor",
    [
        with_a_nudged_weight,
        with_tensors_of_other_names,
        with_another_end,
        without_a_tokenizer,
    ],
)
def test_another_model_of_the_same_name_is_another(
    doctor: Callable[[Path], None], tmp_path: Path
) -> None:
    config = pipeline(copied(tmp_path / "a"))
    before = digests(config)
    doctor(tmp_path / "a")
    after = digests(config)
    assert after[0] == before[0]
    assert all(after[1][key] != before[1][key] for key in before[1])


def test_what_else_a_pipeline_says_is_compared_but_for_its_prompts() -> None:
    first = digest_of_rest(pipeline("embedded"))
    assert digest_of_rest(pipeline("embedded", prompts=[{"prompt": "a fox"}])) == first
    assert digest_of_rest(pipeline("embedded", **{"scheduler.max_rows": 3})) != first
    assert digest_of_rest(pipeline("embedded", **{"nodes.draft.tokens": 2})) != first


def with_adapters(**folders: Path) -> PipelineConfig:
    named = {name: f"{folder}" for name, folder in folders.items()}
    found = load_config("async", {"model.adapters": named})
    assert isinstance(found, PipelineConfig)
    return found


def with_another_scale(folder: Path) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"lora_alpha": 99}))


@pytest.mark.parametrize("doctor", [with_a_nudged_weight, with_another_scale])
def test_adapters_are_compared_by_name_and_by_what_they_contain(
    doctor: Callable[[Path], None], tmp_path: Path
) -> None:
    one, copy = tmp_path / "one", tmp_path / "copy"
    shutil.copytree(save_adapter(one, resolve("embedded")), copy)
    here = Likeness.of(with_adapters(terse=one))
    assert here.difference(Likeness.of(with_adapters(terse=copy))) is None
    assert here.difference(Likeness.of(with_adapters(other=one))) == "another pipeline"
    doctor(copy)
    there = Likeness.of(with_adapters(terse=copy))
    assert here.difference(there) == "another model (model.adapters.terse)"


def with_a_module(model: Path | None) -> PipelineConfig:
    found = load_config("async_mtp", {"nodes.draft.model": None if model is None else f"{model}"})
    assert isinstance(found, PipelineConfig)
    return found


def test_a_key_that_may_be_left_open_names_a_model_where_it_is_not(tmp_path: Path) -> None:
    here, there = (with_a_module(copied(tmp_path / name)) for name in ("a", "b"))
    assert digests(here) == digests(there)
    assert set(digest_of_models(here)) == {"model.name", "nodes.draft.model"}
    in_the_target = with_a_module(None)
    assert set(digest_of_models(in_the_target)) == {"model.name"}
    assert models_are_here(in_the_target)
    assert digest_of_rest(in_the_target) != digest_of_rest(here)


def test_what_is_compared_of_two_pipelines_says_what_differs(tmp_path: Path) -> None:
    a, b, nudged = (copied(tmp_path / name) for name in ("a", "b", "nudged"))
    with_a_nudged_weight(nudged)
    mine = Likeness.of(pipeline(a))
    for other, difference in (
        (pipeline(b), None),
        (pipeline(a, **{"nodes.draft.model": f"{b}"}), None),
        (pipeline(nudged), "another model (model.name)"),
        (pipeline(a, **{"nodes.draft.model": f"{nudged}"}), "another model (nodes.draft.model)"),
        (pipeline(b, depth=3), "another pipeline"),
    ):
        told = Likeness.read(json.loads(json.dumps(Likeness.of(other).to_json())))
        assert mine.difference(told) == difference
        assert told.difference(mine) == difference


def test_a_model_of_which_one_side_has_no_weights_is_known_by_its_name(tmp_path: Path) -> None:
    config = pipeline(copied(tmp_path / "a"), **{"nodes.draft.model": f"{tmp_path / 'away'}"})
    without = Likeness.of(config)
    assert without.models["nodes.draft.model"].contents is None
    copied(tmp_path / "away")
    assert Likeness.of(config).models["nodes.draft.model"].contents is not None
    assert without.difference(Likeness.of(config)) is None
    other = pipeline(tmp_path / "a", **{"nodes.draft.model": f"{copied(tmp_path / 'b')}"})
    assert without.difference(Likeness.of(other)) == "another model (nodes.draft.model)"
    for file in (tmp_path / "away").glob("*.safetensors"):
        file.unlink()  # as where only its tokenizer was needed
    assert not models_are_here(config)
    assert Likeness.of(config) == without


class Shown(Membership):
    """A membership whose ranks see each other's numbers by lists, without a library."""

    def __init__(self, group: Group, seen: Sequence[list[int]], grown: threading.Condition) -> None:
        super().__init__(group, torch.device("cpu"))
        self._seen, self._grown = seen, grown
        group.on_end(self._wake)

    def _wake(self, failure: GroupEnded) -> None:
        with self._grown:
            self._grown.notify_all()

    def gathered(self, number: int) -> list[int]:
        with self._grown:
            self._seen[self.group.rank].append(number)
            self._grown.notify_all()
            at = len(self._seen[self.group.rank])
            self._grown.wait_for(lambda: self._there(at) or self.group.failure is not None)
            if not self._there(at):
                self.group.check()
            return [each[at - 1] for each in self._seen]

    def _there(self, count: int) -> bool:
        return all(len(each) >= count for each in self._seen)


def loaded(
    configs: Sequence[PipelineConfig], monkeypatch: pytest.MonkeyPatch
) -> list[StepweaveError]:
    """How loading fails on each rank."""
    seen: list[list[int]] = [[] for _ in configs]
    members: list[Shown] = []
    own = threading.local()
    monkeypatch.setattr(start, "join", lambda *given, **named: own.member)

    def load(rank: int) -> object:
        own.member = members[rank]
        try:
            return load_engine(configs[rank])
        except StepweaveError as error:
            return error

    grown = threading.Condition()
    with groups(len(configs), lambda group: members.append(Shown(group, seen, grown))):
        found = at_once([partial(load, rank) for rank in range(len(configs))])
    assert all(isinstance(each, StepweaveError) for each in found)
    return found  # type: ignore[return-value]


def test_ranks_with_other_weights_are_refused_before_they_load_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CausalLM, "load", lambda *given, **named: pytest.fail("it loads"))
    configs = [pipeline(copied(tmp_path / name)) for name in ("a", "b")]
    with_a_nudged_weight(tmp_path / "b")
    for failure in loaded(configs, monkeypatch):
        assert isinstance(failure, GroupEnded)
        assert failure.message.endswith("rank 1 has another model (model.name) than rank 0")


def test_what_no_rank_can_load_is_raised_by_rank_0_and_ends_the_group_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leading, *others = loaded([pipeline(tmp_path / "nowhere")] * 3, monkeypatch)
    assert isinstance(leading, ModelNotFound)
    for each in others:
        assert isinstance(each, GroupEnded)
        assert "there is no directory" in each.message


def test_a_rank_that_follows_leaves_it_to_rank_0_to_say_why_nothing_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(config: PipelineConfig) -> object:
        raise GroupEnded("rank 1: there is no directory")

    monkeypatch.setattr(cli_ranks, "loaded", refused)
    for key, value in variables_of(1, 2).items():
        monkeypatch.setenv(key, value)
    assert cli_ranks.as_ranks(pipeline("embedded")) == 1
    assert capsys.readouterr().err == ""
