"""What all pages share: their files, their colours, and what a browser may do with them."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from typing import Any

from .svg import DARK, LIGHT

# No address is ever asked for anything, and no script runs but the page's own.
_POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)


def asset(name: str) -> str:
    """A file of `assets/` as text."""
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def policy(script: str = "") -> str:
    """The content security policy of a page whose one script is this, as an attribute's value."""
    return escape(_POLICY.format(script=_only(script), style="'unsafe-inline'"))


def served_policy(script: str, style: str) -> str:
    """The same for a page that asks the service it comes from, and nobody else; as a header."""
    own = _POLICY.format(script=_only(script), style=_only(style))
    return f"{own}; connect-src 'self'; frame-ancestors 'none'"


def _only(text: str) -> str:
    """This script, or this style, and no other."""
    if not text:
        return "'none'"
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def palette() -> str:
    """The colours of the drawings for all of a page: the system's choice, or `data-theme`'s."""

    def colours(palette: dict[str, str]) -> str:
        return ";".join(f"--sw-{name}:{colour}" for name, colour in palette.items())

    inherited = ";".join(f"--sw-{name}:inherit" for name in LIGHT)
    return (
        f":root{{color-scheme:light;{colours(LIGHT)}}}\n"
        "@media screen and (prefers-color-scheme:dark)"
        f"{{:root:not([data-theme=light]){{color-scheme:dark;{colours(DARK)}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{colours(DARK)}}}}}\n"
        f"svg.view{{{inherited}}}\n"
    )


def embedded(data: Any) -> str:
    """JSON for a script element: nothing in it ends the element or opens a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text
