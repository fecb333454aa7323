"""What every test run starts from, whatever started it."""

import gc
import signal

import torch

torch.set_num_threads(1)  # two test machines should compute the same way

# A shell's background job inherits an ignored SIGINT; the tests of Ctrl-C press it for real.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_teardown() -> None:
    """A verb freezes what it imports, for a process that is its own; this one has other tests."""
    gc.unfreeze()
