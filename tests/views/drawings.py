"""What the tests of drawings need to read them: elements, and the boxes that texts take."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from stepweave.views.svg import text_width

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float
    words: str = ""

    def meets(self, other: Box, slack: float = 0.5) -> bool:
        return (
            self.left + slack < other.right
            and other.left + slack < self.right
            and self.top + slack < other.bottom
            and other.top + slack < self.bottom
        )

    def within(self, other: Box, slack: float = 0.5) -> bool:
        return (
            self.left >= other.left - slack
            and self.right <= other.right + slack
            and self.top >= other.top - slack
            and self.bottom <= other.bottom + slack
        )


def parsed(drawing: str) -> ET.Element:
    return ET.fromstring(drawing)


def canvas(root: ET.Element) -> Box:
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    return Box(left, top, left + width, top + height)


def groups(root: ET.Element, name: str) -> list[ET.Element]:
    return [g for g in root.iter(f"{SVG}g") if g.get("class") == name]


def text_box(text: ET.Element) -> Box:
    """Where a text lies, by the metrics that placed it; upright text is turned."""
    words, size = text.text or "", float(text.attrib["font-size"])
    width = text_width(words, size, bold=text.get("font-weight") == "bold")
    x, y = float(text.attrib["x"]), float(text.attrib["y"])
    start = {"start": 0.0, "middle": width / 2, "end": width}[text.get("text-anchor", "start")]
    if text.get("transform"):
        return Box(x - 0.8 * size, y + start - width, x + 0.22 * size, y + start, words)
    return Box(x - start, y - 0.8 * size, x - start + width, y + 0.22 * size, words)


def rect_box(rect: ET.Element) -> Box:
    x, y, width, height = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
    return Box(x, y, x + width, y + height)


def texts(root: ET.Element) -> list[Box]:
    return [text_box(each) for each in root.iter(f"{SVG}text")]


def overlaps(root: ET.Element) -> Iterator[tuple[str, str]]:
    """Texts that lie on each other."""
    for a, b in combinations(texts(root), 2):
        if a.meets(b):
            yield a.words, b.words


def outside(root: ET.Element) -> list[str]:
    """Texts that leave the picture."""
    whole = canvas(root)
    return [each.words for each in texts(root) if not each.within(whole)]
