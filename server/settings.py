"""How the service is run: where it listens, who may use it, and how much it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a client may send or ask for. All of it is checked before it is expanded."""

    body_bytes: int = 8 << 20  # of a request
    header_bytes: int = 32 << 10  # of the request line and all headers
    headers: int = 100
    connections: int = 4096  # at the same time
    header_s: float = 10.0  # until all headers have come
    body_s: float = 30.0  # until the whole body has come
    write_s: float = 60.0  # that a client may leave what was sent unread
    idle_s: float = 30.0  # that a connection may be kept without a request
    completions: int = 256  # of one call: its prompts times n
    retry_after_s: int = 1  # what a client is told that finds the queue full


@dataclass(frozen=True, slots=True)
class Settings:
    """`models`: the names that requests may call the model by, the first being its own.

    `api_keys`: where there are none, everybody who reaches the port may use the service.
    `hosts`: the names that a request may call this host by; None: any. A page of another site can
    make a browser take this machine for that site's own, and then read what it answers; the name
    is what tells.
    `sampling`: parameters of requests that do not give them, before the API's own defaults.
    """

    models: tuple[str, ...]
    api_keys: tuple[str, ...] = ()
    hosts: frozenset[str] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    recorder: bool = True  # note when the ops of the last steps ran
    keep_alive_s: float | None = 15.0  # of silence, after which a stream has a sign of life
    drain_s: float = 30.0  # that what runs may take to end after TERM
    limits: Limits = field(default_factory=Limits)
