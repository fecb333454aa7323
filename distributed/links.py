"""Connections between rank 0 and every other rank: messages both ways, and signs of life.

They are sockets of our own beside the library that moves tensors: a rank that is stuck inside a
collective still hears here that another is gone, and why. One thread of each rank reads them.
"""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic

from .frames import BEAT, BadFrame, Frames, Message, framed, receive

HELLO_BYTES = 1 << 10
"""Of the message by which a connection begins: nobody is known before."""

CONNECT_S = 60.0
"""How long the ranks have to connect, all of them being there."""

HELLO_S = 5.0
"""How long one connection has to say whose it is: meanwhile no other is looked at."""

BEATS = 4
"""Signs of life in the time after which a silent rank counts as gone."""

_Selector: type[selectors.BaseSelector] = getattr(
    selectors, "PollSelector", selectors.DefaultSelector
)
"""Opens no file of its own, where the system has such a one."""

Receiver = Callable[[int, Message], None]
Lost = Callable[[int, str, bool], None]


class Door:
    """Where rank 0 waits for the connections of the others.

    `processes`: by rank, the number that each of those who came says its process has.
    """

    def __init__(self, host: str) -> None:
        self.processes: dict[int, int] = {}
        self._socket = socket.create_server((host, 0))
        self.port: int = self._socket.getsockname()[1]
        self.secret = secrets.token_hex(16)

    def accept(self, count: int) -> dict[int, socket.socket]:
        """The connections of ranks 1 to `count`. Who does not know the secret is turned away.

        Raises `OSError` where they do not come in time.
        """
        found: dict[int, socket.socket] = {}
        deadline = monotonic() + CONNECT_S
        try:
            while len(found) < count:
                self._socket.settimeout(max(0.01, deadline - monotonic()))
                connection, _ = self._socket.accept()
                rank = self._rank_of(connection, deadline)
                if rank is None or not 0 < rank <= count or rank in found:
                    connection.close()
                else:
                    found[rank] = connection
        finally:
            self._socket.close()
        return found

    def _rank_of(self, connection: socket.socket, deadline: float) -> int | None:
        until = min(monotonic() + HELLO_S, deadline)
        try:
            hello = receive(connection, HELLO_BYTES, until)
        except (BadFrame, OSError):
            return None
        secret, rank, pid = (hello.get(key) for key in ("secret", "rank", "pid"))
        own = self.secret.encode()
        known = isinstance(secret, str) and hmac.compare_digest(_bytes_of(secret), own)
        if not (known and isinstance(rank, int) and isinstance(pid, int)):
            return None
        self.processes.setdefault(rank, pid)
        return rank


def _bytes_of(text: str) -> bytes:
    """The bytes of any text that JSON may have, half a letter included."""
    return text.encode("utf-8", "surrogatepass")


def knock(host: str, port: int, secret: str, rank: int) -> socket.socket:
    """The connection of `rank` to rank 0. Raises `OSError`."""
    connection = socket.create_connection((host, port), timeout=CONNECT_S)
    hello = {"kind": "hello", "rank": rank, "secret": secret, "pid": os.getpid()}
    connection.sendall(framed(hello))
    return connection


def _takes_more(connection: socket.socket) -> bool:
    """Whether something can be sent without waiting."""
    # Not by `select`, which knows the first 1024 files of a process only.
    with _Selector() as selector:
        try:
            selector.register(connection, selectors.EVENT_WRITE)
        except ValueError:  # it is closed
            return False
        return bool(selector.select(0))


class _Peer:
    """One connection, and when it last said anything."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank, self.connection = rank, connection
        self.frames, self.sending = Frames(), threading.Lock()
        self.heard, self.left = monotonic(), False
        self.told = False  # the last message: no other follows, which might wait for ever
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, frame: bytes) -> None:
        with self.sending:
            if self.told:
                raise ConnectionError("nothing is sent any more")
            self.connection.sendall(frame)

    def end(self) -> None:
        """Say and hear nothing more; whoever sends or waits to gets an `OSError`."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def beat(self) -> None:
        """Say that this rank lives, unless something is being sent or cannot be."""
        if self.sending.acquire(blocking=False):
            try:
                if _takes_more(self.connection):
                    self.connection.sendall(BEAT)
            finally:
                self.sending.release()


