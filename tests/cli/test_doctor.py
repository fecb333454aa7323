"""What `stepweave doctor` finds, on this machine and on others."""

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from stepweave.backends import NoDevice, backend_named
from stepweave.backends import registry as backends
from stepweave.cli.main import app
from stepweave.configs.keys import keys
from tests.device import emulated


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    """A machine with a device: that of the tests."""
    with emulated.is_installed():
        yield


def lines() -> tuple[int, list[str]]:
    """The exit status, and what the doctor prints."""
    result = CliRunner().invoke(app, ["doctor"])
    return result.exit_code, result.stdout.splitlines()


def test_the_doctor_finds_everything_that_the_quickstart_needs() -> None:
    code, said = lines()
    assert code == 0, said
    for name in ("python", "torch", "xgrammar", "llguidance", "cores", "cuda", "embedded target"):
        assert any(name in line for line in said)


def test_it_lists_the_devices_of_installed_backends() -> None:
    (line,) = [line for line in lines()[1] if line.startswith("ok  emulated")]
    assert line.endswith(" a device that is not there")


def test_it_says_which_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernels() -> dict[str, str]:
        rows = [line[4:].split("  ", 1) for line in lines()[1] if "kernels: " in line]
        return {name.removeprefix("kernels: "): said.strip() for name, said in rows}

    monkeypatch.setattr("stepweave.backends.kernels._installed", lambda: "3.7.1")
    monkeypatch.delenv("STEPWEAVE_KERNELS", raising=False)
    found = kernels()
    assert found["triton"] == "not used: it does not compile for emulated (Triton 3.7.1)"
    assert found["varlen"].startswith("not used: torch has none for a device that is not there")
    assert found["reference"] == "used"
    monkeypatch.setenv("STEPWEAVE_KERNELS", "triton")
    assert kernels()["triton"].startswith("used for attention, the cache and sampling")


def test_a_wrong_switch_and_a_broken_backend_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> object:
        if name == "emulated":
            raise NoDevice("backend 'emulated' cannot be loaded")
        return backend_named(name)

    monkeypatch.setattr("stepweave.cli.doctor.backend_named", broken)
    monkeypatch.setenv("STEPWEAVE_KERNELS", "tritn")
    code, said = lines()
    assert code == 1
    wrong = [line for line in said if line.startswith("!!")]
    assert len(wrong) == 2
    assert wrong[0].endswith("backend 'emulated' cannot be loaded")
    assert "(did you mean 'triton'?)" in wrong[1]


def test_completion_offers_the_executors_that_there_are() -> None:
    (executor,) = [key for key in keys() if key.name == "executor"]
    assert set(executor.choices) == {"serial", "threads", *backends.with_streams()}
