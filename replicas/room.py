"""Whether machines have room for replicas, each of which needs all that it needs on one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def lack_of_room(
    need: Mapping[str, float], replicas: int, machines: Sequence[Mapping[str, float]]
) -> str | None:
    """What to say where fewer than `replicas` fit, by what Ray counts of each machine; else None.

    `need` is what one replica takes of each resource, `machines` what each machine has in all.
    """
    room = sum(
        int(min(each.get(name, 0.0) // count for name, count in need.items() if count))
        for each in machines
    )
    if room >= replicas:
        return None
    each = " and ".join(f"{count:g} {name}" for name, count in need.items() if count)
    return f"there is room for {room} of {replicas} replicas: each takes {each} of one machine"
