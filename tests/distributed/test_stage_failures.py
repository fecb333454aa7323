"""What goes wrong between stages is named by rank, step and op, and nothing is left of a group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stepweave.distributed import stage_links
from stepweave.distributed.errors import MessageFailed
from stepweave.distributed.stage_links import STEPS, StageLinks
from stepweave.graph.errors import StepweaveError
from stepweave.nodes.send import send
from tests.distributed.launched import started, written
from tests.distributed.stage_mutants_said import SAID


class Library:
    """What a library of collectives does of it: messages come in the order of the calls."""

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []

    def send(self, what: torch.Tensor, dst: int, group: object) -> None:
        self.sent.append(what.clone())

    def recv(self, into: torch.Tensor, src: int, group: object) -> None:
        if not self.sent:
            raise RuntimeError("Connection closed by peer")
        found = self.sent.pop(0)
        into[: len(found)] = found

    def broadcast(self, what: torch.Tensor, src: int, group: object) -> None:
        if what[-1] == stage_links.NOTHING:
            self.recv(what, src, group)
        else:
            self.sent.append(what.clone())


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[StageLinks]:
    monkeypatch.setattr(stage_links, "dist", Library())
    alike = {"size": 2, "check": lambda: None, "meeting": nullcontext}
    groups: list[Any] = [SimpleNamespace(rank=rank, **alike) for rank in (0, 1)]
    none: Any = SimpleNamespace(new=lambda ranks=None: None)
    return [StageLinks(group, none) for group in groups]


def receive(links: StageLinks, step: int, rows: int = 2) -> torch.Tensor:
    return links.receive(step, (rows, 3), torch.bfloat16, torch.device("cpu"))


def hear(links: StageLinks, step: int) -> tuple[torch.Tensor, ...]:
    return links.hear(step, [(2,), (1, 2)], torch.zeros(1))


@pytest.mark.parametrize("step", [0, 7, STEPS - 1, STEPS, 3 * STEPS + 5])
def test_messages_of_the_same_step_arrive_as_they_were_sent(
    links: list[StageLinks], step: int
) -> None:
    first, last = links
    hidden = torch.randn(2, 3).to(torch.bfloat16)
    first.send(step, hidden)
    assert torch.equal(receive(last, step), hidden)
    said = torch.tensor([5, -7]), torch.tensor([[8, 9]])
    last.tell(step, *said)
    assert all(map(torch.equal, hear(first, step), said))


def test_a_message_that_was_left_out_is_noticed_with_the_next(links: list[StageLinks]) -> None:
    first, last = links
    for step in (STEPS, STEPS + 1):
        first.send(step, torch.zeros(2, 3, dtype=torch.bfloat16))
    said = f"rank 1 is in step {STEPS + 1}, and rank 0 sent what is of step {STEPS}: one of them"
    with pytest.raises(MessageFailed, match=said):
        receive(last, STEPS + 1)
    assert receive(last, STEPS + 1).shape == (2, 3)
    last.tell(4, torch.zeros(2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(MessageFailed, match=r"rank 0 is in step 3, and rank 1 sent .* of step 4"):
        hear(first, 3)


def test_a_message_that_is_too_short_or_does_not_come_says_who_and_when(
    links: list[StageLinks],
) -> None:
    first, last = links
    first.send(6, torch.zeros(2, 3, dtype=torch.bfloat16))
    with pytest.raises(MessageFailed, match="in step 6, and rank 0 sent less than 10 numbers"):
        receive(last, 6, rows=3)
    last.tell(6, torch.zeros(1, dtype=torch.int64))
    with pytest.raises(MessageFailed, match="in step 6, and rank 1 sent less than 5 numbers"):
        hear(first, 6)
    with pytest.raises(MessageFailed, match="rank 1, receiving from rank 0 in step 7: Connection"):
        receive(last, 7)
    with pytest.raises(MessageFailed, match="rank 0, hearing from rank 1 in step 7: Connection"):
        hear(first, 7)


def test_a_stage_hands_on_as_many_numbers_as_the_next_one_expects(
    links: list[StageLinks],
) -> None:
    target: Any = SimpleNamespace(departs=3)
    staging: Any = SimpleNamespace(tokens=2)
    context: Any = SimpleNamespace(step=1)
    with pytest.raises(StepweaveError, match=r"expects \[2, 3\] numbers, not \[1, 3\]"):
        send(torch.zeros(1, 3), staging, links[0], target, context)
    send(torch.zeros(2, 3, dtype=torch.bfloat16), staging, links[0], target, context)
    assert receive(links[1], 1).shape == (2, 3)


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", SAID)
def test_what_goes_wrong_on_one_stage_is_named_by_every_rank_that_is_left(
    mutant: str, tmp_path: Path
) -> None:
    shared = set(Path("/dev/shm").iterdir())
    launched = started("stage_mutants.py", tmp_path, mutant)
    found = written(tmp_path)
    gone = {"first": 0, "last": 1}.get(mutant.partition("_")[0])
    output = launched.stdout[-4000:] + launched.stderr[-8000:]
    for rank, each in enumerate(found):
        if rank != gone:
            assert each is not None, output
            assert re.search(SAID[mutant], str(each["failure"])), each
    assert not processes_of(tmp_path), "every process of the group has ended"
    assert set(Path("/dev/shm").iterdir()) <= shared


def processes_of(out: Path) -> Mapping[str, str]:
    """Processes that were started for this folder, and what they run."""
    found = {}
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = each.read_text().replace("\0", " ")
        except OSError:
            continue  # it has ended meanwhile
        if str(out) in command:
            found[each.parent.name] = command
    return found
