"""The ranks of a replica begin and end as one; the followers here are programs of a line."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.distributed.ranks import Ranks, ranks_of
from stepweave.replicas.gang import Gang

TELLS = """
import json, os, sys
line = sys.stdin.read()
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as pipe:
    pipe.write(json.dumps([dict(os.environ), line]))
os.read(int(os.environ["STEPWEAVE_LIFELINE"]), 1)
"""
WAITS = "import os; os.read(int(os.environ['STEPWEAVE_LIFELINE']), 1)"


def three() -> PipelineConfig:
    found = load_config("async", {"model.parallel.tensor": 3})
    assert isinstance(found, PipelineConfig)
    return found


@contextmanager
def gang(program: Sequence[str]) -> Iterator[tuple[Gang, list[str], threading.Event]]:
    """A gang of three, what it said of its end, and when it did."""
    said: list[str] = []
    over = threading.Event()

    def ended(why: str) -> None:
        said.append(why)
        over.set()

    with mock.patch.dict(os.environ):
        made = Gang(three(), ended, ("-S", "-c", *program))
        try:
            yield made, said, over
        finally:
            made.close()
            for each in made.followers:
                each.wait()


def test_each_follower_is_told_its_rank_and_the_pipeline(tmp_path: Path) -> None:
    for rank in (1, 2):
        os.mkfifo(tmp_path / f"{rank}")
    with gang((TELLS, str(tmp_path))):
        assert ranks_of(3) == Ranks(0, 3, 0, 3)
        for rank in (1, 2):
            environment, line = json.loads((tmp_path / f"{rank}").read_text())
            assert ranks_of(3, environment) == Ranks(rank, 3, rank, 3)
            assert environment["MASTER_PORT"] == os.environ["MASTER_PORT"]
            read = PipelineConfig.model_validate_json(line)
            assert read.model_dump_json() == three().model_dump_json()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_a_follower_ends_all_do_and_it_is_told_once(number: signal.Signals) -> None:
    with gang((WAITS,)) as (made, said, over):
        first, second = made.followers
        second.send_signal(signal.SIGSTOP)  # one that is stopped ends with the others
        first.send_signal(number)
        assert over.wait(300)
        assert second.wait() == -signal.SIGKILL
        assert said == [f"rank 1 has ended with status -{int(number)}"]


def test_one_that_was_closed_says_nothing_and_its_followers_end() -> None:
    with gang((WAITS,)) as (made, said, _):
        made.close()
        made.close()
        assert [each.wait() for each in made.followers] == [-signal.SIGKILL] * 2
        assert said == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one address of their own")
def test_ranks_find_each_other_on_this_machine_alone() -> None:
    with gang((WAITS,)):
        port = int(os.environ["MASTER_PORT"])
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))
