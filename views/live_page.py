"""The page of a service that runs: it asks the service each second, and nobody else."""

from __future__ import annotations

from string import Template
from typing import NamedTuple

from .html import asset, palette, served_policy

SCRIPTS = ("live_state.js", "live_words.js", "live_draw.js", "live.js")  # one, in this order


class LivePage(NamedTuple):
    """A page as HTML, and the content security policy to send it with.

    What it shows it asks for at `live`, beside its own address.
    """

    html: str
    policy: str


def live_page(*, key: bool) -> LivePage:
    """The page; `key`: whether it asks its reader for an API key before all else."""
    script, style = "\n".join(map(asset, SCRIPTS)), palette() + asset("live.css")
    html = Template(asset("live.html")).substitute(
        style=style, key="yes" if key else "no", script=script
    )
    return LivePage(html, served_policy(script, style))
