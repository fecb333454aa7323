"""A run that was ended goes on with what has not passed yet, with workers and without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.passed import Passed

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

def test_one(): pass

def test_two(request): assert request.config.getoption("--set-right")

def test_three(): pytest.skip("not here")

@pytest.fixture
def torn(request):
    yield
    assert request.config.getoption("--set-right")

def test_four(torn): pass
"""
CONFTEST = f"""
import sys
from pathlib import Path

sys.path.append({str(ROOT)!r})  # after all others: folders there have names of packages

from tests.passed import Passed

def pytest_addoption(parser):
    parser.addoption("--passed", type=Path)
    parser.addoption("--set-right", action="store_true")

def pytest_configure(config):
    told = getattr(config, "workerinput", None)
    file = config.getoption("--passed")
    passed = Passed.of(file) if told is None else Passed(told["passed"], None)
    config.pluginmanager.register(passed, "passed")
"""
PYTEST = (sys.executable, "-m", "pytest", "-p", "xdist")


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_what_passed_is_left_out(workers: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    file = tmp_path / "runs" / "passed.txt"

    def run(*options: str) -> str:
        done = subprocess.run(
            [*PYTEST, f"--passed={file}", *workers, *options],
            cwd=tmp_path,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.stdout.splitlines()[-1]

    assert "1 failed, 2 passed, 1 skipped" in (said := run()), said
    assert "1 error" in said
    assert sorted(file.read_text().split()) == ["test_it.py::test_one", "test_it.py::test_three"]
    assert "2 passed" in (said := run("--set-right")), said
    assert "skipped" not in said
    assert len(file.read_text().split()) == 4
    assert "passed" not in (said := run()), said


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match="--passed: "):
        Passed.of(tmp_path)
