"""A drawing as PNG, by whatever renderer of SVG this machine has."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from ..configs.errors import ConfigError, Mark
from .svg import flat

SCALE = 2  # dots for each unit of the drawing
_SECONDS = 60
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
)


def png(drawing: str) -> bytes:
    """The light drawing at twice its size.

    Tries cairosvg, rsvg-convert, inkscape and a headless Chromium or Chrome, in this order.
    Raises `ConfigError` where none is installed, or none of them succeeds.
    """
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "drawing.svg"), Path(folder, "drawing.png")
        source.write_text(_sized(flat(drawing)), encoding="utf-8")
        for name, render in _renderers(source, target):
            try:
                render()
                return target.read_bytes()
            except (OSError, subprocess.SubprocessError) as error:
                failures.append(f"{name}: {error}")
    if failures:
        message = "; ".join(failures)
    else:
        message = "nothing here can: install cairosvg, rsvg-convert, inkscape or chromium"
    raise ConfigError.at(Mark("png"), f"{message}. Or write .svg or .html, which need none")


def _renderers(source: Path, target: Path) -> list[tuple[str, Callable[[], object]]]:
    """The renderers that are installed, in order of preference."""
    width, height = _size(source)
    found: list[tuple[str, Callable[[], object]]] = []
    if find_spec("cairosvg"):
        found.append(("cairosvg", lambda: _cairosvg(source, target)))
    if program := shutil.which("rsvg-convert"):
        rsvg = [program, "-z", str(SCALE), "-o", str(target), str(source)]
        found.append(("rsvg-convert", lambda: _run(rsvg)))
    if program := shutil.which("inkscape"):
        inkscape = [program, str(source), "-o", str(target), "-w", str(width * SCALE)]
        found.append(("inkscape", lambda: _run(inkscape)))
    if program := next(filter(None, map(shutil.which, _BROWSERS)), None):
        browser = [
            *(program, *_QUIET),
            f"--user-data-dir={source.parent / 'profile'}",
            f"--force-device-scale-factor={SCALE}",
            f"--window-size={width},{height}",
            f"--screenshot={target}",
            source.as_uri(),
        ]
        found.append((Path(program).name, lambda: _run(browser)))
    return found


def _cairosvg(source: Path, target: Path) -> None:
    module = importlib.import_module("cairosvg")
    module.svg2png(url=str(source), write_to=str(target), scale=SCALE)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)


def _size(source: Path) -> tuple[int, int]:
    root = ET.parse(source).getroot()
    return int(root.attrib["width"]), int(root.attrib["height"])


def _sized(drawing: str) -> str:
    """With width and height, which a drawing in a page does not have."""
    _, _, width, height = ET.fromstring(drawing).attrib["viewBox"].split()
    size = f'width="{-(-float(width) // 1):.0f}" height="{-(-float(height) // 1):.0f}"'
    return drawing.replace("<svg ", f"<svg {size} ", 1)
