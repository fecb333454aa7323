"""The nodes of each stage, and what the graph of all of them says."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.configs.stages import for_stages
from stepweave.graph.errors import GraphError
from stepweave.graph.node import OWNER
from stepweave.graph.plan import Plan
from stepweave.graph.planner.leases import pool_leases
from stepweave.graph.planner.projection import project
from stepweave.graph.verifier.verify import verify
from stepweave.models.stage import Stage
from stepweave.nodes.registry import BETWEEN_STAGES, kind
from stepweave.nodes.stage_ranks import FEEDBACK
from stepweave.nodes.stages import late, staged
from stepweave.nodes.values import BLOCKS
from stepweave.serving.pipeline import compiled

COSTS = {
    "schedule.host": 10.0,
    "prepare_inputs.host": 10.0,
    "prepare_inputs.device": 20.0,
    "forward.host": 5.0,
    "forward.device": 6000.0,
    "sample.host": 5.0,
    "sample.device": 40.0,
    "d2h_copy.host": 5.0,
    "d2h_copy.device": 10.0,
    "commit.host.advance": 10.0,
    "commit.host.finish": 10.0,
}


def pipeline(name: str = "async", **said: Any) -> PipelineConfig:
    found = load_config(name, said)
    assert isinstance(found, PipelineConfig)
    return found


def divided(stages: int, groups: int, name: str = "async", **said: Any) -> PipelineConfig:
    return pipeline(name, **(for_stages(stages, {"depth": groups}) | {"depth": groups} | said))


@cache
def plan(stages: int, groups: int) -> Plan:
    found = compiled(divided(stages, groups, costs=COSTS))
    verify(found)
    return found


def test_each_stage_has_the_nodes_that_it_can_run() -> None:
    nodes = pipeline("async_eagle3_grammar").nodes
    listed = [" ".join(staged(nodes, Stage(index, 3), groups=4)) for index in range(3)]
    assert listed == [
        "schedule log1 log2 prepare_inputs forward send0 tell tell_drafts d2h_copy commit",
        "log1 schedule prepare_inputs send0 forward send1 tell tell_drafts d2h_copy commit",
        "log2 schedule prepare_inputs send1 forward bitmask sample tell draft tell_drafts d2h_copy "
        "commit",
    ]


def test_what_a_step_hands_to_the_next_is_read_as_many_steps_later_as_there_are_groups() -> None:
    nodes = staged(pipeline("async_eagle3_grammar").nodes, Stage(1, 2), groups=3)
    assert nodes["prepare_inputs"].reads == {"progress": "progress@-3", "drafts": "drafts@-3"}
    assert nodes["bitmask"].reads == {"host_drafts": "host_drafts@-3"}
    assert nodes["sample"].reads == nodes["draft"].reads == {}, "a stage goes on from its own"


@pytest.mark.parametrize(
    ("name", "stages"),
    [("async_eagle3_grammar", 2), pytest.param("async", 3, marks=pytest.mark.nightly)],
)
def test_a_message_has_an_end_of_its_own_on_each_rank(name: str, stages: int) -> None:
    """What the ends touch is what their ops touch where they run, and so what is proved."""
    whole = compiled(divided(stages, stages + 1, name)).graph
    for index in range(stages):
        own = staged(pipeline(name).nodes, Stage(index, stages), groups=stages + 1)
        for called, node in own.items():
            if node.kind not in BETWEEN_STAGES:
                continue
            [op] = (*kind(node.kind).host, *kind(node.kind).device)
            [leave] = [
                vertex.op
                for vertex in whole.vertices.values()
                if vertex.node.name == f"{called}@{index}" and vertex.op.phase == "leave"
            ]
            assert {read.name for read in leave.reads} == {
                f"{each.name}@{index}"
                for each in op.parameters.values()
                if each.role in ("read", "state")
            }
            assert set(leave.writes) == {f"{each.name}@{index}" for each in op.writes}
    comms = {node.comm.name: node.comm for node in whole.nodes if node.comm}
    assert all(comm.capacity == 0 for comm in comms.values()), "no buffer is relied on"
    assert {comm.communicator for name, comm in comms.items() if "tell" in name} == {FEEDBACK}


def test_other_stages_move_what_is_kept_of_a_tree_when_they_have_heard_of_it() -> None:
    nodes = pipeline("async_tree").nodes
    first, last = (staged(nodes, Stage(index, 2), groups=3) for index in range(2))
    assert " ".join(first) == (
        "schedule log1 prepare_inputs keep_path forward send0 tell tell_drafts d2h_copy commit"
    )
    assert [*last].index("keep_path") > [*last].index("sample")
    assert (late(nodes, Stage(0, 2)), late(nodes, Stage(1, 2))) == (("keep_path",), ())
    assert late(nodes, None) == ()


@pytest.mark.parametrize(
    "groups", [2, *(pytest.param(groups, marks=pytest.mark.nightly) for groups in (1, 3))]
)
def test_steps_on_their_way_do_not_wait_for_a_path_and_blocks_of_its_rows_do(groups: int) -> None:
    """What moves the path of step s has step s + K after it, and none of those between."""
    found = compiled(divided(2, groups, "async_tree", **{"nodes.draft.tree": None}, costs=COSTS))
    trees = compiled(divided(2, groups, "async_tree", costs=COSTS))
    verify(trees)
    edges = {(e.source, e.target): e.distance for e in trees.edges if e.value == "kv@0"}
    assert edges["keep_path@0.device", "forward@0.device"] == groups
    assert edges["forward@0.device", "keep_path@0.device"] == 1 - groups
    assert trees.period_us == pytest.approx(found.period_us, rel=0.01)
    owned = pool_leases(project(trees, 0), BLOCKS)[OWNER, OWNER]
    assert owned == groups, "or the path would be moved in blocks of another request"


def test_a_pipeline_without_drafter_tells_no_drafts() -> None:
    for index in range(2):
        nodes = staged(pipeline("async_grammar").nodes, Stage(index, 2), groups=2)
        assert not {"tell_drafts", "hear_drafts"} & nodes.keys()


def test_the_period_is_that_of_the_slowest_stage_or_of_a_way_round_over_the_groups() -> None:
    """λ = max(max_s w_s, way / K), where the way is the period of one group."""
    slowest, way = 20 + 3000 + 40, plan(2, 1).period_us
    assert way == pytest.approx(2 * 20 + 6000 + 40, rel=0.05)
    for groups in (2, 3):
        assert plan(2, groups).period_us == pytest.approx(max(slowest, way / groups), rel=0.04)
    assert plan(3, 4).period_us == pytest.approx(20 + 2000 + 40, rel=0.02)


def test_check_says_how_long_each_stage_waits_and_what_would_hide_it() -> None:
    few, enough = plan(2, 1).notes[0], plan(2, 3).notes[0]
    assert few.startswith("stages: of each step they wait for 52% at 0, 52% at 1; tokens are back ")
    assert few.endswith("`depth: 3` would hide their way")
    assert enough == (
        "stages: of each step they wait for 1% at 0, 0% at 1; stage 1 takes the longest, and "
        "tokens are back in time for it"
    )


def test_wrong_pipelines_are_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"say policies: \{scheduling: \{kind: groups, groups: 2"):
        load_config("async", {"model.parallel.pipeline": 2})
    with pytest.raises(ConfigError, match="by `tensor` or by `pipeline`, and not yet by both"):
        load_config("async", {"model.parallel.tensor": 2, **for_stages(2, {})})
    nodes = pipeline().nodes
    with pytest.raises(GraphError, match="node 'tell': nodes between the stages of a model "):
        staged({**nodes, "tell": nodes["sample"]}, Stage(0, 2), groups=2)
    with pytest.raises(GraphError, match="node 'send0': nodes between the stages of a model "):
        staged({**nodes, "send0": nodes["sample"]}, Stage(0, 2), groups=2)
    with pytest.raises(GraphError, match="run by one node of kind 'forward'; here are 2"):
        staged({**nodes, "again": nodes["forward"]}, Stage(0, 2), groups=2)


def test_settings_that_are_said_go_before_what_follows_from_the_number_of_stages() -> None:
    assert for_stages(2, {}) == {
        "model.parallel.pipeline": 2,
        "depth": 3,
        "policies.scheduling": {"kind": "groups", "groups": 3},
    }
    assert for_stages(2, {"depth": 2})["policies.scheduling"] == {"kind": "groups", "groups": 2}
    assert for_stages(1, {}) == {"model.parallel.pipeline": 1}
