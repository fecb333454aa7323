"""What capturing changes in the plan: without a grammar, nothing of the host parts a step."""

from __future__ import annotations

import pytest

from stepweave.cli.planned import planned
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.planner.segments import segments
from stepweave.graph.planner.units import units
from stepweave.serving.pipeline import synchronous


def cut(name: str, **settings: str) -> list[str]:
    plan = planned(name, {"executor": "cuda", **settings})
    return [str(segment) for segment in segments(plan)]


@pytest.mark.parametrize("depth", ["1", "2", "3"])
def test_without_a_grammar_the_whole_step_is_one_graph(depth: str) -> None:
    whole = ["compute: prepare_inputs → forward → sample", "copy: d2h_copy"]
    assert cut("async", depth=depth) == whole
    drafting = [whole[0], "compute: draft", whole[1]]  # the copy begins once tokens are sampled
    assert cut("async_speculation", depth=depth) == drafting


@pytest.mark.sampled(5)
@pytest.mark.parametrize("depth", ["1", "2", "3"])
@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("async", ["prepare_inputs forward sample d2h_copy"]),
        ("async_eagle", ["prepare_inputs forward sample draft d2h_copy"]),
        ("async_grammar", ["prepare_inputs forward", "bitmask sample d2h_copy"]),
        ("quickstart", ["prepare_inputs forward", "bitmask sample draft d2h_copy"]),
        ("grammar_worker", ["prepare_inputs forward", "sample draft d2h_copy"]),
        ("mask_stream", ["prepare_inputs forward", "bitmask sample draft d2h_copy"]),
    ],
)
def test_launches_that_only_launch_stand_behind_each_other(
    name: str, groups: list[str], depth: str
) -> None:
    plan = planned(name, {"executor": "cuda", "depth": depth})
    launches = " ".join(op.removesuffix(".host") for op, _ in plan.actors["driver"])
    assert all(group in launches for group in groups), launches
    found = [" ".join(node.name for node in unit.nodes) for unit in units(plan.graph)]
    assert [group for group in found if " " in group] == groups


def test_what_is_not_captured_may_be_parted() -> None:
    assert all(len(unit.nodes) == 1 for unit in units(planned("quickstart").graph))


def test_a_mask_from_the_host_parts_the_step_in_two() -> None:
    assert cut("async_eagle3_grammar") == [
        "compute: prepare_inputs → forward",
        "compute: bitmask → sample → draft",
        "copy: d2h_copy",
    ]


@pytest.mark.parametrize("name", ["async", "async_speculation", "async_eagle3_grammar"])
def test_the_period_stays_that_of_the_device_and_the_waits_are_two(name: str) -> None:
    plan, plain = planned(name, {"executor": "cuda"}), planned(name)
    assert plan.period_us == plain.period_us
    assert len(plan.waits) == len(plain.waits) == 2
    assert all(plan.graph.vertices[op].side == "device" for op, _ in plan.critical_cycle)


def test_what_a_run_on_a_gpu_must_equal_runs_there_too() -> None:
    config = load_config("async", {"executor": "cuda"})
    assert isinstance(config, PipelineConfig)
    plain = synchronous(config)
    assert (plain.executor, plain.depth, plain.device) == ("serial", 1, "cuda")
    assert not plain.captured
    assert not plain.recorded
    assert not synchronous(config.model_copy(update={"executor": "threads"})).recorded
    assert synchronous(config.model_copy(update={"executor": "threads"})).device == "cpu"


def test_an_unpadded_drafter_is_not_captured_nor_is_anything_where_graphs_are_off() -> None:
    def config(**settings: str) -> PipelineConfig:
        found = load_config("async_speculation", {"executor": "cuda", **settings})
        assert isinstance(found, PipelineConfig)
        return found

    assert config().captured
    assert not config(graphs="false").captured
    assert not config(**{"nodes.d2h_counts.after": "sample"}).captured
    assert not config(executor="threads").captured


def test_what_threads_of_a_cpu_record_is_captured_by_no_stream() -> None:
    def config(**settings: str) -> PipelineConfig:
        found = load_config("async_speculation", settings)
        assert isinstance(found, PipelineConfig)
        return found

    assert config().recorded
    assert not config(graphs="false").recorded
    assert config(executor="serial").recorded
    assert not config(executor="cuda").recorded
    assert not config(**{"nodes.d2h_counts.after": "sample"}).recorded
    assert not config(**{"model.compile": "layer", "model.invariant": "false"}).recorded
