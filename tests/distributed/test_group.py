"""Ranks hear of each other: messages whole and in order, and one end for all."""

import atexit
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import threading
from contextlib import suppress
from time import sleep
from typing import Any

import pytest

from stepweave.distributed import group as group_module
from stepweave.distributed import links as links_module
from stepweave.distributed.errors import GroupEnded, NoRanks
from stepweave.distributed.frames import BEAT, BadFrame, Frames, framed
from stepweave.distributed.group import Group
from stepweave.distributed.links import Door, knock
from stepweave.distributed.ranks import Ranks, ranks_of
from tests.distributed.pairs import LONG_S, ended, groups


def test_messages_come_out_whole_however_they_are_cut() -> None:
    sent: list[dict[str, Any]] = [{"kind": "a", "n": 1}, {"kind": "b", "text": "x" * 300}]
    data = framed(sent[0]) + BEAT + framed(sent[1])
    for size in (1, 3, 7, len(data)):
        frames = Frames()
        found = [m for at in range(0, len(data), size) for m in frames.push(data[at : at + size])]
        assert found == sent


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (struct.pack(">I", 1 << 30), "more than"),
        (struct.pack(">I", 3) + b"\x80\x04.", "no JSON"),
        (struct.pack(">I", 2) + b"[]", "no object with a `kind`"),
        (struct.pack(">I", 10) + b'{"kind":1}', "no object with a `kind`"),
    ],
)
def test_what_is_no_message_is_refused_before_it_is_read(data: bytes, said: str) -> None:
    with pytest.raises(BadFrame, match=said):
        list(Frames().push(data))


def test_who_does_not_know_the_secret_is_turned_away() -> None:
    door = Door("127.0.0.1")
    stranger = knock("127.0.0.1", door.port, "wrong", 1)
    silent = socket.create_connection(("127.0.0.1", door.port))
    silent.close()
    friend = knock("127.0.0.1", door.port, door.secret, 1)
    accepted = door.accept(1)
    accepted[1].sendall(b"hello")
    assert friend.recv(5) == b"hello"
    assert stranger.recv(5) == b"", "its connection was closed"
    for each in (stranger, friend, accepted[1]):
        each.close()


@pytest.mark.parametrize("secret", ["wröng", "\ud800"], ids=["umlaut", "half a letter"])
def test_a_secret_may_be_any_text_and_is_wrong_all_the_same(secret: str) -> None:
    door = Door("127.0.0.1")
    stranger = knock("127.0.0.1", door.port, secret, 1)
    friend = knock("127.0.0.1", door.port, door.secret, 1)
    accepted = door.accept(1)
    assert stranger.recv(5) == b"", "its connection was closed"
    for each in (stranger, friend, accepted[1]):
        each.close()


def test_who_says_whose_it_is_letter_by_letter_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links_module, "HELLO_S", 0.3)
    door = Door("127.0.0.1")
    stranger = socket.create_connection(("127.0.0.1", door.port))
    over = threading.Event()

    def dribble() -> None:
        hello = framed({"kind": "hello", "rank": 1, "secret": door.secret, "pid": 7})
        with suppress(OSError):  # it is turned away
            for each in hello:
                stranger.sendall(bytes([each]))
                over.wait(0.1)

    slow = threading.Thread(target=dribble)
    slow.start()
    friend = knock("127.0.0.1", door.port, door.secret, 1)
    accepted = door.accept(1)
    over.set()
    slow.join(LONG_S)
    assert door.processes == {1: os.getpid()}
    for each in (stranger, friend, accepted[1]):
        each.close()


def test_one_end_reaches_every_rank_with_the_first_reason() -> None:
    with groups(3) as made:
        made[2].end("the reason")
        made[2].end("another")
        assert {ended(each) for each in made} == {"the group of 3 ranks has ended: the reason"}
        with pytest.raises(GroupEnded):
            made[0].check()
        assert made[0].failure is not None
        assert made[0].failure.code == "SW-GROUP"


def moved_above(number: int, connection: socket.socket) -> socket.socket:
    """The same connection under a descriptor that is no smaller."""
    moved = socket.socket(fileno=fcntl.fcntl(connection, fcntl.F_DUPFD_CLOEXEC, number))
    connection.close()
    return moved


def test_ranks_of_processes_with_thousands_of_open_files_hear_of_each_other() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most[0] < 2000:
        pytest.skip("this system allows fewer open files")
    with socket.create_server(("127.0.0.1", 0)) as door:
        theirs = socket.create_connection(door.getsockname())
        pair = [moved_above(1500, each) for each in (theirs, door.accept()[0])]
    linked = [
        Group(Ranks(rank, 2, rank, 2), {1 - rank: pair[rank]}, silence_s=LONG_S) for rank in (0, 1)
    ]
    for each in linked:
        each.start()
        each._links._beat()  # which is due at once, and then after a part of the silence
    linked[1].end("the reason")
    assert ended(linked[0]).endswith("the reason")
    for each in linked:
        each.close()
        each._links._thread.join()


