"""The names of executors, known without torch: those on host threads, and one for each backend.

An executor of a backend's name runs plans on the streams of that backend's devices.
"""

from __future__ import annotations

from ..graph.errors import StepweaveError
from .backend import Backend
from .registry import backend_named, nearest_device, with_streams

ON_HOST_THREADS = ("serial", "threads")


def executor_names() -> tuple[str, ...]:
    return (*ON_HOST_THREADS, *with_streams())


def streams_behind(executor: str) -> Backend | None:
    """The backend on whose streams an executor runs plans; None if on host threads.

    Raises:
        StepweaveError: there is no such executor.
    """
    if executor in ON_HOST_THREADS:
        return None
    names = executor_names()
    if executor in names and (found := backend_named(executor)).has_streams:
        return found
    raise StepweaveError(
        f"there is no executor {executor!r}{nearest_device(executor, names)}; there are "
        f"{', '.join(names)}"
    )
