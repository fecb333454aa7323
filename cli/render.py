"""`stepweave graph render`: the plan as a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..configs.errors import ConfigError, Mark
from ..views.files import Drawing, drawn, form_of
from .output import check_writable, save
from .reporting import say

if TYPE_CHECKING:
    from .graph import RenderOptions


def render(asked: RenderOptions) -> None:
    """Write the plan of a config to a file, or to stdout where the output is `-`.

    A format that is named goes before the file's extension. Raises `ConfigError` for a format or
    place that cannot be written, before anything is compiled where that shows already.
    """
    output, form = asked.output, asked.form or _form(asked.output)
    if output != "-":
        check_writable(output)
    elif form == "png":
        raise ConfigError.at(Mark("-o -"), "png is not text; name a file")
    content = drawn(asked.plan(), form, Drawing(asked.view, asked.steps, asked.title))
    if output == "-":
        assert isinstance(content, str), "png was refused"
        sys.stdout.write(content)
        return
    save(output, content)
    what = f"{form}, {asked.view}" if form in ("svg", "png") else form
    size = len(content.encode() if isinstance(content, str) else content)
    say(f"wrote {output} ({what}, {size:,} bytes)")


def _form(output: str) -> str:
    if output == "-":
        raise ConfigError.at(Mark("-o -"), "say what to write: --format svg, html, dot, …")
    return form_of(output)
