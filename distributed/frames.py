"""Messages between ranks: JSON objects in frames whose length is known before they are read.

Nothing is unpickled. A frame that is too long, or holds anything but an object with a `kind`, ends
the connection.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Any

from .errors import GroupError

Message = Mapping[str, Any]

MOST_BYTES = 64 << 20
"""Of one frame: a prompt of a few million tokens fits."""

_LENGTH = struct.Struct(">I")
BEAT = _LENGTH.pack(0)
"""An empty frame: the sender lives."""


class BadFrame(GroupError):
    """What came over a connection is no message of this protocol."""


def framed(message: Message) -> bytes:
    """A message as it is sent. Raises `BadFrame` for one that is too long."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MOST_BYTES:
        raise BadFrame(f"a message has {len(body)} bytes, more than {MOST_BYTES}")
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into messages; heartbeats are left out."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._bytes = bytearray()

    def push(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with `data`. Raises `BadFrame`."""
        self._bytes += data
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > self.most_bytes:
                raise BadFrame(f"a frame of {length} bytes, more than {self.most_bytes}")
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[_LENGTH.size : end])
            del self._bytes[:end]
            if length:
                yield _message(body)


def receive(connection: socket.socket, most_bytes: int, until: float) -> Message:
    """The first message of a connection, by which it is known whose it is.

    `until`: when it has to be there as a whole, by `monotonic`. Raises `BadFrame`, and `OSError`
    where the connection ends or its time is over.
    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, until))
    if not 0 < length <= most_bytes:
        raise BadFrame(f"a first frame of {length} bytes, more than {most_bytes} or none")
    return _message(_exactly(connection, length, until))


def _exactly(connection: socket.socket, count: int, until: float) -> bytes:
    found = b""
    while len(found) < count:
        if (left := until - monotonic()) <= 0:
            raise TimeoutError("the message did not come in time")
        connection.settimeout(left)
        more = connection.recv(count - len(found))
        if not more:
            raise ConnectionError("the connection ended")
        found += more
    return found


def _message(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"a frame is no JSON: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise BadFrame("a frame is no object with a `kind`")
    return message
