"""What a container may take, from files as the kernel writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from stepweave.backends import backend_of
from stepweave.backends.container import memory, memory_left, processors
from stepweave.models.errors import NoMemory
from stepweave.models.memory import room_for

GIB = 1 << 30
MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
NO_LIMIT = (1 << 63) - 4096  # as version 1 writes it
STAT = "anon 7\nfile 2147483648\ninactive_file 1073741824\nactive_file 5\n"
STAT_1 = "cache 9\ninactive_file 3\ntotal_inactive_file 1073741824\n"


def system(folder: Path, **files: str | int) -> Path:
    for name, text in files.items():
        place = folder / "fs/cgroup" / name.replace("__", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{text}\n")
    return folder


@pytest.mark.parametrize(
    ("files", "share"),
    [
        ({}, None),
        ({"cpu.max": "250000 100000"}, 2.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "100000 0"}, None),
        ({"cpu__cpu.cfs_quota_us": "300000", "cpu__cpu.cfs_period_us": "100000"}, 3.0),
        ({"cpu__cpu.cfs_quota_us": "-1", "cpu__cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_processor_time(files: dict[str, str], share: float | None, tmp_path: Path) -> None:
    assert processors(system(tmp_path, **files)) == share


OF_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")


def first(*values: str | int) -> dict[str, str | int]:
    """The files of version 1."""
    return {f"memory__{name}": value for name, value in zip(OF_FILES, values, strict=False)}


@pytest.mark.parametrize(
    ("files", "limit", "left"),
    [
        ({}, MACHINE, None),
        ({"memory.max": "max", "memory.current": 5, "memory.stat": STAT}, MACHINE, None),
        ({"memory.max": GIB, "memory.current": GIB // 4}, GIB, 3 * GIB // 4),
        ({"memory.max": GIB, "memory.current": 2 * GIB}, GIB, 0),
        ({"memory.max": GIB, "memory.current": GIB, "memory.stat": STAT}, GIB, GIB),
        (first(GIB, GIB, STAT_1), GIB, GIB),
        (first(GIB, GIB // 2), GIB, GIB // 2),
        (first(NO_LIMIT, 4096), MACHINE, NO_LIMIT - 4096),
        (first(NO_LIMIT), MACHINE, None),
    ],
)
def test_memory(files: dict[str, str | int], limit: int, left: int | None, tmp_path: Path) -> None:
    there = system(tmp_path, **files)
    assert memory(there) == limit
    assert memory_left(there) == left


def test_no_more_is_taken_than_a_container_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`num_blocks: auto` takes nine tenths of this: more than the limit would end the process."""
    cpu = torch.device("cpu")
    free = backend_of(cpu).free_bytes(cpu)
    assert free is None or free > GIB // 16
    there = system(tmp_path, **{"memory.max": GIB // 8, "memory.current": GIB // 16})
    for read in (memory, memory_left):
        monkeypatch.setattr(read, "__defaults__", (there,))
    if free is not None:
        assert backend_of(cpu).free_bytes(cpu) == GIB // 16
    said = "needs 1.0 GiB on cpu, and there are 128.0 MiB in all; take less"
    with pytest.raises(NoMemory, match=said), room_for("a cache", GIB, cpu, "take less"):
        pytest.fail("it has no room")
