from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepweave.configs.costs import (
    Costs,
    CostsFile,
    OpCosts,
    assumed_costs,
    costs_text,
    load_costs,
    to_yaml,
)
from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config, shipped
from stepweave.configs.schema import PipelineConfig
from stepweave.configs.shipped_costs import shipped_costs
from stepweave.graph.declare import node, step_graph
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.serving.pipeline import step_graph as decode_graph
from stepweave.timelines.simulated import simulate
from tests.graph.shipped_plans import GRAPHS

RUNNING = [name for name in shipped() if name not in GRAPHS]
HEADER = "version: 1\nbasis: measured\ndescribes: a test\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "it.yaml"
    path.write_text(HEADER + text)
    return path


def op(**said: object) -> OpCosts:
    return OpCosts.model_validate(said)


@node(writes="batch")
def schedule(ctx):  # type: ignore[no-untyped-def]
    return ctx.step


@node(stream="compute", writes="token")
def forward(batch):  # type: ignore[no-untyped-def]
    return batch


def two_nodes() -> StepGraph:
    return step_graph(schedule, forward)


def decode(name: str, **overrides: str) -> StepGraph:
    config = load_config(name, overrides)
    assert isinstance(config, PipelineConfig)
    return decode_graph(config)


def test_between_two_batch_sizes_lies_a_straight_line() -> None:
    found = op(rows={"1": 10, "4": 40, "8": 60})
    assert [found.at(rows, rows) for rows in (1, 2, 4, 6, 8)] == [10, 20, 40, 50, 60]


def test_below_the_smallest_batch_size_it_is_flat_and_beyond_the_largest_it_goes_on() -> None:
    found = op(rows={"4": 40, "8": 60})
    assert (found.at(1, 1), found.at(12, 12)) == (40, 80)
    assert op(rows={"4": 40}).at(100, 100) == 40


def test_beyond_the_largest_batch_size_no_op_gets_cheaper() -> None:
    assert op(rows={"4": 60, "8": 50}).at(16, 16) == 50


def test_what_an_op_takes_by_rows_and_by_tokens_adds_up() -> None:
    found = op(us=5, rows={"1": 10, "3": 30}, tokens={"1": 100, "9": 180})
    assert found.at(2, 5) == 5 + 20 + 140


def test_a_batch_beyond_what_is_known_is_told() -> None:
    assert list(op(rows={"1": 1, "8": 2}).outside(9, 9)) == [
        "beyond the largest known batch of 8 rows, continued in a straight line"
    ]
    assert list(op(tokens={"4": 1}).outside(1, 2)) == [
        "below the smallest known batch of 4 tokens, taken as it is there"
    ]
    assert list(op(us=4).outside(1000, 1000)) == []
    assert list(op(rows={"1": 1, "8": 2}).outside(8, 32)) == []


