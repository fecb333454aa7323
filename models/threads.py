"""How many threads an operation of a model should have on this machine.

torch takes one thread for each logical processor of the machine. Two threads of one core share its
multipliers and its cache, so products gain nothing and attention loses; and in a container with a
share of a large machine, threads that get no processor time hold up those that do. So there is one
thread for each physical core that the process may use, and no more than its container's share. A
small model's operations are not worth splitting: starting threads takes longer than they save.
"""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path

from ..backends.container import processors, text_of
from .errors import ModelNotFound
from .source import folder_of

LOG = logging.getLogger("stepweave.engine")

SMALL_BYTES = 64 << 20
"""Weights of fewer bytes run on one thread.

With them a product of one token reads some hundred kilobytes, which takes a core about as long as
waking another one. The limit follows from that and was not searched for by measuring.
"""


def threads_for(name_or_path: str | Path) -> int | None:
    """Threads for operations of this model; None: those that OMP_NUM_THREADS asks torch for."""
    if os.environ.get("OMP_NUM_THREADS"):
        return None
    try:
        small = is_small(name_or_path)
    except ModelNotFound:  # whoever loads it says so
        return None
    return 1 if small else physical_cores()


def that_run_at_once(threads: int) -> int:
    """As many of the `threads` asked for as can run at once; of others, the log is told.

    Threads of an operation wait for each other, and all of them for one that has no processor:
    with hundreds too many, a step takes minutes.
    """
    most = len(usable_processors())
    if threads > most:
        LOG.warning(
            "torch_threads %d: this process may use %d processors, so it is %d here",
            *(threads, most, most),
        )
    return min(threads, most)


def is_small(name_or_path: str | Path) -> bool:
    """Whether an operation of this model takes a core no longer than to call it, or wake another.

    Raises `ModelNotFound`.
    """
    folder = folder_of(name_or_path)
    if folder is None:
        return False
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) < SMALL_BYTES


def let_go(maps: Path = Path("/proc/self/maps")) -> bool:
    """End the threads among which operations of the calling thread were split; whether there is a
    library that can.

    Each thread of Python that runs such an operation has some of its own, which wait for the next
    one. Where all of them together are more than there are cores, OpenMP sends them to sleep at
    once after each operation, and waking them takes longer than many an operation: a step of a
    model of 135 million parameters took 1.5 times as long on a thread beside the one that had
    loaded it. So whoever has loaded a model for others to run lets go of its own. They come back
    with the next operation. `maps`: where the kernel lists the libraries of this process.
    """
    for line in text_of(maps).splitlines():
        path = Path(line.split()[-1])
        if "omp" in path.name and ".so" in path.name:
            pause = getattr(ctypes.CDLL(str(path)), "omp_pause_resource_all", None)
            if pause is not None:
                pause(_SOFT)
                return True
    return False


_SOFT = 1
"""Of OpenMP 5.0: what threads have set is kept."""


def physical_cores(system: Path = Path("/sys")) -> int:
    """Cores that this process may use, at most the processor time that its container may.

    `system`: where the kernel tells of them. Where it does not, each processor counts as a core.
    """
    cores = {_siblings(system, processor) or f"{processor}" for processor in usable_processors()}
    quota = processors(system)
    return max(1, len(cores) if quota is None else min(len(cores), round(quota)))


def usable_processors() -> set[int]:
    """The processors on which this process may run, by their numbers."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _siblings(system: Path, processor: int) -> str:
    """The processors of the same core, as the kernel writes them."""
    file = f"devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
    return text_of(system / file)
