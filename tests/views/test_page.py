"""The page as text: it holds the whole plan, runs one script, asks nobody, and says so."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from hypothesis import given

from stepweave.graph.answers.explain import explain_wait
from stepweave.graph.node import Node, Op, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.events import plan_edges
from stepweave.graph.step_graph import StepGraph
from stepweave.views.html import embedded
from stepweave.views.page import plan_page
from stepweave.views.page_data import nearest, page_data
from tests.graph.pipelines import decode
from tests.graph.strategies import examples, plans

EVIL = "</script><script>alert(1)</script>&\"'<!--"


class Reader(HTMLParser):
    """What a browser would make of it: elements with their attributes, and text outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.scripts: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.inside[-1:] == ["script"]:
            self.scripts[-1] += data
        elif self.inside[-1:] != ["style"]:
            self.words += data


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile_plan(decode(staging_slots=1))


@pytest.fixture(scope="module")
def text(plan: Plan) -> str:
    return plan_page(plan)


def evil_plan() -> Plan:
    graph = StepGraph.build(
        [
            Node(EVIL, (Op((), (EVIL + "v",), cost_us=10),), actor=EVIL + "a"),
            Node("reader", device=(Op((Read(EVIL + "v"),), cost_us=9),), stream="s"),
        ],
        [Value(EVIL + "v", "pinned", "slots", 1)],
        name=EVIL,
    )
    return compile_plan(graph)


def test_the_same_plan_gives_the_same_bytes(plan: Plan, text: str) -> None:
    assert plan_page(compile_plan(decode(staging_slots=1))) == text


def test_the_page_holds_the_plan_and_an_explanation_of_every_wait(plan: Plan, text: str) -> None:
    found = json.loads(Reader(text).scripts[0])
    assert found["plan"] == plan.to_json()
    for wait, said in zip(plan.waits, found["waits"], strict=True):
        explained = explain_wait(plan, wait)
        assert [each["title"] for each in said["protects"]] == [r.title for r in explained.protects]
        for line in explained.lines():
            assert line in Reader(text).words
    assert len(found["requirements"]) == len(plan.edges) + len(plan.launch_order)


def test_everything_is_in_the_file_and_nothing_is_asked_for(text: str) -> None:
    reader = Reader(text)
    for tag, attributes in reader.elements:
        for key, value in attributes.items():
            if key in {"src", "href", "xlink:href", "action", "data", "srcset", "poster"}:
                assert str(value).startswith(("#", "data:,")), (tag, key, value)
    assert {tag for tag, _ in reader.elements} & {
        "iframe",
        "object",
        "embed",
        "img",
        "base",
    } == set()
    assert not re.search(r"@import|url\((?!#)", text)
    views = [a["class"] for tag, a in reader.elements if tag == "svg"]
    assert views == ["view dag", "view lanes", "view slots"]


def test_the_policy_allows_no_script_but_the_pages_own(text: str) -> None:
    reader = Reader(text)
    policy = next(
        str(a["content"])
        for tag, a in reader.elements
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert [kind for tag, a in reader.elements if tag == "script" for kind in [a["type"]]] == [
        "application/json",
        "module",
    ]
    own = base64.b64encode(hashlib.sha256(reader.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{own}';" in policy
    assert not [key for _, a in reader.elements for key in a if key.startswith("on")]


def test_ids_are_unique(text: str) -> None:
    ids = [a["id"] for _, a in Reader(text).elements if "id" in a]
    assert len(ids) == len(set(ids))


def test_names_cannot_become_markup() -> None:
    reader = Reader(plan_page(evil_plan()))
    assert len(reader.scripts) == 2
    assert "alert" not in reader.scripts[1]
    assert EVIL + "v" in json.loads(reader.scripts[0])["values"]
    assert EVIL in reader.words


def test_embedded_data_comes_back_as_it_was() -> None:
    data = {"a": f"{EVIL}\u2028\u2029é→"}
    assert json.loads(embedded(data)) == data
    assert not re.search("[<>&\u2028\u2029]", embedded(data))


def test_the_nearest_steps_are_those_of_the_unrolled_plan(plan: Plan) -> None:
    """Relaxed one ordering at a time, as often as there are ops (Bellman 1958)."""
    ops, edges, found = list(plan.graph.vertices), list(plan_edges(plan)), nearest(plan)
    for source in ops:
        distance = {v: d for u, v, d, _ in edges if u == source}
        for u, v, d, _ in edges:
            if u == source:
                distance[v] = min(distance[v], d)
        for _ in ops:
            for u, v, d, _ in edges:
                if u in distance:
                    distance[v] = min(distance.get(v, 99), distance[u] + d)
        assert found[source] == {op: distance.get(op) for op in ops}


def test_tables_name_every_wait_requirement_value_and_op(plan: Plan, text: str) -> None:
    links = [a["href"] for tag, a in Reader(text).elements if tag == "a"]
    wanted = [
        *(f"#wait={k}" for k in range(len(plan.waits))),
        *(f"#requirement={k}" for k in range(len(plan.edges) + len(plan.launch_order))),
        *(f"#value={name}" for name in plan.graph.values),
        *(f"#op={name}" for name in plan.graph.vertices),
        *(f"#actor={name}" for name in plan.actors),
        *(f"#state={name}" for name in plan.graph.states),
    ]
    assert set(wanted) <= set(links)


def test_a_plan_without_waits_or_values_has_a_page() -> None:
    lone = compile_plan(StepGraph.build([Node("only", (Op(cost_us=1),))], [], name="lone"))
    reader = Reader(plan_page(lone, steps=1, title="mine"))
    assert ("h1", {}) in reader.elements
    assert "mine" in reader.words
    assert reader.words.count("None.") == 3
    assert page_data(lone)["waits"] == []


@given(plans())
@examples(8)
def test_every_plan_has_a_page(plan: Plan) -> None:
    reader = Reader(plan_page(plan, steps=2))
    found = json.loads(reader.scripts[0])
    assert found["plan"] == plan.to_json()
    drawn = {a["data-op"] for tag, a in reader.elements if a.get("class") == "op"}
    assert drawn == set(plan.graph.vertices)


def test_the_documented_keys_are_those_of_the_help() -> None:
    """The how-to and the page list the same keys."""
    from tests.installed import ROOT

    document = (ROOT / "docs" / "how-to" / "look-at-a-plan.md").read_text(encoding="utf-8")
    template = files("stepweave.views").joinpath("assets", "page.html").read_text("utf-8")
    section = document.split("## Keys")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(\S+?)`", section))
    shown = {key.replace("−", "-") for key in re.findall(r"<kbd>(.+?)</kbd>", template)}
    assert documented == shown - set("←→↑↓")
