"""Room for caches: what does not fit is refused with its size and the key that makes it less."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..backends import backend_of
from ..backends.container import memory
from ..graph.errors import shortly
from .errors import NoMemory

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_PAGEOUT = 21  # MADV_PAGEOUT of Linux 5.4, which the module `mmap` has no name for
_SAYS_SO = ("allocate", "out of memory", "overflow")  # in what torch raises, beside its own type


@contextmanager
def room_for(what: str, nbytes: int, device: torch.device, advice: str) -> Iterator[None]:
    """Allocate `nbytes` on `device` in the block. Raises `NoMemory`, which ends with `advice`.

    On the CPU more than the machine has, or the container may take, is refused beforehand: an
    operating system that promises more than there is would end the process once the memory is
    written to.
    """
    refused = f"{what} needs {in_units(nbytes)} on {device}"
    if backend_of(device).on_host and nbytes > (there := memory()):
        raise NoMemory(f"{refused}, and there are {in_units(there)} in all; {advice}")
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


def let_go(tensor: Tensor) -> None:
    """Take the pages of `tensor[...]` out of memory, which nobody is about to read.

    Weights on the CPU lie in their file, which is mapped as a whole: while one of them is used, the
    pages of all that were read count as memory. They come back from the file, should somebody read
    them, so nothing is lost; pages that are in no file stay. Linux only.
    """
    if sys.platform != "linux" or not backend_of(tensor.device).on_host or not tensor.numel():
        return
    first, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    begin = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE  # a page at an edge has others' numbers too
    whole = (first + size - begin) // mmap.PAGESIZE * mmap.PAGESIZE
    if whole > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(whole), _PAGEOUT)


def in_units(nbytes: int) -> str:
    """A size for people: `640 bytes`, `3.2 GiB`."""
    size, unit = float(nbytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{nbytes} bytes" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
