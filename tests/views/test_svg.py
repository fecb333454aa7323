"""The three drawings: well-formed, stable, complete, and no label on another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from stepweave.cli.planned import planned
from stepweave.configs.load import shipped
from stepweave.graph.answers.timetable import timetable
from stepweave.graph.node import Node, Op, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.views.svg import DARK, LIGHT, flat, number, text_width
from stepweave.views.svg_dag import dag_svg
from stepweave.views.svg_lanes import lanes_svg
from stepweave.views.svg_slots import slots_svg
from tests.graph.pipelines import decode, device_node, reads
from tests.graph.shipped_plans import GRAPHS
from tests.graph.strategies import examples, plans
from tests.views.drawings import (
    SVG,
    Box,
    canvas,
    groups,
    outside,
    overlaps,
    parsed,
    rect_box,
    text_box,
    texts,
)

VIEWS: dict[str, Callable[[Plan], str]] = {"lanes": lanes_svg, "dag": dag_svg, "slots": slots_svg}
COSTS = {"forward.device": 4000, "draft.device": 900, "bitmask.host": 900, "sample.device": 7}


def shipped_plans(every: int) -> Iterator[tuple[str, Plan]]:
    """One in so many shipped configs, with its hints and with very unequal costs, at some depth."""
    for place, name in [*enumerate(shipped())][::every]:
        for depth in (str(1 + place % 3),) if name not in GRAPHS else ("",):
            plan = planned(name, {"depth": depth} if depth else {})
            yield f"{name} at depth {depth}", plan
            known = {op: cost for op, cost in COSTS.items() if op in plan.graph.vertices}
            if depth:
                costs = {f"costs.{op}": str(cost) for op, cost in known.items()}
                yield f"{name} with costs", planned(name, {"depth": depth, **costs})


@pytest.fixture(scope="module", params=[4, pytest.param(1, marks=pytest.mark.nightly)])
def chosen(request: pytest.FixtureRequest) -> list[tuple[str, Plan]]:
    return [*shipped_plans(every=request.param)]


@pytest.fixture(scope="module")
def shipped_drawings(chosen: list[tuple[str, Plan]]) -> dict[str, str]:
    return {
        f"{view} of {name}": draw(plan) for name, plan in chosen for view, draw in VIEWS.items()
    }


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile_plan(decode())


def large(nodes: int = 100) -> StepGraph:
    """Twice as many ops as nodes, on three streams, each reading the one before and a carry."""
    listed = [
        device_node(
            f"stage_{k}",
            f"stream_{k % 3}",
            reads=(*reads(f"v{k - 1}"), Read(f"v{k // 2}", 1)) if k else (),
            writes=(f"v{k}",),
            cost_us=5 + 40 * (k % 7),
        )
        for k in range(nodes)
    ]
    values = [Value(f"v{k}", "device", "slots", 2) for k in range(nodes)]
    return StepGraph.build(listed, values, order="keep", name="large")


def test_no_two_labels_of_a_shipped_plan_overlap(shipped_drawings: dict[str, str]) -> None:
    found = {name: pair for name, svg in shipped_drawings.items() for pair in overlaps(parsed(svg))}
    assert found == {}


def test_no_label_of_a_shipped_plan_leaves_the_picture(shipped_drawings: dict[str, str]) -> None:
    found = {name: outside(parsed(svg)) for name, svg in shipped_drawings.items()}
    assert {name: words for name, words in found.items() if words} == {}


def test_names_of_ops_stay_in_their_boxes(shipped_drawings: dict[str, str]) -> None:
    for name, svg in shipped_drawings.items():
        for op in groups(parsed(svg), "op"):
            box = next(rect_box(rect) for rect in op.iter(f"{SVG}rect"))
            for label in texts(op):
                assert label.within(box, slack=1), f"{label.words} in {name}"


def test_labels_of_arrows_stay_off_boxes(shipped_drawings: dict[str, str]) -> None:
    for name, svg in shipped_drawings.items():
        root = parsed(svg)
        boxes = [rect_box(rect) for op in groups(root, "op") for rect in op.iter(f"{SVG}rect")]
        notes = [each for each in root.iter(f"{SVG}text") if "-words" in each.get("class", "")]
        assert notes or name.startswith("slots"), name
        for label in map(text_box, notes):
            assert not any(label.meets(box) for box in boxes), f"{label.words} in {name}"


def test_arrows_run_past_the_names_in_lanes_between(shipped_drawings: dict[str, str]) -> None:
    crossings = 0
    for name, svg in shipped_drawings.items():
        root = parsed(svg)
        names = [label for op in groups(root, "op") for label in texts(op)]
        for wait in groups(root, "wait") if name.startswith("lanes") else ():
            path = wait.findall(f"{SVG}path")[-1].attrib["d"]
            for x, y, y2 in re.findall(r" ([\d.]+) ([\d.]+)L[\d.]+ ([\d.]+)", path):
                top, bottom = sorted((float(y), float(y2)))
                line = Box(float(x) - 1, top, float(x) + 1, bottom)
                crossings += 1
                assert not any(line.meets(label) for label in names), f"{path} in {name}"
    assert crossings > 50


def test_every_op_of_a_shipped_plan_can_be_read_without_pointing_at_it(
    shipped_drawings: dict[str, str],
) -> None:
    for name, svg in shipped_drawings.items():
        root = parsed(svg)
        if name.startswith("lanes"):
            assert not any("[" in each.words for each in texts(root)), f"{name} needs no key"
        for op in groups(root, "op"):
            said = "".join(each.words for each in texts(op))
            short = re.sub(r"\.(host|device)", "", op.attrib["data-op"])
            assert said.startswith(short), name
            if name.startswith("lanes"):
                assert said == f"{short} {op.attrib['data-step']}".replace("  ", " ") or (
                    said == f"{short}{op.attrib['data-step']}"
                ), name


def test_a_name_too_long_for_any_box_stands_in_the_key() -> None:
    long = "a_step_of_the_pipeline_whose_name_has_no_end"
    graph = StepGraph.build(
        [Node("first", (Op(cost_us=1000),)), Node(long, (Op(cost_us=1),))], [], order="keep"
    )
    root = parsed(lanes_svg(compile_plan(graph)))
    assert {w.words for op in groups(root, "op") for w in texts(op) if "[" in w.words} == {"[1]"}
    assert f"[1] {long}.host" in [each.words for each in texts(root)]
    assert (list(overlaps(root)), outside(root)) == ([], [])


@pytest.mark.parametrize("view", VIEWS)
def test_a_drawing_stands_alone(view: str, plan: Plan) -> None:
    svg = VIEWS[view](plan)
    root = parsed(svg)
    assert root.tag == f"{SVG}svg"
    assert root.get("class") == f"view {view}"
    assert root.get("role") == "img"
    assert root[0].tag == f"{SVG}title"
    assert root.get("aria-labelledby") == root[0].get("id")
    assert svg.count("http") == 1
    assert not re.search("<image|<script|@import", svg)
    assert not re.search(r"url\((?!#)", svg)
    ids = [each.attrib["id"] for each in root.iter() if "id" in each.attrib]
    assert all(each.startswith(f"{view}-") for each in ids)
    assert len(ids) == len(set(ids))
    for used in re.findall(r"url\(#([^)]+)\)", svg):
        assert used in ids


@pytest.mark.parametrize("view", VIEWS)
def test_numbers_have_at_most_one_decimal(view: str, plan: Plan) -> None:
    body = VIEWS[view](plan).split("</style>")[1]
    assert (
        re.findall(r"\d\.\d\d|\de[-+]?\d| -0[ \"]", re.sub(r"<(text|title).*?</\1>", "", body))
        == []
    )


@pytest.mark.parametrize("view", VIEWS)
def test_every_colour_has_a_plain_a_light_and_a_dark_form(view: str, plan: Plan) -> None:
    svg = VIEWS[view](plan)
    style = svg.split("<style>")[1].split("</style>")[0]
    used = set(re.findall(r"var\(--sw-([\w-]+)\)", style))
    assert used <= set(LIGHT) == set(DARK)
    for key, colour, again, name in re.findall(
        r"([\w-]+):(#\w+);([\w-]+):var\(--sw-([\w-]+)\)", style
    ):
        assert (key, colour) == (again, LIGHT[name])
    assert style.count("var(") == len(re.findall(r"#\w{6};[\w-]+:var\(", style))
    assert not re.search(r"var\(|@media", flat(svg))
    assert parsed(flat(svg)).get("class") == f"view {view}"
    assert not re.search(r"#[0-9a-fA-F]{6}", svg.split("</style>")[1])


def test_lanes_have_every_op_of_every_step_where_the_timetable_has_it(plan: Plan) -> None:
    root, times = parsed(lanes_svg(plan, steps=4)), timetable(plan)
    ops = groups(root, "op")
    found = Counter((op.get("data-op"), op.get("data-step")) for op in ops)
    assert found == Counter((op, str(step)) for op in plan.graph.vertices for step in range(4))
    begun = []
    for op in ops:
        vertex = plan.graph.vertices[op.attrib["data-op"]]
        assert (op.get("data-node"), op.get("data-actor")) == (vertex.node.name, vertex.actor)
        step = int(op.attrib["data-step"])
        box = next(rect_box(rect) for rect in op.iter(f"{SVG}rect"))
        begun.append((times.starts[vertex.name] + step * times.period_us, box.left))
        begun.append((times.ends[vertex.name] + step * times.period_us, box.right))
    for (at, x), (later, there) in pairwise(sorted(begun)):
        assert there >= x - 0.21, f"{at} and {later} µs are in the wrong order"


def test_a_step_looks_like_the_next(plan: Plan) -> None:
    widths: dict[str, set[float]] = {}
    for op in groups(parsed(lanes_svg(plan, steps=4)), "op"):
        box = next(rect_box(rect) for rect in op.iter(f"{SVG}rect"))
        widths.setdefault(op.attrib["data-op"], set()).add(box.right - box.left)
    assert all(max(each) - min(each) < 0.21 and min(each) > 16 for each in widths.values())


def test_the_ruler_marks_just_where_a_microsecond_is_drawn_wider_than_elsewhere(
    chosen: list[tuple[str, Plan]],
) -> None:
    for name, each in chosen:
        root, times = parsed(lanes_svg(each)), timetable(each)
        marks = [path_ends(g) for g in groups(root, "stretch")]
        drawn = []  # of each box: its ends, and how wide a microsecond is in it
        for op in groups(root, "op"):
            box = next(rect_box(rect) for rect in op.iter(f"{SVG}rect"))
            lasts = times.ends[op.attrib["data-op"]] - times.starts[op.attrib["data-op"]]
            drawn.append((box.left, box.right, (box.right - box.left) / lasts))

        def meets(mark: tuple[float, float], left: float, right: float) -> bool:
            return mark[0] < right - 1 and left + 1 < mark[1]

        plain = [px for left, right, px in drawn if not any(meets(m, left, right) for m in marks)]
        if plain:
            assert max(plain) < min(plain) * 1.05, f"{name}: a stretch has no mark"
            bare = []  # marks before the first step's op of a stretch that comes again every period
            for mark in marks:
                over = [px for left, right, px in drawn if meets(mark, left, right)]
                if over:
                    assert max(over) > 1.02 * min(plain), f"{name}: a mark has no stretch"
                else:
                    bare.append(mark)
            with_ops = [right - left for left, right in marks if (left, right) not in bare]
            for left, right in bare:
                assert right - left == pytest.approx(
                    min(with_ops, key=lambda w: abs(w - right + left))
                )


def path_ends(g: Any) -> tuple[float, float]:
    """From where to where a zigzag runs."""
    path = next(g.iter(f"{SVG}path")).attrib["d"]
    left = float(path[1:].split()[0])
    return left, left + sum(float(part.split()[0]) for part in path.split("l")[1:])


@pytest.mark.parametrize("draw", [lanes_svg, dag_svg])
def test_every_wait_is_drawn_and_says_what_it_protects(
    draw: Callable[[Plan], str], plan: Plan
) -> None:
    root = parsed(draw(plan))
    drawn = groups(root, "wait")
    assert {each.get("data-wait") for each in drawn} == {str(k) for k in range(len(plan.waits))}
    labels = [each.words for each in texts(root)]
    for each in drawn:
        wait = plan.waits[int(each.attrib["data-wait"])]
        assert (each.get("data-from"), each.get("data-to")) == (wait.source, wait.target)
        assert each.get("data-distance") == str(wait.distance)
        said = each.findtext(f"{SVG}title") or ""
        for protected in wait.protects:
            assert f"{protected.hazard} {protected.value}" in said
    assert any(label.startswith("RAW sampled") for label in labels)
    assert any(label.startswith("RAW out") for label in labels)


def test_lanes_ghost_each_ordering_between_actors_once(plan: Plan) -> None:
    actor = {name: vertex.actor for name, vertex in plan.graph.vertices.items()}
    waits = {(wait.source, wait.target, wait.distance) for wait in plan.waits}
    wanted = {
        (edge.source, edge.target, edge.distance)
        for edge in plan.edges
        if actor[edge.source] != actor[edge.target] and abs(edge.distance) < 3
    } - waits
    found = Counter()  # type: Counter[tuple[str | None, str | None, int]]
    for ghost in groups(parsed(lanes_svg(plan)), "ghost"):
        key = ghost.get("data-from"), ghost.get("data-to"), int(ghost.attrib["data-distance"])
        found[key] += 1
        for index in ghost.attrib["data-edges"].split(","):
            edge = plan.edges[int(index)]
            assert (edge.source, edge.target, edge.distance) == key
    assert set(found.values()) == {1}
    assert wanted <= set(found)
    carried = {key for key in found if key not in wanted}
    assert carried == {  # sampled@-1 and finished@-2, each on one actor
        ("forward.device", "prepare.device", 1),
        ("commit.host", "schedule.host", 2),
    }


@pytest.mark.parametrize("draw", [lanes_svg, dag_svg])
def test_values_read_in_a_later_step_are_marked(draw: Callable[[Plan], str], plan: Plan) -> None:
    labels = [each.words for each in texts(parsed(draw(plan)))]
    assert "sampled@-1" in labels
    assert "finished@-2" in labels


def test_lanes_outline_the_critical_cycle_and_name_the_period(plan: Plan) -> None:
    root = parsed(lanes_svg(plan))
    outlined = {
        op.attrib["data-op"]
        for op in groups(root, "op")
        if "critical" in next(op.iter(f"{SVG}rect")).attrib["class"].split()
    }
    assert outlined == {op for op, _ in plan.critical_cycle}
    words = [each.words for each in texts(root)]
    assert any(line.startswith(f"{plan.period_us:,.0f} µs, bound by") for line in words)
    for value, copies in plan.slots.items():
        place = plan.graph.values[value].place
        many = "fresh" if copies is None else f"{copies} slot{'s' if copies > 1 else ''}"
        assert f"{many}, {place}" in words[words.index(value) + 1]


def test_lanes_are_drawn_over_as_many_steps_as_show_each_wait() -> None:
    plan = compile_plan(decode(staging_slots=1))
    assert max(wait.distance for wait in plan.waits) == 1
    root = parsed(lanes_svg(plan, steps=1))
    assert {op.get("data-step") for op in groups(root, "op")} == {"0", "1"}
    assert len({each.get("data-wait") for each in groups(root, "wait")}) == len(plan.waits)


def test_the_graph_has_one_box_for_each_op_and_lines_run_forward(plan: Plan) -> None:
    root = parsed(dag_svg(plan))
    boxes = {
        op.attrib["data-op"]: next(rect_box(rect) for rect in op.iter(f"{SVG}rect"))
        for op in groups(root, "op")
    }
    assert boxes.keys() == plan.graph.vertices.keys()
    assert all(not a.meets(b) for x, a in boxes.items() for y, b in boxes.items() if x < y)
    lines = [g for kind in ("order", "launch", "wait", "data") for g in groups(root, kind)]
    assert Counter(each.get("class") for each in lines)["launch"] == 3
    for each in lines:
        a, b = boxes[each.attrib["data-from"]], boxes[each.attrib["data-to"]]
        ends = re.findall(r"-?[\d.]+ -?[\d.]+", each.findall(f"{SVG}path")[-1].attrib["d"])
        (x, y), (x2, y2) = (tuple(map(float, end.split())) for end in (ends[0], ends[-1]))
        assert (x, x2) == pytest.approx((a.right, b.left), abs=0.11)
        assert a.top <= y <= a.bottom
        assert b.top <= y2 <= b.bottom
        if each.get("data-distance") == "0":
            assert a.right < b.left


def test_lines_of_the_graph_run_over_no_box(shipped_drawings: dict[str, str]) -> None:
    for name, svg in shipped_drawings.items():
        root = parsed(svg)
        boxes = [rect_box(next(op.iter(f"{SVG}rect"))) for op in groups(root, "op")]
        for kind in ("order", "launch", "wait", "data") if name.startswith("dag") else ():
            for each in groups(root, kind):
                path = each.findall(f"{SVG}path")[-1].attrib["d"]
                corners = re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)
                for (x, y), (x2, y2) in pairwise((float(a), float(b)) for a, b in corners):
                    left, right, top, bottom = min(x, x2), max(x, x2), min(y, y2), max(y, y2)
                    assert not any(
                        left < b.right - 0.2
                        and b.left + 0.2 < right
                        and top < b.bottom
                        and b.top < bottom
                        for b in boxes
                    ), f"{each.findtext(f'{SVG}title')} in {name}"


def test_the_graph_draws_every_flow_of_data(plan: Plan) -> None:
    root = parsed(dag_svg(plan))
    drawn = {int(each.attrib["data-edges"]) for each in groups(root, "data")}
    assert drawn == {
        k
        for k, edge in enumerate(plan.edges)
        if edge.hazard == "RAW" and edge.source != edge.target
    }


def test_slots_show_every_version_in_its_slot_for_its_whole_life(plan: Plan) -> None:
    root, times = parsed(slots_svg(plan, steps=5)), timetable(plan)
    found = {}
    for each in groups(root, "version"):
        key = each.attrib["data-value"], int(each.attrib["data-step"])
        found[key] = each.attrib["data-slot"], rect_box(next(each.iter(f"{SVG}rect")))
    for value, copies in plan.slots.items():
        for step in range(5):
            assert found[value, step][0] == str(step % copies if copies else 0)
    ends: dict[tuple[str, int], float] = {}
    for edge in plan.edges:
        if edge.hazard == "RAW" and edge.value in plan.slots:
            for step in range(5):
                end = times.ends[edge.target] + (step + edge.carry) * times.period_us
                ends[edge.value, step] = max(ends.get((edge.value, step), 0.0), end)
    begins = {
        (value, step): times.starts[op.name] + step * times.period_us
        for op in plan.graph.vertices.values()
        for value in op.op.writes
        if value in plan.slots
        for step in range(5)
    }
    edges = [(begins[key], box.left) for key, (_, box) in found.items()]
    edges += [(ends[key], box.right) for key, (_, box) in found.items()]
    for (_, x), (_, there) in pairwise(sorted(edges)):
        assert there >= x - 0.21


def test_versions_in_one_slot_do_not_overlap(shipped_drawings: dict[str, str]) -> None:
    for name, svg in shipped_drawings.items():
        root = parsed(svg)
        bars = [rect_box(next(each.iter(f"{SVG}rect"))) for each in groups(root, "version")]
        assert bool(bars) == name.startswith("slots")
        for k, bar in enumerate(bars):
            assert not any(bar.meets(other) for other in bars[k + 1 :]), name


def test_slots_show_every_access(plan: Plan) -> None:
    found = Counter(
        (each.get("data-value"), each.get("data-op"), each.get("data-mode"))
        for each in groups(parsed(slots_svg(plan, steps=2)), "access")
    )
    wanted: Counter[tuple[str, str, str]] = Counter()
    for op in plan.graph.vertices.values():
        wanted.update((value, op.name, "write") for value in op.op.writes if value in plan.slots)
        wanted.update(
            (read.name, op.name, "read") for read in op.op.reads if read.name in plan.slots
        )
    assert found == Counter({key: 2 * many for key, many in wanted.items()})


def test_slots_draw_the_wait_that_guards_a_single_slot() -> None:
    guarded = parsed(slots_svg(compile_plan(decode(staging_slots=1))))
    assert {each.get("data-from") for each in groups(guarded, "wait")} == {"prepare.device"}
    assert {each.get("data-to") for each in groups(guarded, "wait")} == {"prepare.host"}
    assert groups(parsed(slots_svg(compile_plan(decode(staging_slots=2)))), "wait") == []


@pytest.mark.parametrize("view", VIEWS)
def test_everything_that_can_be_pointed_at_says_what_it_is(view: str, plan: Plan) -> None:
    root = parsed(VIEWS[view](plan))
    kinds = ("op", "wait", "ghost", "order", "launch", "data", "version", "access")
    marked = [each for kind in kinds for each in groups(root, kind)]
    assert len(marked) > 10
    assert all(each.findtext(f"{SVG}title") for each in marked)


@examples(12)
@given(plans())
def test_any_plan_can_be_drawn_the_same_way_twice(plan: Plan) -> None:
    again = compile_plan(plan.graph)
    for draw in VIEWS.values():
        svg = draw(plan)
        assert svg == draw(again)
        root = parsed(svg)
        assert list(overlaps(root)) == []
        assert outside(root) == []


@pytest.mark.parametrize("view", VIEWS)
def test_a_large_graph_is_drawn_without_collisions(view: str) -> None:
    plan = compile_plan(large(30))
    root = parsed(VIEWS[view](plan))
    if view != "slots":
        drawn = {op.get("data-op") for op in groups(root, "op")}
        assert drawn == plan.graph.vertices.keys()
    assert list(overlaps(root)) == []
    assert outside(root) == []


@pytest.mark.parametrize("view", VIEWS)
def test_names_are_escaped(view: str) -> None:
    node = Node('a<b & "c"\x07', (Op((), ("v&w",), cost_us=5),))
    reader = Node("漢字の名前", (Op(reads("v&w"), cost_us=5),))
    graph = StepGraph.build([node, reader], [Value("v&w")], order="keep", name="x<y>")
    root = parsed(VIEWS[view](compile_plan(graph)))
    assert "x<y>" in (root.findtext(f"{SVG}title") or "")
    assert (list(overlaps(root)), outside(root)) == ([], [])


@pytest.mark.parametrize("view", VIEWS)
def test_a_title_may_be_given_and_a_long_one_stays_inside(view: str, plan: Plan) -> None:
    draws: dict[str, Callable[..., str]] = {**VIEWS}
    root = parsed(draws[view](plan, title="word " * 200))
    assert root.findtext(f"{SVG}title") == "word " * 200
    assert outside(root) == []
    assert texts(root)[0].words.endswith("…")


def test_numbers_are_short() -> None:
    assert [number(x) for x in (1, 1.04, -0.04, 2.55, 100.0)] == ["1", "1", "0", "2.5", "100"]


def test_the_metrics_are_those_of_the_font() -> None:
    """Widths of Helvetica in the public font metrics: "Hello" is 722 + 556 + 222 + 222 + 556."""
    assert text_width("Hello", 1000) == pytest.approx(2278, rel=0.05)
    assert text_width("Hello", 10, bold=True) > text_width("Hello", 10) >= 22.78
    assert text_width("漢", 10) >= 10


def test_the_canvas_is_wide_enough_for_a_page_and_grows_with_steps(plan: Plan) -> None:
    assert canvas(parsed(lanes_svg(plan))).right == 1200
    assert canvas(parsed(lanes_svg(plan, steps=12))).right > 2400
