"""How the documentation becomes a site.

    sphinx-build -W --keep-going -n -b html docs build/site

The pages are Markdown that reads well where it lies, on a forge or in an editor. So everything
that only the site needs is made here: the sidebar from the lists of `index.md`, formulas as MathML
by a converter in Python. The pages that come out load nothing from anywhere else.
"""

from __future__ import annotations

import re
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from pygments.lexers.data import JsonLexer
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Stepweave"
author = "the Stepweave authors"
project_copyright = "the Stepweave authors; Apache-2.0"
version = release = installed_version("stepweave")

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns: list[str] = []
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # shortened JSON, with … in it, is no JSON

html_theme = "furo"
html_title = "Stepweave"
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)\.md\)")


def sidebar(index: str) -> str:
    """A hidden table of contents for each section of the index page: what the section links to."""
    parts = re.split(r"(?m)^## +(.*)$", index)
    return "".join(
        "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *linked, "```", ""])
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
        if (linked := LINK.findall(body))
    )


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    # The README is the front page of the repository as the index is that of the site.
    index = "../" * page.count("/") + "index.md"
    source[0] = re.sub(r"\]\((?:\.\./)+README\.md(#[^)]*)?\)", f"]({index})", source[0])
    if page == root_doc:
        source[0] += sidebar(source[0])


def _formula(self: Any, node: nodes.Element, *, as_block: bool) -> None:
    try:
        self.body.append(tex2mathml(node.astext(), as_block=as_block))
    except MathError as error:
        logging.getLogger(__name__).warning("formula: %s", error, location=node)
    raise nodes.SkipNode


def _inline(self: Any, node: nodes.Element) -> None:
    _formula(self, node, as_block=False)


def _block(self: Any, node: nodes.Element) -> None:
    _formula(self, node, as_block=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_lexer("jsonl", JsonLexer)
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
