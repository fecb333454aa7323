"""What all drawings share: an element writer, text metrics, the palette and the style.

Drawings are plain text, so that the same plan gives the same bytes. Colours are CSS custom
properties with light defaults and dark overrides; a page that embeds a drawing may set its own on
`svg.view`. Each rule also names the light colour, for renderers that know no custom properties.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from html import escape
from types import MappingProxyType

FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans Condensed', sans-serif"
STEP_COLOURS = 6  # then they repeat
LIGHT = {
    "bg": "#ffffff",
    "ink": "#1b1f24",
    "muted": "#57606a",
    "line": "#d0d7de",
    "band": "#f4f6f8",
    "node": "#e7edf4",
    "wait": "#b00f3a",
    "ghost": "#9aa4ae",
    "data": "#0a6a94",
    "on-step": "#111418",
    # tints of the colour-blind-safe palette of Okabe and Ito (2008)
    "step-0": "#8fcdf2",
    "step-1": "#f4b84a",
    "step-2": "#72cfb2",
    "step-3": "#e2a8c7",
    "step-4": "#efe57a",
    "step-5": "#a3b5ea",
}
DARK = {
    "bg": "#0f1318",
    "ink": "#e6edf3",
    "muted": "#a1adb9",
    "line": "#36404a",
    "band": "#181e25",
    "node": "#26303b",
    "wait": "#ff7489",
    "ghost": "#6d7985",
    "data": "#63bce3",
    "on-step": "#0b0d10",
    "step-0": "#69b3de",
    "step-1": "#dda03a",
    "step-2": "#51b596",
    "step-3": "#cb8cb0",
    "step-4": "#cfc65f",
    "step-5": "#8a9fdc",
}
_WIDTHS = {  # of Helvetica, in thousandths of an em
    191: "'",
    222: "ijl",
    260: "|",
    278: " !,./:;I[\\]ft",
    333: "()-`r·",
    355: '"',
    389: "*",
    469: "^",
    500: "cksvxyzJ",
    556: "#$0123456789?L_abdeghnopquµ",
    584: "+<=>~−×",
    611: "FTZ",
    667: "&ABEKPSVXY",
    722: "CDHNRUw",
    778: "GOQ",
    833: "Mm",
    889: "%",
    944: "W",
    1000: "→⇒…",
    1015: "@",
}
_WIDTH = {letter: width / 1000 for width, letters in _WIDTHS.items() for letter in letters}
_SPARE = 1.04  # other fonts of the stack are a little wider


def number(value: float) -> str:
    """At most one decimal, and no negative zero."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


def tag(name: str, *children: str, **attributes: str | float | None) -> str:
    """One element. `class_` is `class`, `font_size` is `font-size`; None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(children)
    return f"<{name}{written}>{inner}</{name}>" if inner else f"<{name}{written}/>"


def _attribute(value: str | float) -> str:
    return escape(_legal(value)) if isinstance(value, str) else number(value)


def _legal(text: str) -> str:
    """Without the control characters that XML forbids."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def title(text: str) -> str:
    """What a browser shows on hover."""
    return tag("title", escape(_legal(text), quote=False))


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """An upper bound for the fonts of the stack."""
    return sum(map(_em, text)) * size * _SPARE * (1.08 if bold else 1.0)


def _em(letter: str) -> float:
    if letter in _WIDTH:
        return _WIDTH[letter]
    if unicodedata.combining(letter):
        return 0.0
    return 1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.8


def clipped(text: str, size: float, room: float, *, bold: bool = False) -> str:
    """The text, cut with an ellipsis where it is wider than `room`."""
    if text_width(text, size, bold=bold) <= room:
        return text
    while text and text_width(text + "…", size, bold=bold) > room:
        text = text[:-1]
    return text + "…"


