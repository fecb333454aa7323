"""The documentation as a site: it builds without a warning, and nothing in it leads nowhere.

The links are followed here in the pages that came out, so they are not what the generator believes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.installed import ROOT

pytest.importorskip("furo", reason="the site needs the extra `docs`")
pytestmark = pytest.mark.nightly  # building all pages takes a minute
OPTIONS = "-W --keep-going -n -b html docs"
SOURCES = sorted((ROOT / "docs").rglob("*.md"))


@dataclass
class Page(HTMLParser):
    """The links of a page, what it loads by itself, and the places one can link to."""

    path: Path
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given:
            self.loaded.append(given["href"])
        self.loaded += [
            given[name] for name in ("src", "srcset", "data", "poster") if name in given
        ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """Every page by its path."""
    out = tmp_path_factory.mktemp("site")
    # -P: else the working directory is searched for modules, and has a `requests` of its own.
    sphinx_build = [sys.executable, "-P", "-m", "sphinx.cmd.build"]
    built = subprocess.run(
        [*sphinx_build, *OPTIONS.split(), "-q", "-d", f"{out}.trees", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return {path: Page(path) for path in sorted(out.rglob("*.html"))}


def _root(site: dict[Path, Page]) -> Path:
    return min(site, key=lambda path: (len(path.parts), path.name != "index.html")).parent


def _faults(page: Page, site: dict[Path, Page]) -> list[str]:
    """What of a page leads nowhere."""
    wrong = []
    for target in (*page.links, *page.loaded):
        parts = urlsplit(target)
        if parts.scheme in ("http", "https"):
            if not re.fullmatch(r"[\w.-]+\.[a-z]{2,}", parts.netloc) or " " in target:
                wrong.append(target)
            continue
        if parts.scheme in ("data", "mailto"):
            continue
        there = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
        if not there.is_file():
            wrong.append(target)
        elif parts.fragment:
            linked = site.get(there) or Page(there)
            if unquote(parts.fragment) not in linked.anchors:
                wrong.append(target)
    return wrong


def test_the_command_that_conf_names_is_the_one_tested() -> None:
    assert f"    sphinx-build {OPTIONS} build/site\n" in (ROOT / "docs" / "conf.py").read_text()


def test_every_document_is_a_page(site: dict[Path, Page]) -> None:
    root = _root(site)
    for source in SOURCES:
        assert root / source.relative_to(ROOT / "docs").with_suffix(".html") in site


def test_every_page_is_reached_from_the_sidebar(site: dict[Path, Page]) -> None:
    root = _root(site)
    listed = re.findall(
        r'class="reference internal" href="([^"#]+)"', (root / "index.html").read_text()
    )
    for source in SOURCES:
        page = source.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert page in listed or page == "index.html", f"docs/index.md does not list {source.name}"


def test_every_link_of_every_page_leads_somewhere(site: dict[Path, Page]) -> None:
    assert sum(len(page.links) for page in site.values()) > 500
    for path, page in site.items():
        assert _faults(page, site) == [], path.name


def test_a_dead_link_would_be_seen(site: dict[Path, Page], tmp_path: Path) -> None:
    (tmp_path / "there.html").write_text('<p id="here">')
    text = "".join(f'<a href="{each}">' for each in ("there.html#here", "there.html#no", "no.html"))
    text += '<img src="no.svg"><a href="https://no host/">'
    (tmp_path / "page.html").write_text(text)
    page = Page(tmp_path / "page.html")
    assert _faults(page, site) == ["there.html#no", "no.html", "https://no host/", "no.svg"]


def test_the_pages_load_nothing_from_elsewhere(site: dict[Path, Page]) -> None:
    for path, page in site.items():
        assert page.loaded, path.name
        for target in page.loaded:
            assert not urlsplit(target).netloc, f"{path.name} loads {target}"
    for style in _root(site).rglob("*.css"):
        assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", style.read_text()), style.name
    for script in _root(site).rglob("*.js"):
        assert not re.search(r"fetch\(\s*['\"`]https?:|import\(\s*['\"]https?:", script.read_text())


def test_formulas_need_no_script(site: dict[Path, Page]) -> None:
    path = _root(site) / "theory.html"
    theory = path.read_text(encoding="utf-8")
    assert theory.count("<math") > 20
    assert not [script for script in site[path].loaded if "math" in script.lower()]
    assert not re.search(r"\$[^$\n]{1,80}\$", re.sub(r"<pre.*?</pre>", "", theory, flags=re.S))
