"""What every test run starts from, whatever started it."""

import gc
import signal

import pytest
import torch

gc.disable()  # until all modules are imported: it would look at them again and again

torch.set_num_threads(1)  # two test machines should compute the same way

# A shell's background job inherits an ignored SIGINT; the tests of Ctrl-C press it for real.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was imported stays; full collections need not look at it."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """A plugin that is imported for the summary may look for what refers to an object."""
    gc.unfreeze()
