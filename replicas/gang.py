"""The ranks of one replica: this process leads them, and starts the others on its machine.

They begin and end as one. The others end with the process that started them, whatever ends it, and
when one of them ends, whoever made the gang is told: a replica then ends, too, and a new one is
started with a new gang.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..distributed.meeting import Meeting

if TYPE_CHECKING:
    from ..configs.schema import PipelineConfig
    from ..distributed.group import Group


class Gang:
    """All ranks of `config` but this process, which becomes rank 0 of `join` by its environment.

    `on_end(why)` is called once, on another thread, when a follower ends or the group does, unless
    the gang was closed. The followers are not there any more, then.
    """

    def __init__(
        self,
        config: PipelineConfig,
        on_end: Callable[[str], None],
        program: Sequence[str] = ("-m", f"{__package__}.follower"),
    ) -> None:
        self._on_end, self._over = on_end, threading.Lock()
        self._meeting = Meeting(config.ranks)
        command = [sys.executable, *program]
        self.followers = [
            self._meeting.start(rank, command, stdin=subprocess.PIPE)
            for rank in range(1, config.ranks)
        ]
        os.environ.update(self._meeting.variables(0))
        self._meeting.socket.detach()  # it is that of rank 0, which is this process
        told = config.model_dump_json().encode() + b"\n"
        for rank, each in enumerate(self.followers, 1):
            assert each.stdin is not None, "it was asked for"
            with suppress(BrokenPipeError), each.stdin as pipe:  # it may have ended: that is told
                pipe.write(told)
            threading.Thread(target=self._wait, args=(rank, each), daemon=True).start()

    def ends_with(self, group: Group) -> None:
        """End when the group does: a follower that is stopped would stay."""
        group.on_end(lambda failure: self._end(failure.message))

    def close(self) -> None:
        """End the followers. They end by themselves when rank 0 leaves the group in order."""
        if self._over.acquire(blocking=False):
            self._kill()

    def _wait(self, rank: int, follower: subprocess.Popen[bytes]) -> None:
        self._end(f"rank {rank} has ended with status {follower.wait()}")

    def _end(self, why: str) -> None:
        if self._over.acquire(blocking=False):  # for good: there is one end
            self._kill()
            self._on_end(why)

    def _kill(self) -> None:
        for each in self.followers:
            each.kill()