def test_a_rank_that_cannot_listen_any_more_ends_the_group() -> None:
    def broken() -> None:
        raise RuntimeError("no such clock")

    with groups(2, lambda group: group.on_tick(broken) if group.leads else None) as made:
        for each in made:
            assert "rank 0 cannot listen any more: RuntimeError: no such clock" in ended(each)


def test_a_rank_whose_connection_ends_is_named() -> None:
    with groups(3) as made:
        made[1]._links.cut()  # as when its process is killed
        assert ended(made[0]).startswith("the group of 3 ranks has ended: rank 1 is gone: ")
        assert ended(made[2]) == ended(made[0])


def test_what_this_rank_did_with_others_when_one_was_lost_is_told() -> None:
    with groups(2) as made:
        made[0].step = 7
        with made[0].meeting("receiving from rank 1"):
            made[1]._links.cut()
            assert ended(made[0]).endswith("; rank 0 was at step 7, receiving from rank 1")


def test_a_rank_that_says_nothing_is_named_and_its_process_ends_with_this_one() -> None:
    ours = socket.create_server(("127.0.0.1", 0))
    theirs = socket.create_connection(ours.getsockname())
    connection, _ = ours.accept()
    stopped = subprocess.Popen(["sleep", "1000"])
    os.kill(stopped.pid, signal.SIGSTOP)
    group = Group(
        Ranks(0, 2, 0, 2), {1: connection}, silence_s=1.0, processes={1: stopped.pid, 2: 1}
    )
    group.start()
    assert "rank 1 is gone: it said nothing for " in ended(group)
    assert group.failure is not None
    assert group.failure.gone == 1
    group.close()
    assert stopped.poll() is None, "this rank may still have something to say"
    group._at_exit()
    assert stopped.wait(LONG_S) == -signal.SIGKILL
    atexit.unregister(group._at_exit)
    ours.close()
    theirs.close()


def test_who_sends_to_a_rank_that_takes_nothing_is_released_when_the_group_ends() -> None:
    ours = socket.create_server(("127.0.0.1", 0))
    stopped = socket.create_connection(ours.getsockname())
    connection, _ = ours.accept()
    group = Group(Ranks(0, 2, 0, 2), {1: connection}, silence_s=LONG_S)
    group.start()
    told: list[str] = []

    def send(size: int) -> None:
        with pytest.raises(GroupEnded) as failure:
            group.send({"kind": "log", "arrived": "x" * size})
        told.append(failure.value.message)

    senders = [threading.Thread(target=send, args=(30 << 20,)) for _ in range(2)]
    for each in senders:
        each.start()
    while not group._links._peers[1].sending.locked():
        sleep(0.01)
    group.end("the reason")
    for each in senders:
        each.join(LONG_S)
    assert told == ["the group of 2 ranks has ended: the reason"] * 2
    group.close()
    atexit.unregister(group._at_exit)
    ours.close()
    stopped.close()


def test_a_rank_that_speaks_another_protocol_ends_the_group() -> None:
    with groups() as made:
        made[1].send({"kind": "greeting"})
        assert "rank 1 sent a message of unknown kind 'greeting'" in ended(made[0])
    with groups() as made:
        made[1]._links._peers[0].send(b"GET / HTTP/1.1\r\n\r\n")
        assert "rank 1 is gone: it sent a frame of 1195725856 bytes" in ended(made[0])


def test_a_message_that_lacks_something_ends_the_group() -> None:
    def prepare(group: Group) -> None:
        group.on("count", lambda rank, message: seen.append(int(message["n"])))

    seen: list[int] = []
    with groups(prepare=prepare) as made:
        made[1].send({"kind": "count", "n": "many"})
        assert "rank 1 sent a wrong message 'count'" in ended(made[0])
    assert seen == []


def test_a_rank_that_has_left_in_order_is_no_failure_until_it_is_needed() -> None:
    with groups() as made:
        made[1].close()
        while not made[0]._left:
            made[0]._links._thread.join(0.01)
        assert made[0].failure is None
        with pytest.raises(GroupEnded, match="rank 1 has left"):
            made[0].send({"kind": "end", "why": ""})


def test_a_rank_that_has_left_ends_the_group_of_one_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_module, "LEAVE_S", 0.0)
    with groups() as made:
        made[1].close()
        while not made[0]._left:
            made[0]._links._thread.join(0.01)
        for _ in range(3):  # however long that takes
            made[0]._tick()
        assert made[0].failure is None
        with made[0].meeting("receiving from rank 1"):
            assert "rank 1 has left" in ended(made[0])


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "2 ranks are asked for, but this process is no rank of a group: start .*torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "3"}, "the launcher has started 3"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2, but there are ranks 0 to 1"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "must be numbers"),
    ],
)
def test_a_process_that_is_no_rank_is_told_how_to_start(
    environment: dict[str, str], said: str
) -> None:
    with pytest.raises(NoRanks, match=said) as refused:
        ranks_of(2, environment)
    assert refused.value.code == "SW-RANKS"


def test_a_rank_knows_its_place() -> None:
    environment = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert ranks_of(4, environment) == Ranks(3, 4, 1, 2)
    assert not ranks_of(4, environment).on_one_machine


def test_messages_are_plain_json() -> None:
    assert json.loads(framed({"kind": "log"})[4:]) == {"kind": "log"}
