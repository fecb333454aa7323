"""What the three hand-written overlaps did falls out of the declarations."""

from pathlib import Path

import pytest

from stepweave.configs.load import load_config
from stepweave.configs.node_keys import reading_model
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.errors import GraphError
from stepweave.graph.node import Read
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.leases import pool_leases
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify
from stepweave.nodes.decode_step import decode_step, offset
from stepweave.nodes.node_config import NodeConfig, wired
from stepweave.nodes.registry import kind, known_kinds
from stepweave.policies.acceptance import Coupled
from stepweave.serving.pipeline import step_graph


def step(depth: int = 2, **settings: object) -> StepGraph:
    """The decode step with grammars and a drafter."""
    named = {key.replace("__", "."): value for key, value in settings.items()}
    config = load_config("quickstart", {"depth": depth, **named})
    assert isinstance(config, PipelineConfig)
    return step_graph(config)


# The device dominates: a forward of 4 ms, and host ops as engines report them.
COSTS = {
    "schedule.host": 300.0,
    "prepare_inputs.host": 400.0,
    "prepare_inputs.device": 30.0,
    "forward.host": 150.0,
    "forward.device": 4000.0,
    "bitmask.host": 830.0,
    "bitmask.device": 20.0,
    "sample.device": 150.0,
    "draft.device": 600.0,
    "d2h_copy.device": 15.0,
    "commit.host.advance": 100.0,
    "commit.host.finish": 200.0,
}


@pytest.mark.parametrize("order", ["keep", "search"])
def test_all_three_together_need_exactly_two_waits(order: str) -> None:
    plan = compile_plan(step(order=order), costs=COSTS)
    verify(plan)
    assert [(wait.source, wait.target, wait.distance) for wait in plan.waits] == [
        ("draft.device", "d2h_copy.device", 0),
        ("d2h_copy.device", "commit.host.advance", 0),
    ]


@pytest.mark.parametrize("depth", [2, 3])
def test_pipelined_the_device_alone_bounds_the_speed(depth: int) -> None:
    plan = compile_plan(step(depth), costs=COSTS)
    assert all(op.endswith(".device") for op, _ in plan.critical_cycle)
    assert plan.period_us == pytest.approx(30 + 4000 + 20 + 150 + 600)


def test_synchronous_the_critical_cycle_runs_through_the_host() -> None:
    plan = compile_plan(step(1), costs=COSTS)
    assert any(".host" in op for op, _ in plan.critical_cycle)
    pipelined = compile_plan(step(), costs=COSTS)
    assert plan.period_us > 1.2 * pipelined.period_us


def test_one_slot_for_the_staging_buffers_brings_back_the_guard_that_was_written_by_hand() -> None:
    free = compile_plan(step(), costs=COSTS)
    assert free.slots["staging"] == 2
    plan = compile_plan(step(), costs=COSTS, slots={"staging": 1})
    verify(plan)
    guards = [w for w in plan.waits if w.target == "prepare_inputs.host"]
    assert [(wait.source, wait.distance) for wait in guards] == [("prepare_inputs.device", 1)]
    assert {(p.hazard, p.value) for p in guards[0].protects} >= {("WAR", "staging")}


def test_a_worker_thread_for_the_grammar_adds_only_waits_that_name_what_they_protect() -> None:
    plan = compile_plan(step(nodes__bitmask__actor="grammar"), costs=COSTS)
    verify(plan)
    assert [op for op, _ in plan.actors["grammar"]] == ["bitmask.host"]
    assert len(plan.waits) > 2
    assert all(wait.protects for wait in plan.waits)


def test_a_drafter_on_a_stream_of_its_own_is_a_placement_and_no_new_code() -> None:
    plan = compile_plan(step(nodes__draft__stream="draft"), costs=COSTS)
    verify(plan)
    assert [op for op, _ in plan.actors["draft"]] == ["draft.device"]
    assert any(wait.source == "sample.device" for wait in plan.waits)
    assert pool_leases(plan, "blocks") == {("owner", "owner"): 1}


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_the_depth_says_how_far_schedule_runs_ahead_and_moves_nothing_else(depth: int) -> None:
    nodes = step(depth).nodes
    plain = "schedule prepare_inputs forward bitmask sample draft d2h_copy commit"
    assert [node.name for node in nodes] == plain.split()
    offsets = {node.name: node.offset for node in nodes}
    others = {offset for name, offset in offsets.items() if name != "schedule"}
    assert others == {min(1, depth - 1)}
    assert offsets["schedule"] == min(1, depth - 1) - (depth - 1)
    # In iterations: a node acts on step i in iteration i + its offset, in the listed order. So
    # schedule(i) comes after commit(i - depth), and before commit(i - depth + 1).
    schedule, commit = (offsets["schedule"], 0), (offsets["commit"], 1)

    def of(node: tuple[int, int], i: int) -> tuple[int, int]:
        return i + node[0], node[1]

    assert of(commit, -depth) < of(schedule, 0) < of(commit, 1 - depth)


def test_the_node_that_runs_ahead_is_known_by_its_kind() -> None:
    ahead = [name for name in known_kinds() if kind(name).runs_ahead]
    assert ahead == ["schedule"]
    assert [offset(kind(name), 3) for name in ("schedule", "commit")] == [-1, 1]


def test_a_depth_below_one_is_refused() -> None:
    with pytest.raises(GraphError, match="at least 1"):
        decode_step({"schedule": NodeConfig()}, depth=0, acceptance=Coupled())


