"""Reports: whole, one for each cause, with a repair that repairs, and codes that are explained."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from stepweave.cli.planned import planned
from stepweave.graph.errors import DeadlockError, UnsoundPlan
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.planner.bounds import is_bound
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify, violations
from stepweave.graph.violation import RACE_CODES, Violation
from stepweave.testing import decode_step
from stepweave.testing.graphs import random_step_graph
from tests.graph.pipelines import decode, device_node, reads
from tests.installed import ROOT

GOLDEN = Path(__file__).parent / "golden" / "messages"
RACES = set(RACE_CODES.values())


def dropped(plan: Plan, index: int) -> Plan:
    return replace(plan, waits=plan.waits[:index] + plan.waits[index + 1 :])


def reordered(plan: Plan, actor: str, order: Sequence[str]) -> Plan:
    offsets = dict(plan.actors[actor])
    program = tuple((op, offsets[op]) for op in order)
    return replace(plan, actors={**plan.actors, actor: program})


def broken() -> dict[str, Plan]:
    """A plan for each kind of report."""
    plan = compile_plan(decode())
    example = compile_plan(decode_step(2))
    driver = [op for op, _ in plan.actors["driver"]]
    late = [op for op in driver if op != "forward.host"]
    return {
        "lost-wait": dropped(example, 1),
        "too-few-slots": replace(plan, slots={**plan.slots, "staging": 1}),
        "several-readers": replace(plan, slots={**plan.slots, "sampled": 1}),
        "wrong-launch-order": reordered(plan, "driver", [*late, "forward.host"]),
        "wrong-stream-order": reordered(plan, "compute", ["forward.device", "prepare.device"]),
        "wait-for-host-work": replace(
            plan, waits=(*plan.waits, Wait("schedule.host", "forward.device", 0))
        ),
        "deadlock": replace(plan, waits=(*plan.waits, Wait("commit.host", "schedule.host", -1))),
        "missing-op": replace(plan, actors={**plan.actors, "copy": ()}),
        "unstated": replace(plan, edges=tuple(e for e in plan.edges if e.value != "out")),
        "launches-unstated": replace(plan, launch_order=()),
    }


@pytest.mark.parametrize("name", broken())
def test_the_text_is_as_it_was_agreed(name: str) -> None:
    found = "\n".join(str(violation) for violation in violations(broken()[name])) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


# --- what every report has ------------------------------------------------------------------


def plans(seeds: range, most: int) -> Iterator[Plan]:
    def sound() -> Iterator[Plan]:
        for seed in seeds:
            try:
                yield compile_plan(random_step_graph(seed))
            except DeadlockError:
                continue

    return islice(sound(), most)


def test_a_race_tells_both_accesses_the_order_there_is_and_a_way_that_is_really_there() -> None:
    told = 0
    for plan in plans(range(40), 20):
        for index in range(len(plan.waits)):
            mutant = dropped(plan, index)
            for found in violations(mutant):
                if found.code not in RACES:
                    continue
                told += 1
                assert found.before is not None
                assert found.after is not None
                ops = plan.graph.vertices
                sides = (ops[found.before.op].side, ops[found.after.op].side)
                assert found.code == RACE_CODES[found.hazard, *sides]
                for access in (found.before, found.after):
                    assert access.place
                    assert str(access) in found.message
                assert found.after.step == found.needed
                assert (found.present is None) == (found.path == ())
                assert f"repair   {found.repair}" in found.message
                if found.present is not None:
                    assert found.needed is not None
                    assert found.present > found.needed
                    check_path(mutant, found)
    assert told > 30


def check_path(plan: Plan, found: Violation) -> None:
    """The path of a report is one of the plan, from its first op, of the length it says."""
    assert found.before is not None
    assert found.path[0] == (found.before.op, 0)
    assert found.path[-1][1] == found.present
    steps = {(w.source, w.target, w.distance) for w in plan.waits}
    for program in plan.actors.values():
        following = [*program[1:], *program[:1]]
        for at, ((u, first), (v, then)) in enumerate(zip(program, following, strict=True)):
            steps.add((u, v, first - then + (at == len(program) - 1)))
    for name, vertex in plan.graph.vertices.items():
        if vertex.launch is not None:
            steps.add((vertex.launch, name, 0))
    for (u, before), (v, after) in zip(found.path, found.path[1:], strict=False):
        assert (u, v, after - before) in steps


# --- repairs that repair --------------------------------------------------------------------

WHEN = r"the same step|the step before|the step after|\d+ steps before|\d+ steps after"
LET = re.compile(rf"(?:let|and) (\S+) (?:wait )?for ([\w.]+)(?: of ({WHEN}))?")
GIVE = re.compile(r"give '(\w+)' (\d+) slots?")


def suggested(found: Violation) -> list[Wait]:
    """The waits that a report asks for."""
    waits = []
    for target, source, when in LET.findall(found.repair):
        assert found.needed is not None
        words = when.split()
        if not words:
            distance = found.needed
        elif when == "the same step":
            distance = 0
        else:
            count = 1 if words[1] == "step" else int(words[0])
            distance = count if words[-1] == "before" else -count
        waits.append(Wait(source, target, distance))
    return waits


def races(plan: Plan) -> list[Violation]:
    return [found for found in violations(plan) if not found.code.startswith("SW-WITNESS")]


def test_the_suggested_waits_repair_every_lost_wait() -> None:
    repaired = 0
    for plan in plans(range(200), 60):
        for index, wait in enumerate(plan.waits):
            mutant = dropped(plan, index)
            found = races(mutant)
            assert len(found) == 1, "one report for one cause"
            if is_bound(wait):
                assert found[0].code == "SW-BOUND"
                continue
            waits = suggested(found[0])
            assert waits, found[0].repair
            assert races(replace(mutant, waits=(*mutant.waits, *waits))) == []
            repaired += 1
    assert repaired > 60


def test_a_wait_between_streams_of_two_threads_is_suggested_with_that_of_their_launches() -> None:
    nodes = [
        device_node("first", "one", writes=("x",), actor="a"),
        device_node("second", "two", reads=reads("x"), actor="b"),
    ]
    plan = compile_plan(StepGraph.build(nodes, [], ["x"], order="keep"))
    back = tuple(wait for wait in plan.waits if not wait.target.startswith("second"))
    [found] = races(replace(plan, waits=back))
    assert found.code == "SW-RAW-DEVICE-DEVICE"
    assert found.repair == (
        "let second.device wait for first.device of the same step, and second.host for "
        "first.host, or the wait is enqueued before its record"
    )
    assert races(replace(plan, waits=(*back, *suggested(found)))) == []
    assert len(races(replace(plan, waits=(*back, suggested(found)[0])))) == 1


def test_the_suggested_slots_repair_every_value_with_too_few() -> None:
    repaired = 0
    for plan in plans(range(300), 100):
        for name, count in plan.slots.items():
            if count is None or count == 1:
                continue
            mutant = replace(plan, slots={**plan.slots, name: count - 1})
            found = [each for each in races(mutant) if GIVE.search(each.repair)]
            assert len(found) <= 1, "all readers that are overtaken are one report"
            for each in found:
                match = GIVE.search(each.repair)
                assert match is not None
                assert match[1] == name
                slots = {**mutant.slots, name: int(match[2])}
                assert races(replace(mutant, slots=slots)) == []
                assert int(match[2]) == count, "the planner chose no more than are needed"
                repaired += 1
    assert repaired > 10


def test_an_op_in_a_wrong_place_is_one_report() -> None:
    plan = compile_plan(decode_step(2))
    driver = [op for op, _ in plan.actors["driver"]]
    driver.remove("bitmask.host")
    driver.insert(driver.index("commit.host.advance"), "bitmask.host")
    found = violations(reordered(plan, "driver", driver))
    assert [each.code for each in found] == ["SW-WAR-HOST-HOST"]
    assert "run bitmask.host later on 'driver', after commit.host.advance" in found[0].repair
    assert [line.split(":")[0] for line in found[0].also] == [
        "RAW matchers",
        "WAW matchers",
        "RAW host_drafts",  # it follows the copy that commit waits for
        "WAR mask_host",
    ]


# --- where it is said -----------------------------------------------------------------------


def test_the_lines_of_both_nodes_are_told(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(
        "version: 1\norder: keep\nvalues: {out: {place: pinned}}\nnodes:\n"
        "  - name: copy\n    stream: copy\n    device: {writes: [out]}\n"
        "  - name: commit\n    host: {reads: [out]}\n"
    )
    plan = planned(str(path))
    mutant = replace(plan, waits=())
    [found] = [each for each in violations(mutant) if each.hazard == "RAW"]
    assert "node 'copy' (line 5)" in found.message
    assert "node 'commit' (line 8)" in found.message
    assert found.line == 8
    assert [access["line"] for access in accesses(found)] == [5, 8]


def accesses(found: Violation) -> list[dict[str, object]]:
    value = found.to_json()["accesses"]
    assert isinstance(value, list)
    return value


def test_the_error_has_all_causes_as_data() -> None:
    plan = compile_plan(decode())
    mutant = replace(plan, waits=())
    with pytest.raises(UnsoundPlan) as caught:
        verify(mutant)
    error = caught.value
    assert error.violations == tuple(violations(mutant))
    assert error.code == error.violations[0].code
    causes = error.to_json()["violations"]
    assert isinstance(causes, list)
    assert [cause["code"] for cause in causes] == [each.code for each in error.violations]
    assert all(cause["repair"] and cause["path"] is not None for cause in causes)


# --- codes and their sections ---------------------------------------------------------------


def raised() -> set[str]:
    """Every code in the package: as a class has it, and as an error is raised with it."""
    folders = [path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"]
    sources = [source for folder in folders for source in folder.rglob("*.py")]
    assert len(sources) > 100
    return {
        code
        for source in sources
        for code in re.findall(r'"(SW-[A-Z]+(?:-[A-Z]+)*)"', source.read_text(encoding="utf-8"))
    }


def test_every_code_has_a_section_and_every_section_a_code() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    sections = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    explained = {section.partition("\n")[0]: section for section in sections}
    assert len(explained) == len(sections), "no code has two sections"
    assert explained.keys() == raised()
    for code, section in explained.items():
        assert f"[`{code}`](#{code.lower()})" in page, f"{code} is in no table"
        assert "```" in section or code == "SW-ORDER", f"{code} has no example"


def test_a_race_code_is_its_hazard_and_the_two_sides() -> None:
    assert len(RACES) == len(RACE_CODES) == 12
    for (hazard, first, second), code in RACE_CODES.items():
        assert code == f"SW-{hazard}-{first}-{second}".upper()
