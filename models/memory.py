"""Room for caches: what does not fit is refused with its size and the key that makes it less."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..backends import backend_of
from ..graph.errors import shortly
from .errors import NoMemory

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_SAYS_SO = ("allocate", "out of memory", "overflow")  # in what torch raises, beside its own type


@contextmanager
def room_for(what: str, nbytes: int, device: torch.device, advice: str) -> Iterator[None]:
    """Allocate `nbytes` on `device` in the block. Raises `NoMemory`, which ends with `advice`.

    On the CPU more than the machine has is refused beforehand: an operating system that promises
    more than there is would end the process once the memory is written to.
    """
    refused = f"{what} needs {in_units(nbytes)} on {device}"
    if backend_of(device).on_host and nbytes > (there := _physical()):
        raise NoMemory(f"{refused}, and the machine has {in_units(there)}; {advice}")
    try:
        yield
    except MemoryError as error:
        raise NoMemory(f"{refused}, which cannot be allocated; {advice}") from error
    except RuntimeError as error:
        if not any(words in f"{error}".lower() for words in _SAYS_SO):
            raise
        raise NoMemory(
            f"{refused}, which cannot be allocated ({shortly(error)}); {advice}"
        ) from error


def in_units(nbytes: int) -> str:
    """A size for people: `640 bytes`, `3.2 GiB`."""
    size, unit = float(nbytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{nbytes} bytes" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def _physical() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