class Links:
    """The connections of one rank. `send` may be called by any thread.

    `receive` gets each message on the thread that reads. `lost(rank, why, silent)` is called there
    for a rank whose connection ends without a farewell, that says nothing for `silence_s` seconds
    (`silent`), or that sends what is no message. `tick` is called there now and then, and
    `deaf(why)` where that thread fails.
    """

    def __init__(
        self,
        connections: Mapping[int, socket.socket],
        *,
        silence_s: float,
        receive: Receiver,
        lost: Lost,
        tick: Callable[[], None],
        deaf: Callable[[str], None],
    ) -> None:
        self._peers = {rank: _Peer(rank, each) for rank, each in connections.items()}
        self._silence_s = silence_s
        self._receive, self._lost, self._tick, self._deaf = receive, lost, tick, deaf
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="stepweave-links", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, message: Message, *, to: int | None = None) -> None:
        """To one rank, or to all that are connected. Raises `OSError` for one that is gone."""
        frame = framed(message)
        for rank, peer in self._peers.items():
            if to is None or to == rank:
                peer.send(frame)

    def tell(self, message: Message) -> None:
        """Send to all that can still be reached, and do not wait for those that cannot.

        For the last message of all: where another thread has been sending for too long, it may
        wait for a rank that takes nothing any more. That connection ends, and so does its wait.
        """
        frame = framed(message)
        for peer in self._peers.values():
            if peer.sending.acquire(timeout=0.1):
                peer.told = True
                with suppress(OSError):
                    if _takes_more(peer.connection):
                        peer.connection.sendall(frame)
                peer.sending.release()
            else:
                peer.end()

    def close(self) -> None:
        """Say farewell, and close all connections; whoever is sending is given up."""
        if self._over.is_set():
            return
        self.tell({"kind": "bye"})
        self.cut()

    def cut(self) -> None:
        """Close all connections."""
        self._over.set()
        for peer in self._peers.values():
            peer.end()

    def _read(self) -> None:
        """Listen until the end. Nobody would hear of an end that this thread has missed."""
        try:
            self._listen()
        except Exception as error:
            self._deaf(f"{type(error).__name__}: {error}")
        finally:
            for peer in self._peers.values():
                peer.connection.close()

    def _listen(self) -> None:
        period = self._silence_s / BEATS
        with selectors.DefaultSelector() as selector:
            for peer in self._peers.values():
                selector.register(peer.connection, selectors.EVENT_READ, peer)
            due = looked = monotonic()
            while not self._over.is_set():
                for key, _ in selector.select(min(0.1, period)):
                    if not self._hear(key.data):
                        selector.unregister(key.fileobj)
                now = monotonic()
                if now - looked > self._silence_s / 2:
                    # This rank was stopped itself: it cannot blame others.
                    for peer in self._peers.values():
                        peer.heard = now
                looked = now
                if now >= due:
                    due = now + period
                    self._beat()
                self._miss(now)
                self._tick()

    def _hear(self, peer: _Peer) -> bool:
        """Take in what there is of a peer; whether more may come."""
        try:
            data = peer.connection.recv(1 << 16)
            messages = list(peer.frames.push(data))
        except OSError as error:
            data, messages = b"", []
            why = f"its connection broke ({error.strerror or error})"
        except BadFrame as error:
            self._gone(peer, f"it sent {error.message}")
            return False
        else:
            why = "its connection was closed"
        peer.heard = monotonic()
        for message in messages:
            if message["kind"] == "bye":
                peer.left = True
            self._receive(peer.rank, message)
        if not data:
            self._gone(peer, why)
        return bool(data)

    def _gone(self, peer: _Peer, why: str, *, silent: bool = False) -> None:
        if not (peer.left or self._over.is_set()):
            peer.left = True
            self._lost(peer.rank, why, silent)

    def _beat(self) -> None:
        for peer in self._peers.values():
            if not peer.left:
                with suppress(OSError):  # reading says that it is gone
                    peer.beat()

    def _miss(self, now: float) -> None:
        """Give up who has been silent for too long."""
        for peer in self._peers.values():
            if now - peer.heard > self._silence_s:
                why = f"it said nothing for {now - peer.heard:.1f} s"
                self._gone(peer, why, silent=True)
