"""A command is started once for each rank, and all of them end together."""

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from stepweave.distributed import launch
from stepweave.distributed.launch import Ended
from stepweave.distributed.meeting import LIFELINE, MEETING_SOCKET, Meeting, end_with_starter
from tests.distributed.commands import children

LONG_S = 300.0
"""A time that does not pass in a test."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "LINGER_S", LONG_S)


def launched(script: str, size: int = 2) -> Ended:
    return launch.launch(size, ["sh", "-c", script])


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("exit 0", Ended(0)),
        ("exit $RANK", Ended(1)),
        ("exit $((3 - RANK))", Ended(3)),
        ("[ $RANK = 0 ] || kill -9 $$", Ended(137, (1, "SIGKILL"))),
        ("[ $RANK = 0 ] && exit 1; kill -9 $$", Ended(1)),
    ],
)
def test_the_status_is_that_of_rank_0_or_of_the_first_that_failed(
    script: str, ended: Ended
) -> None:
    assert launched(script) == ended


def test_every_rank_knows_its_place_and_rank_0_has_the_socket_where_they_meet(
    tmp_path: Path,
) -> None:
    names = "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE"
    has = f"[ -S /proc/self/fd/${{{MEETING_SOCKET}:-none}} ] && echo socket"
    script = f"cd {tmp_path}; echo {names} > $RANK; ({has}) >> $RANK; test $MASTER_PORT -gt 0"
    assert launched(script, 3) == Ended(0)
    found = [(tmp_path / f"{rank}").read_text().split() for rank in range(3)]
    assert found == [[*"0033", "socket"], [*"1133"], [*"2233"]]


def test_nothing_stays_open_when_all_have_ended() -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    assert launched("exit 0") == Ended(0)
    assert opened() == before


def test_who_goes_on_when_a_rank_has_ended_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "LINGER_S", 0.1)
    assert launched("[ $RANK = 1 ] && exit 4; exec sleep 1000") == Ended(4)


@pytest.mark.parametrize(
    ("number", "does", "grace_s", "ended"),
    [
        (signal.SIGTERM, "exit 7", LONG_S, Ended(7)),
        (signal.SIGINT, "exit 0", LONG_S, Ended(0)),
        (signal.SIGTERM, "true", 0.1, Ended(137, (0, "SIGKILL"))),  # it does not end
    ],
)
def test_a_signal_goes_to_rank_0_alone_which_ends_the_others(
    number: signal.Signals,
    does: str,
    grace_s: float,
    ended: Ended,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "LINGER_S", 0.1)
    ready = tmp_path / "ready"
    trap = f"trap '{does}' INT TERM; touch {ready}; while :; do sleep 0.01; done"
    script = f"[ $RANK = 0 ] || exec sleep 1000; {trap}"

    def press() -> None:
        while not ready.exists():
            pressed.wait(0.01)
        os.kill(os.getpid(), number)

    pressed = threading.Event()
    threading.Thread(target=press, daemon=True).start()
    assert launch.launch(2, ["sh", "-c", script], grace_s=grace_s) == ended


def test_a_signal_that_comes_while_ranks_are_started_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "LINGER_S", 0.1)
    ready = tmp_path / "ready"
    trap = f"trap 'exit 7' TERM; touch {ready}; while :; do sleep 0.01; done"
    start = Meeting.start

    def pressed(self: Meeting, rank: int, *given: Any, **named: Any) -> Any:
        process = start(self, rank, *given, **named)
        while rank == 0 and not ready.exists():
            threading.Event().wait(0.01)
        if rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(Meeting, "start", pressed)
    script = f"[ $RANK = 0 ] || exec sleep 1000; {trap}"
    assert launch.launch(2, ["sh", "-c", script], grace_s=LONG_S) == Ended(7)


WAITS = """
import os, sys, threading
from pathlib import Path
from stepweave.distributed.meeting import end_with_starter
end_with_starter()
Path(sys.argv[1], os.environ["RANK"]).open("w").close()
threading.Event().wait()
"""


def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    pipes = [tmp_path / f"{rank}" for rank in range(2)]
    for each in pipes:
        os.mkfifo(each)
    rank = [sys.executable, "-c", WAITS, f"{tmp_path}"]
    starts = f"from stepweave.distributed.launch import launch; launch(2, {rank!r})"
    launcher = subprocess.Popen([sys.executable, "-c", starts])
    for each in pipes:
        each.open().close()  # the rank is at the other end
    ranks = [os.pidfd_open(pid) for pid in children(launcher.pid)]
    assert len(ranks) == 2
    launcher.kill()
    launcher.wait()
    for descriptor in ranks:
        assert select.select([descriptor], [], [], LONG_S)[0], "the rank has ended"
        os.close(descriptor)


def test_a_process_that_nobody_started_as_a_rank_ends_with_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(LIFELINE, raising=False)
    before = threading.active_count()
    end_with_starter()
    assert threading.active_count() == before
