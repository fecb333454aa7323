from pathlib import Path

import pytest

from stepweave.configs.abstract import AbstractGraph
from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load, load_config
from stepweave.graph.errors import GraphError
from stepweave.graph.node import Read
from stepweave.graph.step_graph import StepGraph
from stepweave.nodes.node_config import parse_read

GRAPH = """\
version: 1
order: keep
values:
  batch:   {place: host, storage: fresh}
  staging: {place: pinned, slots: 2}
  inputs:  {place: device, bytes: 64}
  sampled: {place: device}
  table:
states: [kv, {name: requests}]
nodes:
  - name: schedule
    host:   {writes: [batch, table], cost_us: 300}
  - name: prepare
    kind: abstract
    actor: driver
    stream: compute
    offset: 0
    launch_latency_us: 5
    host:   {reads: [batch, table], writes: [staging], cost_us: 400}
    device: {reads: [staging, sampled@-1], writes: [inputs], cost_us: 30}
  - name: forward
    stream: compute
    device: {reads: [inputs, kv], writes: [sampled, kv], cost_us: 4000}
  - name: commit
    offset: 1
    host:
      phases:
        - {name: advance, reads: [requests], writes: [requests], cost_us: 10}
        - {name: publish, reads: [batch]}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "it.yaml"
    path.write_text(text)
    return path


def graph_of(folder: Path, text: str) -> StepGraph:
    config = load_config(written(folder, text))
    assert isinstance(config, AbstractGraph)
    return config.step_graph()


def refused(folder: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(written(folder, text))
    return caught.value


def test_a_file_becomes_the_graph_it_describes(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, GRAPH)
    assert graph.order == "keep"
    assert list(graph.vertices) == [
        "schedule.host",
        "prepare.host",
        "prepare.device",
        "forward.host",
        "forward.device",
        "commit.host.advance",
        "commit.host.publish",
    ]
    prepare = graph.nodes[1]
    assert prepare.device[0].reads == (Read("staging"), Read("sampled", 1))
    assert (prepare.stream, prepare.launch_latency_us, prepare.line) == ("compute", 5.0, 13)
    assert graph.nodes[3].offset == 1
    assert set(graph.states) == {"kv", "requests"}


def test_a_host_value_without_slots_is_fresh_and_any_other_has_slots(tmp_path: Path) -> None:
    values = graph_of(tmp_path, GRAPH.replace("table:\n", "table: {slots: 2}\n")).values
    assert {name: (value.storage, value.slots) for name, value in values.items()} == {
        "batch": ("fresh", None),
        "staging": ("slots", 2),
        "inputs": ("slots", None),
        "sampled": ("slots", None),
        "table": ("slots", 2),
    }
    assert (values["inputs"].nbytes, values["inputs"].line) == (64, 6)


def test_a_value_from_outside_needs_no_writer(tmp_path: Path) -> None:
    text = GRAPH.replace(
        "inputs:  {place: device, bytes: 64}", "w: {place: device, initial: external}"
    )
    text = text.replace("writes: [inputs], cost_us: 30", "cost_us: 30").replace(
        "[inputs, kv]", "[w, kv]"
    )
    assert graph_of(tmp_path, text).values["w"].external


def test_leases_are_a_list_of_whole_numbers_of_steps_by_class(tmp_path: Path) -> None:
    text = GRAPH.replace("[kv,", "[{name: kv, keys: blocks, leases: [%s]},").replace(
        "writes: [sampled, kv]", "writes: [sampled, kv], classes: {kv: copy}"
    )
    pinned = graph_of(tmp_path, text % "{from: copy, to: copy, steps: 2}")
    assert pinned.states["kv"].leases == (("copy", "copy", 2),)
    wrong = refused(tmp_path, text % "{from: copy, to: copy, steps: two}")
    assert "states[0].leases[0].steps must be a whole number" in str(wrong)
    assert "states[0].leases must be a list" in str(
        refused(tmp_path, text.replace("[%s]", "{from: copy}"))
    )


def place_of(fragment: str, text: str, after: str) -> tuple[int, int]:
    start = text.index(fragment, text.index(after))
    before = text[:start]
    return before.count("\n") + 1, start - before.rfind("\n")


@pytest.mark.parametrize(
    ("old", "new", "at", "said"),
    [
        ("cost_us: 300", "cost: 300", "cost", "unknown key 'cost' (did you mean 'cost_us'?)"),
        ("order: keep", "ordr: keep", "ordr", "unknown key 'ordr' (did you mean 'order'?)"),
        ("order: keep", "order: kep", "kep", "(did you mean 'keep'?)"),
        ("{place: pinned", "{palce: pinned", "palce", "(did you mean 'place'?)"),
        ("{place: pinned", "{place: pined", "pined", "(did you mean 'pinned'?)"),
        ("kind: abstract", "kind: abstrct", "abstrct", "(did you mean 'abstract'?)"),
        ("reads: [staging,", "reads: [stagin,", "stagin", "prepare.device reads 'stagin'"),
        ("writes: [inputs]", "writes: [input]", "input]", "(did you mean 'inputs'?)"),
        ("reads: [requests]", "reads: [request]", "request]", "commit.host.advance reads"),
        ("sampled@-1", "sampled@1", "sampled@1", "write sampled@-1"),
        ("sampled@-1", "sampled@-x", "sampled@-x", "is not a read"),
        ("sampled@-1", "sampled@-99999", "sampled@", "more than 1024 steps"),
        ("slots: 2", "slots: two", "two", 'must be a whole number, not "two"'),
        ("slots: 2", "slots: 0", "0", "must be at least 1, not 0"),
        ("slots: 2", "slots: yes", "yes", "must be a whole number"),
        ("cost_us: 300", "cost_us: -1", "-1", "must be at least 0, not -1"),
        ("cost_us: 300", "cost_us: .nan", ".nan", "finite"),
        ("offset: 0", "offset: 1.5", "1.5", "must be a whole number"),
        ("version: 1", "version: 2", "2", "version cannot be 2"),
        ("version: 1", 'version: "1"', '"1"', 'version must be the number 1, not "1"'),
        ("name: schedule", "nam: schedule", "nam", "unknown key 'nam' (did you mean 'name'?)"),
        ("name: forward", "name: for ward", "for ward", "is not a name"),
        ("phases:", "cost_us: 1\n      phases:", "cost_us", "an op with phases declares"),
    ],
)
def test_a_wrong_declaration_is_refused_at_its_place(
    tmp_path: Path, old: str, new: str, at: str, said: str
) -> None:
    assert old in GRAPH
    text = GRAPH.replace(old, new, 1)
    error = refused(tmp_path, text)
    place = place_of(at, text, after=new)
    assert any(
        (p.mark.line, p.mark.column) == place and said in p.message for p in error.problems
    ), (place, error.message)


@pytest.mark.parametrize(
    ("listed", "line", "column", "said"),
    [
        ("actors: [host]", 15, 12, "unknown actor 'driver' (known: host)"),
        (
            "actors: [driver]\nstreams: [comput]",
            17,
            13,
            "unknown stream 'compute' (did you mean 'comput'?)",
        ),
    ],
)
def test_actors_that_are_listed_are_all_there_are(
    tmp_path: Path, listed: str, line: int, column: int, said: str
) -> None:
    error = refused(tmp_path, GRAPH.replace("order: keep", listed))
    marks = {(p.mark.line, p.mark.column): p.message for p in error.problems}
    assert marks[(line, column)] == said


def test_every_problem_of_a_file_is_listed(tmp_path: Path) -> None:
    text = GRAPH.replace("slots: 2", "slots: 0").replace("cost_us: 300", "cost: 300")
    assert len(refused(tmp_path, text).problems) == 2


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "code"),
    [
        ("writes: [sampled, kv]", "writes: [inputs, sampled, kv]", 21, 5, "SW-TWO-WRITERS"),
        ("writes: [inputs], cost_us: 30", "cost_us: 30", 21, 5, "SW-UNWRITTEN"),
        ("name: forward", "name: prepare", 21, 5, "SW-DUPLICATE"),
        (
            "    stream: compute\n    device: {reads: [inputs",
            "    device: {reads: [inputs",
            21,
            5,
            "SW-NO-STREAM",
        ),
    ],
)
def test_a_graph_that_makes_no_sense_is_refused_at_its_node(
    tmp_path: Path, old: str, new: str, line: int, column: int, code: str
) -> None:
    assert old in GRAPH
    loaded = load(written(tmp_path, GRAPH.replace(old, new, 1)))
    assert isinstance(loaded.config, AbstractGraph)
    with pytest.raises(GraphError) as caught:
        loaded.config.step_graph()
    mark = loaded.mark(caught.value.line)
    assert (caught.value.code, mark.line, mark.column) == (code, line, column)


def test_shares_that_are_more_than_all_steps_are_told_at_a_mode(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, GRAPH + "modes:\n  a: {share: 0.7}\n  b: {share: 0.7}\n"))
    assert isinstance(loaded.config, AbstractGraph)
    with pytest.raises(GraphError, match=r"shares are parts of all steps, .* 1\.4") as caught:
        loaded.config.step_graph()
    assert loaded.mark(caught.value.line).line == GRAPH.count("\n") + 3


def test_reads_are_written_with_their_carry() -> None:
    assert parse_read("x") == Read("x")
    assert parse_read("x@-2") == Read("x", 2)
    assert parse_read("x@0") == Read("x")
