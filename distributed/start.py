"""How a process joins its group: tensors by torch.distributed, everything else by own sockets."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..backends import device_called
from ..backends.registry import backend_of_name
from .errors import GroupError
from .group import SILENCE_S, Group
from .links import Door, knock
from .meeting import HERE, MEETING_PORT, MEETING_SOCKET
from .membership import Membership
from .ranks import Ranks, ranks_of

LOADING = timedelta(hours=2)
"""How long a collective waits: weights of ranks come at different times. Silence is noticed by the
links, long before."""

_ADDRESS_BYTES = 64


def join(size: int, device: str, silence_s: float = SILENCE_S) -> Membership:
    """This process as one of `size` ranks; `device` is the kind of device that each has one of.

    Raises `NoRanks` where it was not started as one of them, `NoDevice`, and `GroupError` where
    they cannot reach each other.
    """
    ranks = ranks_of(size)
    on_host = backend_of_name(device).on_host
    place = device_called(device if on_host else f"{device.partition(':')[0]}:{ranks.local_rank}")
    try:
        if not dist.is_initialized():
            backend_of_name(device).entered(place).__enter__()  # for good: it has no other
            backend = dist.get_default_backend_for_device(place)
            dist.init_process_group(backend, timeout=LOADING, **_meeting_place(ranks))
        connections, processes = _connected(ranks, place)
    except (OSError, RuntimeError) as error:
        raise GroupError(f"rank {ranks.rank} cannot join its group: {error}") from error
    group = Group(
        ranks,
        connections,
        silence_s=silence_s,
        abandon=_abandon,
        processes=processes if ranks.on_one_machine else None,
    )
    membership = Membership(group, place)
    membership.group.start()
    return membership


def _meeting_place(ranks: Ranks) -> dict[str, Any]:
    """Where the ranks find each other: as torchrun says, or behind the socket of a `Meeting`."""
    if (port := os.environ.get(MEETING_PORT)) is None:
        return {}
    listens = os.environ.get(MEETING_SOCKET)
    known: Any = dist  # it does not say that it has stores
    store = known.TCPStore(
        HERE,
        int(port),
        ranks.size,
        is_master=ranks.leads,
        timeout=LOADING,
        master_listen_fd=None if listens is None else int(listens),
    )
    return {"store": store, "rank": ranks.rank, "world_size": ranks.size}


def gathered(number: int, device: torch.device) -> list[int]:
    """This number of each rank, by rank. Raises `RuntimeError` where a rank is gone."""
    mine = torch.tensor([number], device=device)
    every = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return [int(each.item()) for each in every]


def _connected(
    ranks: Ranks, device: torch.device
) -> tuple[dict[int, socket.socket], dict[int, int]]:
    """Connections between rank 0 and the others, and the numbers of the processes at their ends.

    The address and the secret go by a broadcast.
    """
    host = "127.0.0.1" if ranks.on_one_machine else os.environ["MASTER_ADDR"]
    if ranks.leads:
        door = Door("127.0.0.1" if ranks.on_one_machine else "")
        _broadcast(f"{door.port} {door.secret} {os.getpid()}", device)
        return door.accept(ranks.size - 1), door.processes
    port, secret, process = _broadcast("", device).split()
    return {0: knock(host, int(port), secret, ranks.rank)}, {0: int(process)}


def _broadcast(text: str, device: torch.device) -> str:
    """The text of rank 0."""
    data = text.encode().ljust(_ADDRESS_BYTES)
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    dist.broadcast(tensor, src=0)
    return bytes(tensor.tolist()).decode().strip()


def _abandon() -> None:
    """Have collectives that wait for a rank end with an error, where the library can."""
    with suppress(Exception):
        torch.distributed.distributed_c10d._abort_process_group()
