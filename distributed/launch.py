"""Starting a command once for each rank of this machine, and ending all of them together.

torchrun would do, but for four things: of a command that a signal ends it does not say how its
ranks ended, it waits half a minute for a rank that is stopped, it leaves folders behind, and it
loads torch, which takes seconds.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import FrameType

from .meeting import Meeting

GRACE_S = 30.0
"""How long rank 0 may take to end when it is told to."""

LINGER_S = 10.0
"""How long the others may go on when one rank has ended: they hear of it at once."""

POLL_S = 0.02


@dataclass(frozen=True)
class Ended:
    """How the ranks of a command ended: the exit status, and which rank a signal has ended.

    `killed` is that rank and the signal's name, where rank 0 could not say why it ends.
    """

    status: int
    killed: tuple[int, str] | None = None


def launch(size: int, command: Sequence[str], grace_s: float = GRACE_S) -> Ended:
    """Run `command` as `size` ranks on this machine, until all have ended.

    INT and TERM are passed on to rank 0, which ends the others; what has not ended `grace_s`
    seconds later is killed, and so is what goes on when a rank has ended. Ranks that say
    `end_with_starter` end with this process. For the main thread.
    """
    ranks, meeting = _Ranks(), Meeting(size)
    try:
        with _passing_signals_on(ranks, grace_s):
            with closing(meeting):
                for rank in range(size):
                    # Ctrl-C in a terminal comes here alone.
                    process = meeting.start(rank, command, start_new_session=True)
                    ranks.processes.append(process)
                    ranks.pass_on()
            while not ranks.look():
                time.sleep(POLL_S)
    finally:
        ranks.kill()
        meeting.over()
    return ranks.ended()


@dataclass
class _Ranks:
    """The processes, and in which order they have ended."""

    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    until: float = float("inf")  # when those that are left are killed
    order: list[int] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)  # by us
    signals: list[int] = field(default_factory=list)  # that rank 0 has not got yet

    def pass_on(self) -> None:
        """Give rank 0 the signals that came, also those that came before it was there."""
        if not self.processes:
            return
        signals, self.signals = self.signals, []
        for number in signals:
            if 0 not in self.order:
                self.processes[0].send_signal(number)

    def look(self) -> bool:
        """Note who has ended; whether all have."""
        for rank, process in enumerate(self.processes):
            if rank not in self.order and process.poll() is not None:
                self.order.append(rank)
                self.until = min(self.until, time.monotonic() + LINGER_S)
        if time.monotonic() > self.until:
            self.kill()
        return len(self.order) == len(self.processes)

    def kill(self) -> None:
        """End those that have not ended."""
        for rank, process in enumerate(self.processes):
            if process.poll() is None:
                self.killed.add(rank)
                process.kill()
                process.wait()

    def ended(self) -> Ended:
        """What they came to: rank 0 has the first word, then whoever failed first."""
        statuses = [process.returncode for process in self.processes]
        if statuses[0] > 0:
            return Ended(statuses[0])
        for rank in self.order:
            if statuses[rank] < 0 and rank not in self.killed:
                number = signal.Signals(-statuses[rank])
                return Ended(128 + number, (rank, number.name))
        failed = [statuses[rank] for rank in self.order if statuses[rank] > 0]
        if not failed and 0 in self.killed:
            return Ended(128 + signal.SIGKILL, (0, signal.SIGKILL.name))
        return Ended(failed[0] if failed else 0)


@contextmanager
def _passing_signals_on(ranks: _Ranks, grace_s: float) -> Iterator[None]:
    def pass_on(number: int, frame: FrameType | None) -> None:
        ranks.until = min(ranks.until, time.monotonic() + grace_s)
        ranks.signals.append(number)
        ranks.pass_on()

    before = {each: signal.signal(each, pass_on) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