@given(
    st.dictionaries(st.integers(1, 500), st.floats(0, 1e6), min_size=1, max_size=6),
    st.integers(1, 500),
)
def test_every_known_batch_size_is_met_and_all_between_lie_between(
    points: dict[int, float], size: int
) -> None:
    found = op(rows={str(at): us for at, us in points.items()})
    for at, us in points.items():
        assert found.at(at, at) == pytest.approx(us)
    lower = [points[at] for at in sorted(points) if at <= size]
    upper = [points[at] for at in sorted(points) if at >= size]
    if lower and upper:
        low, high = sorted((lower[-1], upper[0]))
        assert low - 1e-6 <= found.at(size, size) <= high + 1e-6


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("ops: {a.host: -1}\n", 4, "must be at least 0, not -1"),
        ("ops:\n  a.host: {row: {1: 5}}\n", 5, "unknown key 'row' (did you mean 'rows'?)"),
        ("ops:\n  a.host: {rows: {0: 5}}\n", 5, "'0' is not a batch size"),
        ('ops:\n  a.host: {rows: {8: 5, "08": 6}}\n', 5, "'08' begins with a zero: write 8"),
        ("ops:\n  a.host: {rows: {1.5: 5}}\n", 5, "'1.5' is not a batch size"),
        ("ops:\n  a.host: {}\n", 5, "has no duration"),
        ("ops:\n  a.host: fast\n", 5, 'not "fast"'),
        ("ops:\n  a.host: 1\n  a.host: 2\n", 6, "duplicate key 'a.host'"),
        ("oops: {}\nops: {a.host: 1}\n", 4, "unknown key 'oops'"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_costs(written(tmp_path, text))
    assert said in str(caught.value)
    assert caught.value.line == line


def test_who_measured_and_what_must_be_said(tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text("version: 1\nops: {a.host: 1}\n")
    with pytest.raises(ConfigError, match="lacks the key 'basis'"):
        load_costs(path)


def test_a_name_that_is_nearly_a_shipped_one_is_told() -> None:
    with pytest.raises(ConfigError, match="did you mean 'llama_8b'") as caught:
        load_costs("lama_8b")
    assert caught.value.code == "SW-NO-FILE"


def test_ops_of_the_graph_that_the_file_lacks_keep_their_hints(tmp_path: Path) -> None:
    costs = load_costs(written(tmp_path, "ops: {forward.device: 777}\n"))
    graph = two_nodes()
    times = costs.of(graph)
    assert dict(times.costs) == {"forward.device": 777}
    assert times.notes == (
        "warning: no cost for schedule.host, forward.host: hints or defaults are used",
    )
    plan = compile_plan(graph, costs=times.costs)
    assert (plan.costs["forward.device"], plan.costs["schedule.host"]) == (777, 10)


def test_a_slip_of_the_pen_is_told_from_an_op_of_another_pipeline(tmp_path: Path) -> None:
    text = "ops: {forwrd.device: 7, forward.host: 1, schedule.host: 1, bitmask.host: 9}\n"
    notes = load_costs(written(tmp_path, text)).of(two_nodes()).notes
    assert notes[0] == (
        "warning: 'forwrd.device' is not an op of this pipeline (did you mean 'forward.device'?)"
    )
    assert notes[-1] == "not in this pipeline: bitmask.host"


def test_an_op_may_cost_something_else_in_a_node_of_another_kind(tmp_path: Path) -> None:
    text = (
        "ops: {draft.device: 5}\nkinds:\n"
        "  eagle: {draft.device: 600}\n  ngram: {draft.device: 30}\n"
    )
    costs = load_costs(written(tmp_path, text))
    found = {
        name: costs.of(decode(name)).costs["draft.device"]
        for name in ("async_eagle", "async_ngram", "async_speculation")
    }
    assert found == {"async_eagle": 600, "async_ngram": 30, "async_speculation": 5}


def test_a_window_multiplies_tokens_but_not_rows(tmp_path: Path) -> None:
    text = (
        "ops: {forward.device: {tokens: {1: 10, 100: 1000}}, schedule.host: {rows: {1: 1, 9: 9}}}\n"
    )
    times = load_costs(written(tmp_path, text)).of(two_nodes(), rows=5, window=4)
    assert dict(times.costs) == {"forward.device": 200, "schedule.host": 5}
    assert (times.rows, times.tokens) == (5, 20)


def test_where_nobody_says_the_batch_is_the_files_or_its_largest(tmp_path: Path) -> None:
    text = "ops: {schedule.host: {rows: {1: 1, 16: 2}}}\n"
    assert load_costs(written(tmp_path, text)).batch == 16
    assert load_costs(written(tmp_path, f"batch: 3\n{text}")).batch == 3


def test_a_launch_latency_lets_the_device_begin_before_the_launch_is_over(tmp_path: Path) -> None:
    text = (
        "launch_latency_us: {forward: 20, other: 5}\n"
        "ops: {forward.host: 100, forward.device: 300, schedule.host: 50}\n"
    )
    graph = two_nodes()
    times = load_costs(written(tmp_path, text)).of(graph)
    assert dict(times.launch_latency_us) == {"forward": 20}
    nodes = {n.name: n.launch_latency_us for n in times.on(graph).nodes}
    assert nodes == {"schedule": None, "forward": 20}
    assert graph.nodes[1].launch_latency_us is None, "the graph that was given stays as it is"
    early, late = (
        simulate(compile_plan(each, costs=times.costs), steps=1)
        for each in (times.on(graph), graph)
    )
    assert early.span("forward.device", 0).start_us == 50 + 20
    assert late.span("forward.device", 0).start_us == 50 + 100


def test_a_written_file_reads_back_the_same(tmp_path: Path) -> None:
    point = {"p50": 4.5, "p10": 4, "p90": 9.25, "samples": 12}
    file = CostsFile.model_validate(
        {
            "version": 1,
            "basis": "measured",
            "describes": 'a "quoted": text — #1',
            "versions": {"torch": "2.13.0"},
            "notes": ["one", "- two"],
            "batch": 4,
            "period_us": {"4": point},
            "launch_latency_us": {"forward": 20},
            "ops": {
                "a.host": {"rows": {"1": point, "4": 7}},
                "b.host": 3,
                "c.host": {"us": 1, "tokens": {"2": 5}},
            },
            "kinds": {"eagle": {"draft.device": {"rows": {"1": 600}}}},
        }
    )
    path = tmp_path / "it.yaml"
    path.write_text(costs_text(file, "Where it comes from."))
    assert load_costs(path).file == file
    assert path.read_text().startswith("# Where it comes from.\nversion: 1\nbasis:")


@pytest.mark.parametrize("name", assumed_costs())
def test_shipped_profiles_say_that_they_are_assumed_and_grow_with_the_batch(name: str) -> None:
    costs = load_costs(name)
    assert costs.file.basis == "assumed"
    assert "ASSUMED, not measured" in costs.label
    assert load_costs(f"{name}.yaml").name == name
    for config in ("async_eagle3_grammar", "async_ngram", "async_speculation", "synchronous"):
        graph = decode(config)
        sizes = [costs.of(graph, rows=rows, window=4) for rows in (1, 8, 32, 128)]
        assert all(times.costs.keys() == graph.vertices.keys() for times in sizes), "none missing"
        for small, large in pairwise(sizes):
            assert all(small.costs[o] <= large.costs[o] for o in graph.vertices)
        assert not any("warning" in note or "beyond" in note for note in sizes[-1].notes)


def test_yaml_of_a_plain_number_is_a_plain_number() -> None:
    file = CostsFile.model_validate(
        {"version": 1, "basis": "assumed", "describes": "x", "ops": {"a.host": 12.5}}
    )
    assert to_yaml(file).splitlines()[-1] == "  a.host: 12.5"


def test_the_embedded_model_has_a_measured_profile_that_knows_every_op_of_its_pipelines() -> None:
    costs = load_costs("embedded")
    assert set(shipped_costs()) == {*assumed_costs(), "embedded"}
    assert costs.file.basis == "measured"
    assert costs.file.date is not None
    assert costs.file.device is not None
    for config in RUNNING:
        graph = decode(config)
        unknown = {op for op, at in graph.vertices.items() if at.node.kind == "encode"}
        for rows in (1, 4, 8):
            times = costs.of(graph, rows=rows, window=4)
            assert times.costs.keys() == graph.vertices.keys() - unknown, "the model has no encoder"
            assert unknown or not any("warning" in note for note in times.notes)
    slow, fast = (costs.of(decode(c), rows=1, window=4) for c in ("quickstart", "async_ngram"))
    assert slow.costs["draft.device"] > 2 * fast.costs["draft.device"], "a model against a look-up"


@pytest.mark.parametrize("name", RUNNING)
def test_no_duration_of_a_shipped_pipeline_is_guessed_with_a_shipped_profile(name: str) -> None:
    graph = decode(name)
    for costs in profiles():
        found = costs.of(graph)
        assert found.complete, (costs.name, graph.vertices.keys() - found.costs.keys())


@cache
def profiles() -> list[Costs]:
    return [load_costs(name) for name in assumed_costs()]


def test_a_link_says_how_long_ranks_take_to_meet_and_ops_are_named_without_ranks(
    tmp_path: Path,
) -> None:
    graph = tmp_path / "stages.yaml"
    graph.write_text(
        "version: 1\nranks: 2\nnodes:\n"
        "  - {name: work, stream: compute, device: {}}\n"
        "  - {name: sum, stream: compute, collective: {bytes: 1000000}}\n"
    )
    costs = tmp_path / "costs.yaml"
    costs.write_text(
        "version: 1\nbasis: assumed\ndescribes: two ranks\n"
        "link: {latency_us: 20, gb_per_s: 50}\nops: {work.device: 300, work.host: 5, sum.host: 5}\n"
    )
    step = load_config(graph).step_graph()  # type: ignore[union-attr]
    times = load_costs(costs).of(step)
    assert times.complete
    assert times.costs["work@1.device"] == 300.0
    assert (times.costs["sum@0.device.enter"], times.costs["sum@0.device.leave"]) == (0.0, 40.0)
    assert not [note for note in times.notes if "no cost" in note or "not in this" in note]
