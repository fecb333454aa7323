"""The picture of a sweep: bars in a terminal, and a standalone SVG."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from stepweave.views import svg
from stepweave.views.plot import Sample, Series, chart, plot_svg
from tests.views.test_texts import matches_golden

BENT = tuple(
    Sample(f"{n / 4:g}", max(200.0, n * 100.0), "A" if n < 2 else "B", "host" if n < 2 else "gpu")
    for n in range(1, 9)
)
SVG = "{http://www.w3.org/2000/svg}"


def drawn(*series: Series, label: str = "scale.forward") -> ElementTree.Element:
    return ElementTree.fromstring(plot_svg(series, heading="a sweep", label=label))


def groups(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [g for g in root.iter(f"{SVG}g") if g.get("class") == kind]


def place(point: ElementTree.Element) -> tuple[float, float]:
    circle = point.find(f"{SVG}circle")
    assert circle is not None
    return float(circle.get("cx", "")), float(circle.get("cy", ""))


def heights(lines: list[str]) -> list[int]:
    """The height of each bar in eighths of a row."""
    bars = [line.split("┤")[-1].split("│")[-1] for line in lines[:8]]
    wide = max(map(len, bars))
    columns = zip(*(bar.ljust(wide) for bar in bars), strict=True)
    found = [sum(" ▁▂▃▄▅▆▇█".index(letter) for letter in column) for column in columns]
    return [height for height, before in zip(found, [0, *found], strict=False) if not before]


def test_the_chart_reads_as_it_did() -> None:
    matches_golden("sweep_chart.txt", "\n".join(chart(BENT)) + "\n")


def test_bars_are_as_high_as_periods_are_long() -> None:
    lines = chart(BENT)
    assert heights(lines) == [round(s.period_us / 800 * 64) for s in BENT if s.period_us]
    assert [lines[0].split()[0], lines[4].split()[0], lines[8].split()[0]] == ["800", "400", "0"]


def test_letters_stand_where_the_cycle_changes() -> None:
    lines = chart(BENT)
    values, letters = lines[-2], lines[-1]
    assert letters.split() == ["A", "B"]
    assert letters.index("B") == values.index("0.5")


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("count", [1, 2, 30, 200])
def test_a_chart_is_never_wider_than_asked(width: int, count: int) -> None:
    samples = [Sample(f"{n / 7:.6g}", 1000.0 + n, "A") for n in range(count)]
    lines = chart(samples, width=width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 11


def test_refused_values_are_crossed_and_nothing_is_drawn_of_nothing() -> None:
    lines = chart([Sample("1", None, ""), Sample("2", 10.0, "A")])
    assert "×××" in lines[7]
    assert not any("×" in line for line in lines[:7])
    assert chart([Sample("1", None, "")]) == []
    assert chart([Sample("1", 0.0, "A")]) == []


def test_points_lie_in_proportion_to_values_and_periods() -> None:
    places = [place(point) for point in groups(drawn(Series(BENT)), "point")]
    steps = [b[0] - a[0] for a, b in pairwise(places)]
    assert steps == pytest.approx([steps[0]] * 7, abs=0.2)
    assert places[0][1] == places[1][1]  # both 200 µs
    falls = [a[1] - b[1] for a, b in pairwise(places[1:])]
    assert falls == pytest.approx([falls[0]] * 6, abs=0.2)
    assert falls[0] > 10


def test_a_change_of_the_critical_cycle_is_marked_between_its_values() -> None:
    root = drawn(Series(BENT))
    (change,) = groups(root, "change")
    assert (change.get("data-before"), change.get("data-after")) == ("A", "B")
    line = change.find(f"{SVG}line")
    assert line is not None
    first, second = (place(point)[0] for point in groups(root, "point")[:2])
    assert first < float(line.get("x1", "")) < second
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert any(text and "A: host" in text and "B: gpu" in text for text in texts)


def test_the_root_is_a_titled_standalone_image_with_light_and_dark_colours() -> None:
    text = plot_svg([Series(BENT)], heading="a <sweep> & more", label="k")
    root = ElementTree.fromstring(text)
    assert (root.get("class"), root.get("role")) == ("view plot", "img")
    assert root.get("viewBox")
    title = root.find(f"{SVG}title")
    assert title is not None
    assert title.text == "a <sweep> & more"
    assert "prefers-color-scheme:dark" in text
    assert "@wait" not in text  # every colour is filled in
    assert text == plot_svg([Series(BENT)], heading="a <sweep> & more", label="k")


def test_every_point_has_a_text_to_hover() -> None:
    for point, sample in zip(groups(drawn(Series(BENT)), "point"), BENT, strict=True):
        title = point.find(f"{SVG}title")
        assert title is not None
        assert title.text == (
            f"scale.forward {sample.value}: {sample.period_us:g} µs a step, "
            f"critical cycle {sample.cycle}"
        )


def test_texts_stay_inside_and_tick_labels_do_not_meet() -> None:
    many = tuple(Sample(f"{n * 1000}", n * 1e6 + 1, "A") for n in range(60))
    root = drawn(Series(many))
    ticks = [t for t in root.iter(f"{SVG}text") if t.get("text-anchor") == "middle"]
    values = [t for t in ticks if re.fullmatch(r"\d+", t.text or "")]
    halves = [svg.text_width(t.text or "", 11) / 2 for t in values]
    spans = [(float(t.get("x", "")), half) for t, half in zip(values, halves, strict=True)]
    assert 5 < len(values) < 40
    for (x, half), (after, other) in pairwise(spans):
        assert after - other > x + half
    assert all(0 <= float(t.get("x", "")) <= 760 for t in root.iter(f"{SVG}text"))


def test_values_that_are_no_numbers_stand_side_by_side() -> None:
    words = Series((Sample("serial", 30.0, "A"), Sample("threads", 20.0, "B")))
    first, second = (place(point)[0] for point in groups(drawn(words), "point"))
    assert first < second


def test_several_curves_have_colours_and_a_legend() -> None:
    root = drawn(Series(BENT, "depth 1"), Series(BENT[:3], "depth 2"))
    curves = [p.get("class") for p in root.iter(f"{SVG}path") if "curve" in p.get("class", "")]
    assert curves == ["curve curve-0", "curve curve-1"]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "depth 1" in texts
    assert "depth 2" in texts
    assert len(groups(root, "point")) == 11
    assert groups(root, "change") == []


def test_refused_values_leave_a_gap() -> None:
    root = drawn(Series((Sample("1", None, ""), Sample("2", 5.0, "A"), Sample("3", 6.0, "A"))))
    assert [p.get("data-value") for p in groups(root, "point")] == ["2", "3"]
    assert len(groups(drawn(Series((Sample("1", None, ""),))), "point")) == 0


@pytest.mark.parametrize("count", [2, 14])
def test_names_of_curves_are_broken_into_lines_that_end_within_the_picture(count: int) -> None:
    names = [f"cost.bitmask.host {100 * n}" for n in range(count)]
    root = drawn(*(Series(BENT[:2], name) for name in names))
    texts = {text.text: text for text in root.iter(f"{SVG}text")}
    width, height = map(float, root.get("viewBox", "").split()[2:])
    rows = {float(texts[name].get("y", "")) for name in names}
    for name in names:
        end = float(texts[name].get("x", "")) + svg.text_width(name, 11)
        assert end <= width
    assert max(rows) < height < max(rows) + 16
    assert len(rows) == (1 if count == 2 else 4)


def test_all_letters_of_a_curve_are_explained_below_it() -> None:
    samples = [
        Sample(f"{n}", 1.0 + n, letter, "compute + driver") for n, letter in enumerate("ABCDEFGH")
    ]
    root = drawn(Series(tuple(samples)))
    said = " ".join(text.text or "" for text in root.iter(f"{SVG}text"))
    assert all(f"{letter}: compute + driver" in said for letter in "ABCDEFGH")
