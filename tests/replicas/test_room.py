"""Replicas that have no room are told of, in place of waiting for them without a word."""

from __future__ import annotations

import pytest

from stepweave.replicas.room import lack_of_room

TWO = {"CPU": 8.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("need", "replicas", "machines", "room"),
    [
        ({"CPU": 1, "GPU": 0}, 8, [TWO], None),
        ({"CPU": 1, "GPU": 0}, 9, [TWO], 8),
        ({"CPU": 1, "GPU": 1}, 4, [TWO, TWO], None),
        ({"CPU": 1, "GPU": 1}, 5, [TWO, TWO], 4),
        ({"CPU": 2, "GPU": 2}, 2, [TWO, TWO], None),
        ({"CPU": 4, "GPU": 4}, 1, [TWO, TWO], 0),  # all ranks of a replica on one machine
        ({"CPU": 3, "GPU": 1}, 4, [TWO, {"CPU": 64.0}], 2),
        ({"CPU": 1, "GPU": 1}, 1, [], 0),
    ],
)
def test_what_fits_on_each_machine_is_counted(
    need: dict[str, float], replicas: int, machines: list[dict[str, float]], room: int | None
) -> None:
    said = lack_of_room(need, replicas, machines)
    if room is None:
        assert said is None
    else:
        assert said is not None
        assert said.startswith(f"there is room for {room} of {replicas} replicas: each takes ")


def test_it_says_what_one_takes() -> None:
    said = lack_of_room({"CPU": 2, "GPU": 2}, 2, [TWO])
    assert said == ("there is room for 1 of 2 replicas: each takes 2 CPU and 2 GPU of one machine")
    assert "GPU" not in f"{lack_of_room({'CPU': 9, 'GPU': 0}, 1, [TWO])}"