def text(
    x: float,
    y: float,
    content: str,
    *,
    size: float = 12,
    anchor: str = "start",
    class_: str | None = None,
    bold: bool = False,
    upright: bool = False,
    data: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """A line of text with its baseline at y; `upright` turns it to run from bottom to top."""
    return tag(
        "text",
        escape(_legal(content), quote=False),
        x=x,
        y=y,
        font_size=size,
        text_anchor=None if anchor == "start" else anchor,
        font_weight="bold" if bold else None,
        transform=f"rotate(-90 {number(x)} {number(y)})" if upright else None,
        class_=class_,
        **data,
    )


def flowed(
    lead: str, items: Iterable[str], room: float, size: float, gap: str = "   "
) -> list[str]:
    """`lead item item item`, broken between items into lines no wider than `room`."""
    lines, line = [], lead
    for item in items:
        joined = f"{line}{gap}{item}" if line else item
        if line and text_width(joined, size) > room:
            lines.append(line)
            joined = item
        line = clipped(joined, size, room)
    return [*lines, line] if line else lines


def legend_lines(lines: Iterable[str], x: float, y: float) -> list[str]:
    """How to read a drawing, from y down. A page finds these lines by their class."""
    return [text(x, y + 16 * k, line, class_="muted legend") for k, line in enumerate(lines)]


def tip(view: str, colour: str) -> str:
    """An arrow head in one of the colours; its id is `VIEW-tip-COLOUR`."""
    return tag(
        "marker",
        tag("path", d="M0 0L8 4L0 8z", class_=f"tip-{colour}"),
        id=f"{view}-tip-{colour}",
        viewBox="0 0 8 8",
        refX=7,
        refY=4,
        markerWidth=7,
        markerHeight=7,
        markerUnits="userSpaceOnUse",
        orient="auto",
    )


def step_class(step: int) -> str:
    return f"step-{step % STEP_COLOURS}"


def document(
    view: str, heading: str, width: float, height: float, parts: Iterable[str], rules: str = ""
) -> str:
    """The whole drawing, one element a line."""
    tips = tag("defs", *(tip(view, colour) for colour in ("wait", "ghost", "muted", "data")))
    head = tag("svg", "\n", class_=f"view {view}", viewBox=f"0 0 {number(width)} {number(height)}")
    opening = head.split(">")[0] + (
        f' role="img" aria-labelledby="{view}-title" xmlns="http://www.w3.org/2000/svg">'
    )
    name = tag("title", escape(_legal(heading), quote=False), id=f"{view}-title")
    ground = tag("rect", class_="ground", width=width, height=height)
    style = tag("style", _style(rules))
    return "\n".join([opening, name, style, tips, ground, *parts, "</svg>"]) + "\n"


def _style(rules: str) -> str:
    light = ";".join(f"--sw-{name}:{colour}" for name, colour in LIGHT.items())
    dark = ";".join(f"--sw-{name}:{colour}" for name, colour in DARK.items())
    steps = "".join(f".view .step-{n}{{fill:@step-{n}}}" for n in range(STEP_COLOURS))
    return (
        f":where(svg.view){{{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:where(svg.view){{{dark}}}}}\n"
        f".view{{font-family:{FONT}}}"
        + _coloured(
            ".view text{fill:@ink}.view .muted{fill:@muted}.view .ground{fill:@bg}"
            ".view .on-step{fill:@on-step}.view .band{fill:@band}"
            ".view g>path,.view line{fill:none}.view .rule{stroke:@line}"
            ".view .tip-wait{fill:@wait}.view .tip-ghost{fill:@ghost}"
            ".view .tip-muted{fill:@muted}.view .tip-data{fill:@data}"
            ".view .wait path{stroke:@wait;stroke-width:2}"
            ".view .ghost path{stroke:@ghost;stroke-dasharray:1.5 3}"
            ".view .halo{stroke:@bg;stroke-width:4;stroke-linejoin:round;paint-order:stroke}"
            + steps
            + rules
        )
    )


def _coloured(rules: str) -> str:
    """`fill:@ink` in full: a plain colour first, for renderers without custom properties."""

    def both(found: re.Match[str]) -> str:
        key, name = found.groups()
        return f"{key}:{LIGHT[name]};{key}:var(--sw-{name})"

    return re.sub(r"([\w-]+):@([\w-]+)", both, rules)


def flat(drawing: str) -> str:
    """The drawing in its light colours only, for renderers that know no custom properties."""
    found = re.sub(r"[\w-]+:var\(--sw-[\w-]+\)", "", drawing)
    return re.sub(r"^(:where|@media).*\n", "", found, flags=re.MULTILINE)
