"""What installed packages register is looked up once, and again when a package comes or goes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from stepweave.graph import entry_points as module
from stepweave.graph.entry_points import registered
from tests.installed import write_metadata

GROUP = "stepweave.tests"


def _install(site: Path, name: str) -> Path:
    return write_metadata(site, name, "1.0", {GROUP: {name: f"{name}:THING"}})


def _names() -> list[str]:
    return sorted(point.name for point in registered(GROUP))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The groups for which all packages were looked through."""
    asked: list[str] = []
    through: Callable[..., object] = entry_points

    def counted(group: str) -> object:
        asked.append(group)
        return through(group=group)

    monkeypatch.setattr(module, "entry_points", counted)
    module._of_group.cache_clear()
    return asked


def test_packages_are_looked_through_once(read: list[str]) -> None:
    assert [_names() for _ in range(3)] == [[], [], []]
    assert read == [GROUP]


def test_a_package_that_comes_or_goes_is_seen(
    read: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))  # it is not there yet
    assert _names() == []
    first = _install(site, "early")
    assert _names() == ["early"]
    _install(site, "late")
    assert _names() == ["early", "late"]
    shutil.rmtree(first)
    assert _names() == ["late"]
    assert len(read) == 4
