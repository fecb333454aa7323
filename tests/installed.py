"""Put an example package on the path as an installer leaves it: modules beside their metadata."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepweave.backends.registry import GROUP, _loaded
from stepweave.nodes.registry import kind
from stepweave.policies.registry import policy_class

ROOT = Path(__file__).parents[1]


def write_metadata(
    site: Path, name: str, version: str, registers: Mapping[str, Mapping[str, str]]
) -> Path:
    """The folder by which a package is known in `site`. `registers`: entry points by group."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, points in registers.items():
        lines += [f"[{group}]", *(f"{point} = {target}" for point, target in points.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return info


@contextmanager
def installed(project: Path, site: Path) -> Iterator[None]:
    """Install a pure Python project into the empty folder `site`, without pip or a network.

    What makes an entry point real is its line in the metadata, which is found by the same search
    of `sys.path` as that of any installed package.
    """
    declared = tomllib.loads((project / "pyproject.toml").read_text())
    about = declared["project"]
    for module in declared["tool"]["setuptools"]["py-modules"]:
        shutil.copy(project / f"{module}.py", site)
    write_metadata(site, about["name"], about["version"], about["entry-points"])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        try:
            yield
        finally:
            kind.cache_clear()
            for backend in about["entry-points"].get(GROUP, ()):
                _loaded.pop(backend, None)
            for module in declared["tool"]["setuptools"]["py-modules"]:
                sys.modules.pop(module, None)
            policy_class.cache_clear()
