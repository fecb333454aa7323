"""Other ranks' processes on this machine: one that hangs is ended together with its group.

A process that is stopped, or waits inside a driver, hears nothing: neither that its group has
ended nor the launcher's signal. It would stay, with its memory and its port.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress


class Neighbour:
    """A process that lives now, held by a descriptor: its number cannot come to mean another.

    Without such descriptors, on another system than Linux, `kill` does nothing: that is left to
    the launcher.
    """

    def __init__(self, pid: int) -> None:
        self._descriptor: int | None = None
        if sys.platform == "linux":
            with suppress(OSError):  # it has ended, or is not ours
                self._descriptor = os.pidfd_open(pid)

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self._descriptor is not None and sys.platform == "linux":
            with suppress(OSError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            os.close(self._descriptor)
            self._descriptor = None