def test_a_step_that_settles_nothing_is_refused_since_no_request_would_end() -> None:
    config = load_config("async", {"nodes.commit": None})
    assert isinstance(config, PipelineConfig)
    with pytest.raises(GraphError, match="kind 'commit'") as caught:
        step_graph(config)
    assert caught.value.code == "SW-NODE"


def test_sampled_tokens_do_not_pass_through_the_host() -> None:
    graph = step()
    host_values = {name for name, value in graph.values.items() if value.place != "device"}
    prepare = graph.vertices["prepare_inputs.device"].op
    assert {str(read) for read in prepare.reads} == {
        "staging",
        "progress@-1",
        "drafts@-1",
        "history",
        "block_tables",
    }
    assert "progress" not in host_values
    assert "drafts" not in host_values
    host_ops = [v for v in graph.vertices.values() if v.side == "host"]
    on_device = {"progress", "history", "block_tables"}
    assert not any(read.name in on_device for v in host_ops for read in v.op.reads)


def test_rewiring_names_the_parameters_that_there_are() -> None:
    wrong = NodeConfig(reads={"logit": "logits"})
    wrong._line = 7
    with pytest.raises(GraphError, match=r"reads no 'logit' \(did you mean 'logits'\?\)") as caught:
        decode_step({"sample": wrong}, depth=2, acceptance=Coupled())
    assert caught.value.line == 7


@pytest.mark.parametrize(
    ("out", "told"),
    [
        ("sample", "'prepare_inputs' reads 'progress', which no node writes: list .* 'sample'$"),
        ("d2h_copy", "'commit' reads 'host_sampled', which no node writes: list .* 'd2h_copy'$"),
    ],
)
def test_where_nobody_writes_what_is_read_the_kinds_that_do_are_named(out: str, told: str) -> None:
    with pytest.raises(GraphError, match=told) as caught:
        step(**{f"nodes__{out}": None})  # type: ignore[arg-type]
    assert caught.value.code == "SW-UNWRITTEN"
    assert caught.value.line is not None


def test_a_stream_of_a_node_that_runs_on_the_host_is_refused() -> None:
    wrong = NodeConfig(stream="copy")
    wrong._line = 7
    with pytest.raises(GraphError, match="'commit' of kind 'commit' runs on the host") as caught:
        decode_step({"commit": wrong}, depth=2, acceptance=Coupled())
    assert caught.value.line == 7


@pytest.mark.parametrize("key", ["device_cost_us", "launch_latency_us"])
def test_times_of_a_device_that_a_node_has_none_of_are_refused(key: str) -> None:
    wrong = NodeConfig(**{key: 5})  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=f"runs on the host only: leave out `{key}: 5"):
        decode_step({"commit": wrong}, depth=2, acceptance=Coupled())


def test_an_unknown_kind_gets_the_nearest_right_name_and_foreign_options_are_refused() -> None:
    assert set(known_kinds()) >= {"schedule", "forward", "bitmask", "sample", "commit"}
    with pytest.raises(GraphError, match=r"unknown node kind 'smaple' \(did you mean 'sample'\?\)"):
        kind("smaple")
    other = reading_model(kind("draft_model"))()
    with pytest.raises(GraphError, match="needs options of type NgramOptions"):
        kind("ngram").declare("draft", other)


@pytest.mark.parametrize(
    ("text", "name", "carry"),
    [("logits", "logits", 0), ("sample.progress@-1", "progress", 1), ("drafts@-2", "drafts", 2)],
)
def test_a_read_is_written_as_value_or_node_dot_value(text: str, name: str, carry: int) -> None:
    assert wired(text)[1] == Read(name, carry)


@pytest.mark.parametrize(
    ("read", "said"),
    [
        ("forwrd.logits", r"there is no node 'forwrd' \(did you mean 'forward'\?\)"),
        ("commit.logits", "node 'commit' writes no 'logits', node 'forward' does"),
        ("commit.logts@-1", "node 'commit' writes no 'logts'$"),
    ],
)
def test_a_read_from_a_node_that_does_not_write_it_is_refused_in_its_line(
    read: str, said: str, tmp_path: Path
) -> None:
    def written(text: str) -> PipelineConfig:
        (tmp_path / "p.yaml").write_text(
            f"extends: async\nnodes:\n  sample: {{reads: {{logits: {text}}}}}\n"
        )
        return pipeline(tmp_path / "p.yaml")

    with pytest.raises(GraphError, match=said) as error:
        step_graph(written(read))
    assert (error.value.code, error.value.line) == ("SW-UNKNOWN-NAME", 3)
    named, plain = (
        compile_plan(step_graph(written(text))) for text in ("forward.logits", "logits")
    )
    assert named.digest == plain.digest


@pytest.mark.parametrize("text", ["logits@1", "logits@x", "logits@"])
def test_a_carry_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a read|a step to come"):
        NodeConfig(reads={"logits": text})


def pipeline(path: Path) -> PipelineConfig:
    config = load_config(str(path))
    assert isinstance(config, PipelineConfig)
    return config


@pytest.mark.parametrize("place", ["forward", "commit"])
def test_blocks_are_copied_before_they_are_read(place: str, tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(f"extends: async\nnodes:\n  fork: {{after: {place}}}\n")
    with pytest.raises(GraphError, match="list it before 'forward'") as caught:
        step_graph(pipeline(path))
    assert caught.value.line == 3
    path.write_text("extends: async\nnodes:\n  fork: {after: schedule}\n")
    assert "fork.device" in step_graph(pipeline(path)).vertices
