"""The trace events: checked against the format's rules, not against the code that writes them."""

from __future__ import annotations

import io
import json
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from stepweave.cli.planned import planned
from stepweave.graph.errors import GraphError
from stepweave.graph.planner.compile import compile_plan
from stepweave.requests.spans import RequestSpan
from stepweave.testing.graphs import random_step_graph
from stepweave.timelines.simulated import simulate
from stepweave.views.perfetto import perfetto, write_perfetto
from tests.graph.pipelines import decode

GOLDEN = Path(__file__).parent / "golden" / "decode_trace.json"

NUMBER = {"type": "number", "minimum": 0}
IDS = {"pid": {"type": "integer"}, "tid": {"type": "integer", "minimum": 0}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object", "additionalProperties": {"type": "string"}},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    {
                        "properties": {
                            **IDS,
                            "ph": {"const": "X"},
                            "name": {"type": "string", "minLength": 1},
                            "cat": {"type": "string"},
                            "ts": NUMBER,
                            "dur": NUMBER,
                            "args": {"type": "object"},
                        },
                        "required": ["ph", "name", "cat", "pid", "tid", "ts", "dur", "args"],
                        "additionalProperties": False,
                    },
                    {
                        "properties": {
                            **IDS,
                            "ph": {"enum": ["s", "f"]},
                            "bp": {"const": "e"},
                            "name": {"enum": ["wait", "carry"]},
                            "cat": {"type": "string"},
                            "id": {"type": "integer"},
                            "ts": NUMBER,
                            "args": {"type": "object", "required": ["what", "distance"]},
                        },
                        "required": ["ph", "name", "cat", "id", "pid", "tid", "ts", "args"],
                        "additionalProperties": False,
                        "if": {"properties": {"ph": {"const": "f"}}},
                        "then": {"required": ["bp"]},
                    },
                    {
                        "properties": {
                            **IDS,
                            "ph": {"const": "M"},
                            "name": {
                                "enum": [
                                    "process_name",
                                    "process_sort_index",
                                    "thread_name",
                                    "thread_sort_index",
                                ]
                            },
                            "args": {"type": "object", "minProperties": 1, "maxProperties": 1},
                        },
                        "required": ["ph", "name", "pid", "tid", "args"],
                        "additionalProperties": False,
                    },
                ]
            },
        },
    },
}


def check(trace: Mapping[str, Any]) -> dict[str, int]:
    """Raises where a reader could be misled; how many events of each kind there are.

    In integer nanoseconds cut off, as the strictest of the readers has them.
    """
    jsonschema.validate(trace, SCHEMA)
    events = trace["traceEvents"]
    slices: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    named: set[tuple[int, int]] = set()
    for event in events:
        where = (event["pid"], event["tid"])
        if event["ph"] == "M":
            named.add(where)
        if event["ph"] == "X":
            assert where in named, f"{where} has no name"
            assert (event["pid"], 0) in named, "a process without a name"
            begin = int(event["ts"] * 1000)
            slices[where].append((begin, begin + int(event["dur"] * 1000)))
    for where, found in slices.items():
        open_until: list[int] = []
        assert found == sorted(found, key=lambda s: (s[0], -s[1])), f"{where} is not in order"
        for begin, end in found:
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1], f"{where}: slices overlap at {begin}"
            open_until.append(end)
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
            at = int(event["ts"] * 1000)
            track = slices[event["pid"], event["tid"]]
            assert any(a <= at < b for a, b in track), f"flow {event['id']} ends in nothing"
    for number, pair in flows.items():
        assert [event["ph"] for event in pair] == ["s", "f"], f"flow {number}"
        assert pair[0]["ts"] <= pair[1]["ts"]
        assert pair[0]["name"] == pair[1]["name"]
        assert pair[0]["pid"] == pair[1]["pid"]
    return {kind: sum(event["ph"] == kind for event in events) for kind in ("X", "s", "f", "M")}


def as_read(trace: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(trace))


@pytest.mark.parametrize("name", ["abstract_decode", "quickstart", "grammar_worker"])
def test_the_simulated_runs_of_shipped_plans_are_valid(name: str) -> None:
    plan = planned(name)
    run = simulate(plan, steps=12, seed=4, jitter=0.3)
    counts = check(as_read(perfetto(plan, run, planned=simulate(plan, steps=12), simulated=True)))
    ops = len(plan.graph.vertices)
    assert counts["X"] == ops * (12 + len(run.steady))
    assert counts["s"] == counts["f"] >= len(plan.waits) * 12


def test_random_plans_with_free_ops_and_launch_latencies_are_valid() -> None:
    from dataclasses import replace

    checked = 0
    for seed in range(15):
        graph = random_step_graph(seed)
        nodes = tuple(
            replace(node, launch_latency_us=float(seed % 5)) if node.device else node
            for node in graph.nodes
        )
        try:
            plan = compile_plan(replace(graph, nodes=nodes) if seed % 2 else graph)
        except GraphError:
            continue
        costs = {op: 0.0 for op in list(plan.graph.vertices)[::2]}
        run = simulate(plan, steps=9, seed=seed, jitter=0.9, costs=costs)
        check(as_read(perfetto(plan, run, planned=simulate(plan, steps=9))))
        checked += 1
    assert checked >= 8


