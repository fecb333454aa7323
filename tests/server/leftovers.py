"""What requests leave behind in a service when they have ended: nothing may be."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from stepweave.serving.service import Service

PATIENCE_S = 120.0


@dataclass(frozen=True)
class Held:
    """What a process holds: threads by name, and how many files are open."""

    threads: Counter[str]
    files: int

    @classmethod
    def now(cls) -> Held:
        names = (each.name.split("_")[0].rstrip("0123456789-") for each in threading.enumerate())
        return cls(Counter(names), len(os.listdir("/proc/self/fd")))

    def exceeds(self, before: Held, *, files: int = 0) -> bool:
        """Whether there is more of anything than before, and `files` more than that."""
        pools = ("asyncio", "uvloop")  # of the event loop: they grow to a number that it has
        more = self.threads - before.threads
        return any(name not in pools for name in more) or self.files > before.files + files


def until(true: Callable[[], object], what: str) -> None:
    """Wait until something is true. The time is for machines that stand still, not a measure."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"it did not come to this: {what}"
        time.sleep(0.002)


def nothing_left_in(service: Service) -> None:
    """Wait until nobody is served, and look that all which a request had is back."""
    until(lambda: not service.unended, "every request has ended")
    table = service.table

    def carried() -> bool:
        with service.stay():  # a run that idles lets a step pass when somebody goes, or in a second
            pass
        return bool(table.requests or table.ended or len(table.grammars))

    until(lambda: not carried(), "no step carries a request that has ended")
    assert (service.running, service.queued) == (0, 0)
    assert not table.request_slots.held, "rows are held"
    assert not table.blocks.pool.held, "blocks are held"
    assert not service._live
    assert not service._uncompiled
    # The driver's own check: a step that is being scheduled now may not be seen half done.
    table.request_slots.check_conservation()
    table.blocks.pool.check_conservation()
