"""`stepweave graph render`: the plan as a file."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from ..configs.errors import ConfigError, Mark
from ..views.files import Drawing, drawn, form_of
from .output import place, save
from .planned import planned
from .reporting import say


def render(
    name: str,
    overrides: Mapping[str, str],
    output: str,
    *,
    form: str | None,
    drawing: Drawing,
    costs: str | None = None,
    rows: int | None = None,
) -> None:
    """Write the plan of a config to a file, or to stdout where `output` is `-`.

    `form` goes before the file's extension. Raises `ConfigError` for a form or place that
    cannot be written, before anything is compiled where that shows already.
    """
    chosen = form or _form(output)
    if output != "-":
        place(output)
    elif chosen == "png":
        raise ConfigError.at(Mark("-o -"), "png is not text; name a file")
    content = drawn(planned(name, overrides, costs=costs, rows=rows), chosen, drawing)
    if output == "-":
        assert isinstance(content, str), "png was refused"
        sys.stdout.write(content)
        return
    save(output, content)
    what = f"{chosen}, {drawing.view}" if chosen in ("svg", "png") else chosen
    size = len(content.encode() if isinstance(content, str) else content)
    say(f"wrote {output} ({what}, {size:,} bytes)")


def _form(output: str) -> str:
    if output == "-":
        raise ConfigError.at(Mark("-o -"), "say what to write: --format svg, html, dot, …")
    return form_of(output)
