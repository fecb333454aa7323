"""Every incident: the safe form is derived, the buggy form refused, and shown to be wrong."""

from __future__ import annotations

import os
import re

import pytest

from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.verifier.verify import verify, violations
from stepweave.nodes.registry import BETWEEN_STAGES, known_kinds
from tests.graph import oracle
from tests.incidents.corpus import INCIDENTS
from tests.incidents.incident import Derived, Incident, Mistake, Refusal, refused, written
from tests.installed import ROOT

MISTAKES = [(each, mistake) for each in INCIDENTS for mistake in each.mistakes]
REFUSALS = [(each, refusal) for each in INCIDENTS for refusal in each.refusals]


def named(value: object) -> str:
    if isinstance(value, Incident):
        return value.id
    return value.what if isinstance(value, Mistake | Refusal) else ""


def planned(derived: Derived) -> Plan:
    plan = compile_plan(derived.graph())
    verify(plan)
    return plan


@pytest.mark.parametrize("incident", [each for each in INCIDENTS if each.derived], ids=named)
def test_what_makes_it_safe_is_derived(incident: Incident) -> None:
    derived = incident.derived
    assert derived is not None
    plan = planned(derived)
    assert set(written(plan)) == set(derived.waits)
    assert {name: plan.slots[name] for name in derived.slots} == derived.slots
    stated = {
        f"{edge.hazard} {edge.value}: {edge.source} → {edge.target} {edge.distance:+d}"
        for edge in plan.edges
    }
    assert set(derived.orders) <= stated
    assert oracle.unordered_pairs(plan) == []
    assert oracle.run_some_schedules(plan, seed=1, schedules=4) == []


@pytest.mark.parametrize(("incident", "mistake"), MISTAKES, ids=named)
def test_the_mistake_is_one_report_that_its_author_would_understand(
    incident: Incident, mistake: Mistake
) -> None:
    assert incident.derived is not None
    found = violations(mistake.plan(planned(incident.derived)))
    assert len(found) == 1, "\n".join(map(str, found))
    assert found[0].code == mistake.code
    for words in (*mistake.words, "repair"):
        assert words in found[0].message, found[0].message


@pytest.mark.parametrize(("incident", "mistake"), MISTAKES, ids=named)
def test_the_mistake_gives_wrong_results_in_some_interleaving(
    incident: Incident, mistake: Mistake
) -> None:
    assert incident.derived is not None
    buggy = mistake.plan(planned(incident.derived))
    assert oracle.unordered_pairs(buggy)
    wrong = oracle.run_some_schedules(buggy, seed=7, schedules=60)
    assert wrong, "no schedule shows it"


@pytest.mark.sampled(8)
@pytest.mark.parametrize("incident", [each for each in INCIDENTS if each.safe], ids=named)
def test_the_engine_is_safe(incident: Incident) -> None:
    assert incident.safe is not None
    incident.safe()


@pytest.mark.parametrize(("incident", "refusal"), REFUSALS, ids=named)
def test_the_buggy_form_is_refused(incident: Incident, refusal: Refusal) -> None:
    told = refused(refusal.attempt)
    assert told.by == refusal.by, told
    for words in refusal.words:
        assert words in told.text, told.text


def test_every_incident_has_a_safe_form_and_a_refused_one() -> None:
    for incident in INCIDENTS:
        assert incident.derived or incident.safe, incident.id
        assert incident.mistakes or incident.refusals, incident.id
    assert len({incident.id for incident in INCIDENTS}) == len(INCIDENTS)


def test_the_corpus_has_every_row() -> None:
    rows = {"A": 9, "B": 3, "C": 7, "D": 6, "E": 6, "F": 4, "G": 17, "H": 7}
    assert [each.id for each in INCIDENTS] == [
        f"{group}{number}" for group, count in rows.items() for number in range(1, count + 1)
    ]


def test_every_kind_of_node_has_an_incident() -> None:
    """By the registry, so that a new kind comes with one."""
    about = {kind for incident in INCIDENTS for kind in incident.about}
    assert about == {*known_kinds(installed=False), *BETWEEN_STAGES}


@pytest.mark.parametrize(
    ("incident", "mistake"), [each for each in MISTAKES if each[0].about], ids=named
)
def test_a_mistake_is_reported_of_a_node_that_the_incident_is_about(
    incident: Incident, mistake: Mistake
) -> None:
    assert incident.derived is not None
    plan = planned(incident.derived)
    [found] = violations(mistake.plan(plan))
    words = re.findall(r"[\w.]+", found.message.splitlines()[0])
    racing = {plan.graph.vertices[op].node.kind for op in words if op in plan.graph.vertices}
    assert racing & set(incident.about)


def test_the_page_is_that_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_incidents  # type: ignore[import-not-found]

    if os.environ.get("UPDATE_GOLDEN"):
        make_incidents.main()
    shown = (ROOT / "docs" / "incidents.md").read_text(encoding="utf-8")
    assert shown == make_incidents.page(), "run python docs/make_incidents.py"
