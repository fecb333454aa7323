"""The ranks of one machine: where they find each other, and that they end with who started them."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from .ranks import variables_of

HERE = "127.0.0.1"

MEETING_PORT = "STEPWEAVE_MEETING_PORT"
"""The variable that says at which port of this machine the ranks find each other."""

MEETING_SOCKET = "STEPWEAVE_MEETING_SOCKET"
"""The variable that says, to rank 0, under which descriptor it has the socket of that port."""

LIFELINE = "STEPWEAVE_LIFELINE"
"""The variable that says under which descriptor a rank has the end of a pipe whose other end is
with the process that started it: it is closed when that process ends, however it ends."""


class Meeting:
    """What the process that starts `size` ranks keeps open: a socket and a pipe.

    The port is taken before anybody knows of it, so that nobody else can have it.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.socket = socket.create_server((HERE, 0))
        self._told, self._held = os.pipe()

    def start(self, rank: int, command: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        """Start the process of a rank. `more` is of `Popen`. Raises `OSError`."""
        passed = [self._told]
        if rank == 0:
            passed.append(self.socket.fileno())
        variables = {**os.environ, **self.variables(rank), LIFELINE: f"{self._told}"}
        return subprocess.Popen(command, env=variables, pass_fds=passed, **more)

    def variables(self, rank: int) -> dict[str, str]:
        """By which a rank knows its place, as of torchrun, and where the ranks meet."""
        port = f"{self.socket.getsockname()[1]}"
        found = {"MASTER_ADDR": HERE, "MASTER_PORT": port, MEETING_PORT: port}
        if rank == 0:
            found[MEETING_SOCKET] = f"{self.socket.fileno()}"
        return found | variables_of(rank, self.size)

    def close(self) -> None:
        """When all are started, and the socket is with rank 0. The pipe stays as it is."""
        self.socket.close()

    def over(self) -> None:
        """When all have ended: nobody has to be told any more that this process goes on."""
        os.close(self._told)
        os.close(self._held)


def end_with_starter() -> None:
    """From now on this rank ends when the process that started it does, whatever it waits for.

    Nothing happens where it was not started by a `Meeting`.
    """
    if (told := os.environ.pop(LIFELINE, None)) is None:
        return

    def wait() -> None:
        os.read(int(told), 1)  # nothing is ever written
        os._exit(1)

    threading.Thread(target=wait, name="stepweave-lifeline", daemon=True).start()
