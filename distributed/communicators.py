"""The communicators of an engine, beside the one by which its ranks begin: made, and given back.

Each holds connections and threads. To close one while another rank still reads from it would take
from that rank what was sent last, and nobody waits for others when an engine is closed. So those of
closed engines are destroyed when all ranks have met again, for the next engine.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_released: list[ProcessGroup] = []


class Communicators:
    """Those of one engine. Every rank of the group has to make the same, in the same order."""

    def __init__(self) -> None:
        self._made: list[ProcessGroup] = []

    def new(self, ranks: Sequence[int] | None = None) -> ProcessGroup:
        """One of these ranks, all by default; of a rank that is none of them, nothing to call."""
        made: Any = dist.new_group(None if ranks is None else [*ranks])
        if made != dist.GroupMember.NON_GROUP_MEMBER:
            self._made.append(made)
        return cast("ProcessGroup", made)

    @contextmanager
    def of_a_library(self) -> Iterator[None]:
        """In the block a library may make some, as of a mesh of devices: they are the engine's."""
        before = {*_all()}
        try:
            yield
        finally:
            self._made.extend(each for each in _all() if each not in before)

    def release(self) -> None:
        """This rank uses them no more; others may."""
        _released.extend(self._made)
        self._made.clear()


def destroy_released() -> None:
    """Close what closed engines have left; when all ranks are known to have closed them, too."""
    names = {each.group_name for each in _released}
    while _released:
        dist.destroy_process_group(_released.pop(0))
    if not names:
        return
    for mesh in _meshes():  # the library remembers some for good, and they their communicators
        registry: dict[str, ProcessGroup] = getattr(mesh, "_pg_registry", {})
        for name in names & registry.keys():
            del registry[name]


def _meshes() -> list[DeviceMesh]:
    return [each for each in gc.get_objects() if type(each) is DeviceMesh]


def _all() -> list[ProcessGroup]:
    """Every one that this process is part of. No public function lists them."""
    return [*dist.distributed_c10d._world.pg_map]
