"""What the container of this process may take of its machine, as Linux's control groups say.

Read where a container has them: version 2 in one folder, version 1 in one for each resource.
"""

from __future__ import annotations

import os
from pathlib import Path

SYSTEM = Path("/sys")


def processors(system: Path = SYSTEM) -> float | None:
    """Processors' worth of time; None: as much as there is. Raises nothing."""
    group = _group(system)
    limit, _, period = text_of(group / "cpu.max").partition(" ")
    if not limit:
        limit = text_of(group / "cpu" / "cpu.cfs_quota_us")
        period = text_of(group / "cpu" / "cpu.cfs_period_us")
    if not (limit.isdecimal() and period.isdecimal()) or int(period) == 0:
        return None  # "max", or -1: no limit
    return int(limit) / int(period)


def memory(system: Path = SYSTEM) -> int:
    """Bytes of memory, at most those of the machine. Raises nothing."""
    group, machine = _group(system), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = text_of(group / "memory.max") or text_of(group / "memory" / "memory.limit_in_bytes")
    return min(machine, int(limit)) if limit.isdecimal() else machine


def memory_left(system: Path = SYSTEM) -> int | None:
    """Bytes of its memory that are not in use, with what is kept of files and was not used of late.

    None: it has no limit of its own, so what the machine has left is what counts. Raises nothing.
    """
    group = _group(system)
    for folder, limit, used, of_files in (
        (group, "memory.max", "memory.current", "inactive_file"),
        (group / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, now = text_of(folder / limit), text_of(folder / used)
        if most.isdecimal() and now.isdecimal():
            fields = (line.split() for line in text_of(folder / "memory.stat").splitlines())
            kept = next((int(field[1]) for field in fields if field[0] == of_files), 0)
            return max(0, int(most) - int(now) + kept)
    return None


def _group(system: Path) -> Path:
    return system / "fs" / "cgroup"


def text_of(file: Path) -> str:
    """What is in one of the kernel's files; nothing if it is not there. Raises nothing."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
