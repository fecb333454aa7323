"""What every test run starts from, whatever started it."""

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.memory import Memory
from tests.models.interpreter import Interpreter, interpreter, why_no_interpreter
from tests.passed import Passed
from tests.shares import keep, leave_samples, share_of

gc.disable()  # until all modules are imported: it would look at them again and again

# The same examples each time, and no verdict on how fast they came: the machine may be busy.
settings.register_profile(
    "any machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# A shell's background job inherits an ignored SIGINT; the tests of Ctrl-C press it for real.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share",
        metavar="K/N",
        help="of the tests that are selected, every N-th from the K-th on",
    )
    parser.addoption(
        "--passed",
        metavar="FILE",
        type=Path,
        help="leave out the tests that FILE names, and add each that passes: so a run goes on",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """One torch thread: two test machines should compute the same way.

    A process that only hands tests out to workers has no use for torch, which takes seconds.
    """
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        import torch

        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def interpreted() -> Iterator[Interpreter]:
    """Triton's interpreter; there, models attend and policies sample with the Triton kernels.

    One for all files: starting it takes longer than most of them.
    """
    if reason := why_no_interpreter():
        pytest.skip(reason)
    with interpreter(STEPWEAVE_KERNELS="triton") as started:
        yield started


@pytest.fixture(scope="session", autouse=True)
def recorded_soon() -> None:
    """Shapes are recorded when they come up again, since runs of tests are short."""
    from stepweave.executors import threads

    threads.USUAL = 1


LONG = (
    "replicas/test_ray",
    "test_docs",
    "serving/test_tokens",
    "serving/test_matrix",
    "distributed/test_equal",
    "testing/test_faults",
    "benchmarks/",
    "serving/test_graphs",
    "server/test_fuzzed",
    "server/test_soak",
    "models/test_compiled_layers",
    "replicas/",
    "distributed/",
    "browser/",
    "clients/",
)
"""Files whose tests are few and take long, the longest first. Begun last, one would leave the other
workers nothing to do."""


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_samples(items)
    items.sort(key=_turn)  # stable: else as they were collected


class Share:
    """Leaves the tests of other shares out, after `-m` and `-k` have chosen."""

    def __init__(self, said: str) -> None:
        try:
            self._share, self._shares = share_of(said)
        except ValueError as error:
            raise pytest.UsageError(f"--share: {error}") from error

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        keep(config, items, items[self._share - 1 :: self._shares])


def pytest_configure(config: pytest.Config) -> None:
    if said := config.getoption("--share"):
        config.pluginmanager.register(Share(said), "share")
    if file := config.getoption("--passed"):
        told = getattr(config, "workerinput", None)
        passed = Passed.of(file) if told is None else Passed(told["passed"], None)
        config.pluginmanager.register(passed, "passed")


_memory = Memory()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    _memory.look()


def _turn(item: pytest.Item) -> int:
    file = item.nodeid.removeprefix("tests/")
    return next((turn for turn, name in enumerate(LONG) if file.startswith(name)), len(LONG))


def pytest_collection_finish() -> None:
    """What was imported stays; full collections need not look at it.

    What tests make is looked at seldom: as often as usual that is a tenth of their time.
    """
    gc.freeze()
    gc.set_threshold(7_000, 10, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A plugin that is imported for the summary may look for what refers to an object.

    A worker prints none, and its last collections need not look at what was imported.
    """
    if not hasattr(session.config, "workerinput"):
        gc.unfreeze()
