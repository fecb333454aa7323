"""Runs of hours that go on after they were ended: what has passed is written down, and left out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.shares import keep


class Passed:
    """Leaves out the tests that `before` names, and adds to `file` each test that passes.

    Workers are told what is left out when they start: one that starts later must find the same.
    They have no `file`, since whoever hands tests out hears of all results.
    """

    def __init__(self, before: Iterable[str], file: Path | None) -> None:
        self._before = frozenset(before)
        self._file = file
        self._failed: set[str] = set()

    @staticmethod
    def of(file: Path) -> Passed:
        """Goes on where the run that wrote the file ended; from the start where there is none."""
        try:
            before = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"--passed: {error}") from error
        return Passed(before, file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["passed"] = sorted(self._before)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        keep(config, items, [each for each in items if each.nodeid not in self._before])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "teardown" and self._file and report.nodeid not in self._failed:
            with self._file.open("a", encoding="utf-8") as written:
                written.write(f"{report.nodeid}\n")
