"""A stranger follows a token round the loop: by references alone, each checked by its type."""

from __future__ import annotations

import ast

import pytest

from stepweave.configs.load import load_config, shipped
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.node import Value
from stepweave.nodes import values
from stepweave.serving.pipeline import step_graph
from tests.nodes.names import Said, declared, functions, modules, names_of_the_step, said


def writers(value: str) -> set[tuple[str, str]]:
    return {(each.path, each.function) for each in functions() if value in each.writes}


def readers(value: str, carry: int = 0) -> set[tuple[str, str]]:
    return {(each.path, each.function) for each in functions() if (value, carry) in each.reads}


def written_by(found: set[tuple[str, str]]) -> set[str]:
    each_of = [each for each in functions() if (each.path, each.function) in found]
    return {value for each in each_of for value in each.writes}


# --- by references


def test_sampled_tokens_are_followed_by_references_back_to_the_next_inputs() -> None:
    # Where a model is in stages, all but the last hear of what the last one samples.
    assert writers("SAMPLED") == {("nodes/sample.py", "sample"), ("nodes/hear.py", "hear")}
    assert readers("SAMPLED") >= {
        ("nodes/drafter.py", "draft"),
        ("nodes/d2h_copy.py", "d2h_copy"),
        ("nodes/d2h_counts.py", "d2h_counts"),
    }
    beside = written_by(writers("SAMPLED")) | written_by(readers("SAMPLED"))
    on_the_host = {"HOST_SAMPLED", "HOST_DRAFTS", "HOST_COUNTS", "HOST_TOKENS"}
    assert beside == {"SAMPLED", "PROGRESS", "DRAFTS"} | on_the_host
    assert readers("PROGRESS", 1) >= {("nodes/prepare_inputs.py", "prepare_inputs")}
    assert readers("DRAFTS", 1) >= {("nodes/prepare_inputs.py", "prepare_inputs")}
    assert ("nodes/commit.py", "advance") in readers("HOST_SAMPLED")


def test_from_the_sampled_tokens_every_value_of_the_step_is_reached_by_references() -> None:
    """Reader by reader, through the next step, until nothing is new."""
    reached: set[str] = {"SAMPLED"}
    while True:
        read_by = {each for each in functions() if {name for name, _ in each.reads} & reached}
        more = reached | {value for each in read_by for value in each.writes}
        if more == reached:
            break
        reached = more
    every = {name for name, each in vars(values).items() if isinstance(each, Value)}
    # The host decides of a step before it knows what was sampled: these begin at the requests.
    from_the_host = {"BATCH", "STAGING", "SWAPS", "FORK_COPIES", "ENCODES", "FAILURES"}
    from_another_stage = {"ARRIVED"}
    assert reached == every - from_the_host - from_another_stage
    assert written_by(readers("BATCH")) >= {"STAGING", "MASK_HOST", "SETTLED", "KEPT"}


@pytest.mark.parametrize("name", ["quickstart", "async"])
def test_what_the_source_refers_to_is_what_the_graph_declares(name: str) -> None:
    """The walk above follows the source; the plan is made of these very accesses."""
    config = load_config(name)
    assert isinstance(config, PipelineConfig)
    by_name = {each.name: key for key, each in vars(values).items() if isinstance(each, Value)}
    by_source = {(value, carry) for each in functions() for value, carry in each.reads}
    for vertex in step_graph(config).vertices.values():
        bound = {(by_name[r.name], r.carry) for r in vertex.op.reads if r.name in by_name}
        assert bound <= by_source, vertex.name
        for written in vertex.op.writes:
            assert written not in by_name or writers(by_name[written]), written


def test_the_walk_sees_optional_reads_wanted_writes_and_nested_functions() -> None:
    source = """
from .values import DRAFTS, SAMPLED as S, PROGRESS
@op(writes=(S, wanted(PROGRESS, of=DRAFTS)))
def one(drafts = optional(DRAFTS, 1), *, again = read(S)): ...
def outer():
    def inner(progress = read(PROGRESS, 2)): ...
    return op(writes=DRAFTS)(inner)
def other(drafts = read("drafts")): ...
"""
    one, inner = declared("x.py", ast.parse(source))
    assert (one.reads, one.writes) == ((("DRAFTS", 1), ("SAMPLED", 0)), ("SAMPLED", "PROGRESS"))
    assert (inner.reads, inner.writes) == ((("PROGRESS", 2),), ("DRAFTS",))


# --- never by a string


REASONED = {
    ("nodes/values.py", "draft_kv"): "the state of whichever drafter there is, for who copies it",
    ("nodes/values.py", "encoded_rows"): "the state of whichever encoder there is, for its reader",
    ("nodes/registry.py", "_BUILT_IN"): "the kinds of this package: what a pipeline file may say",
    ("serving/summary.py", "requests"): "a key of the summary, which counts requests",
    ("serving/warm_up.py", "sampled"): "names the warm-up's requests that are drawn at random",
}


def reasoned(each: Said, module: ast.Module) -> bool:
    if (each.path, each.text) in REASONED:
        return True
    for node in module.body:  # a table of names at the top of a module
        if isinstance(node, ast.Assign) and node.lineno <= each.line <= (node.end_lineno or 0):
            targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
            return any((each.path, target) in REASONED for target in targets)
    return False


def test_no_value_state_node_or_drafter_is_named_by_a_string() -> None:
    found = [
        each
        for path, module in modules("nodes", "serving", "executors").items()
        for each in said(path, module)
        if not reasoned(each, module)
    ]
    assert found == []


def test_each_reasoned_exception_is_still_there() -> None:
    used = {
        (each.path, each.text)
        for path, module in modules("nodes", "serving").items()
        for each in said(path, module)
    }
    tables = {key for key in REASONED if key[1].startswith("_")}
    assert set(REASONED) - tables <= used
    assert {each.text for each in said("x", modules("nodes/registry.py")["nodes/registry.py"])}


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ('report.kept["sampled"]', ["sampled"]),
        ('ctx.read("drafts@-1")', ["drafts@-1"]),
        ('plan.graph.vertices["commit.host.advance"]', ["commit.host.advance"]),
        ('states = {"kv": cache, "draft_kv": other}', ["kv", "draft_kv"]),
        ('if node.kind == "eagle3": ...', ["eagle3"]),
        ('KV = State("kv", make=made)', []),
        ('@op(phase="advance")\ndef advance(): ...', []),
        ('raise ValueError("the forward pass failed")', []),
        ('mode = "keep"', []),
    ],
)
def test_a_string_that_names_a_part_of_the_step_is_found(code: str, named: list[str]) -> None:
    assert [each.text for each in said("x.py", ast.parse(code))] == named


def test_the_names_are_those_of_the_shipped_pipelines() -> None:
    known = names_of_the_step()
    for name in shipped():
        config = load_config(name)
        if isinstance(config, PipelineConfig):
            graph = step_graph(config)
            parts = {*graph.values, *graph.states, *(node.kind for node in graph.nodes)}
            assert parts <= set(known), name