def test_arrows_join_the_steps_that_the_plan_says() -> None:
    plan = compile_plan(decode())
    run = simulate(plan, steps=6)
    events = perfetto(plan, run)["traceEvents"]
    tracks = {tid: actor for tid, actor in enumerate(run.actors, start=1)}
    joined = set()
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    for event in events:
        if event["ph"] != "f":
            continue
        ends = []
        for half in (starts[event["id"]], event):
            inside = [
                (e["name"], e["args"]["step"])
                for e in events
                if e["ph"] == "X"
                and tracks[e["tid"]] == tracks[half["tid"]]
                and e["ts"] <= half["ts"] < e["ts"] + e["dur"]
            ]
            ends.append(inside[0])
        (source, before), (target, after) = ends
        assert after - before == event["args"]["distance"]
        joined.add((event["name"], source, target, event["args"]["distance"]))
    assert {(kind, s, t, d) for kind, s, t, d in joined if kind == "wait"} == {
        ("wait", wait.source, wait.target, wait.distance) for wait in plan.waits
    }
    assert ("carry", "forward.device", "prepare.device", 1) in joined


def test_the_plan_begins_with_the_runs_first_steady_step() -> None:
    plan = compile_plan(decode())
    run = simulate(plan, steps=20, seed=1, jitter=0.2)
    events = perfetto(plan, run, planned=simulate(plan, steps=20))["traceEvents"]

    def begins(pid: int) -> float:
        return min(
            float(e["ts"])
            for e in events
            if e["ph"] == "X" and e["pid"] == pid and e["args"]["step"] == run.steady.start
        )

    assert begins(1) == pytest.approx(begins(2), abs=0.2)
    steps = {e["args"]["step"] for e in events if e["ph"] == "X" and e["pid"] == 2}
    assert steps == set(run.steady)


def test_requests_are_nested_and_on_the_clock_of_the_run() -> None:
    plan = compile_plan(decode())
    run = simulate(plan, steps=6)
    first = RequestSpan("a", 99.999, 100.0, 100.001, 100.003, 100.010, 7, 4, "stop", 0, (0, 1))
    cut = RequestSpan("b", 100.0, 100.0, 100.002, None, None, 5, 0, None)
    trace = as_read(perfetto(plan, run, requests=[first, cut], began_s=100.0))
    check(trace)
    mine = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 3]
    whole = next(e for e in mine if e["name"] == "a")
    assert (whole["ts"], whole["dur"]) == pytest.approx((0, 11_000), abs=1)  # shifted: none is < 0
    assert whole["args"] == {
        "prompt tokens": 7,
        "tokens": 4,
        "ended by": "stop",
        "preemptions": 0,
        "steps": 2,
    }
    parts = {e["name"]: e["dur"] for e in mine if e["tid"] == 1 and e["name"] != "a"}
    assert parts == pytest.approx(
        {"grammar": 1000, "queue": 1000, "prefill": 2000, "decode": 7000}, abs=1
    )
    assert [e["name"] for e in mine if e["tid"] == 2] == ["b", "queue"]
    start = min(e["ts"] for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1)
    assert start == pytest.approx(1000, abs=1)


def test_an_op_says_what_held_it() -> None:
    plan = compile_plan(decode())
    events = perfetto(plan, simulate(plan, steps=5))["traceEvents"]
    args = [e["args"] for e in events if e["ph"] == "X" and e["name"] == "commit.host"]
    assert args[2]["held by"] == "d2h_copy.device of step 2"
    assert args[2]["by"] == "wait"


def test_the_streamed_file_is_the_same_object() -> None:
    plan = compile_plan(decode())
    run = simulate(plan, steps=6)
    stream = io.StringIO()
    write_perfetto(stream, plan, run, planned=run)
    assert json.loads(stream.getvalue()) == as_read(perfetto(plan, run, planned=run))


def test_a_small_trace_is_the_same_to_the_byte() -> None:
    plan = compile_plan(decode())
    stream = io.StringIO()
    write_perfetto(stream, plan, simulate(plan, steps=3), simulated=True)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(stream.getvalue(), encoding="utf-8")
    assert stream.getvalue() == GOLDEN.read_text(encoding="utf-8")


def test_the_check_sees_what_it_is_for() -> None:
    """Each rule broken once."""
    plan = compile_plan(decode())
    good = as_read(perfetto(plan, simulate(plan, steps=4)))
    check(good)

    def broken(change: Any) -> None:
        trace = as_read(good)
        change(trace["traceEvents"])
        with pytest.raises((AssertionError, jsonschema.ValidationError)):
            check(trace)

    def first(events: list[dict[str, Any]], kind: str) -> dict[str, Any]:
        return next(event for event in events if event["ph"] == kind)

    broken(lambda events: first(events, "X").update(dur=first(events, "X")["dur"] + 200))
    broken(lambda events: first(events, "s").update(id=10**6))
    broken(lambda events: first(events, "f").update(ts=10**9))
    broken(lambda events: first(events, "f").pop("bp"))
    broken(lambda events: first(events, "X").update(tid=77))
    broken(lambda events: events.remove(first(events, "s")))
