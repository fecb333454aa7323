"""A device that only remembers what was written where: the oracle for who may hold which block.

Steps run in order, each after it was scheduled and, at depth D, up to D − 1 steps late. What is
stored for a position is everything that its keys and values depend on: the tokens up to it; for
the drafter, which looks one token ahead, the tokens up to the next one. So a read finds out
whether the block holds what the reader believes, whoever wrote it.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stepweave.requests.batch import ScheduledRow, StepBatch
from stepweave.requests.request import Request, SamplingParams
from stepweave.requests.stopping import StopChecker
from stepweave.requests.swap import Swaps
from stepweave.requests.table import Limits, RequestTable


class Text:
    def push(self, ids: object) -> str:
        return ""

    def finish(self) -> str:
        return ""


def limits(**changes: int) -> Limits:
    sizes: dict[str, Any] = {
        "max_rows": 3,
        "token_budget": 16,
        "block_size": 4,
        "num_blocks": 30,
        "context_length": 64,
        "draft_tokens": 2,
        "max_queue": 8,
        **changes,
    }
    return Limits(**sizes)


def request(
    uid: int,
    prompt: int | tuple[int, ...] = 6,
    max_tokens: int = 20,
    window: int = 3,
    priority: int = 0,
    prompt_logprobs: int | None = None,
    fork_of: int | None = None,
) -> Request:
    ids = tuple(range(prompt)) if isinstance(prompt, int) else prompt
    return Request(
        uid=uid,
        id=str(uid),
        prompt="",
        prompt_ids=ids,
        params=SamplingParams(
            max_tokens=max_tokens, priority=priority, prompt_logprobs=prompt_logprobs
        ),
        max_tokens=max_tokens,
        stop_token_ids=frozenset(),
        stopper=StopChecker((), (), max_tokens),
        decoder=Text(),
        window=window,
        fork_of=fork_of,
    )


def settle(table: RequestTable, batch: StepBatch, tokens: int = 1) -> None:
    """Commit a step in which each row that yields got so many tokens, or as many as it can."""
    for row in batch.rows:
        table.settle(row)
        owner = table.find(row.request.uid)
        if row.yields and owner.phase != "done":
            room = owner.max_tokens - len(owner.output_ids)
            owner.output_ids += [1] * min(tokens, room, row.queries if row.decodes else 1)
            if len(owner.output_ids) == owner.max_tokens:
                table.finish(owner, "length")


def after(tokens: tuple[int, ...]) -> int:
    """The model: the next token is a function of all that came before."""
    return (sum(tokens) * 5 + len(tokens) * 3 + tokens[-1]) % 3


@dataclass
class Device:
    """Both caches, and the tokens of each request as the device has them."""

    limits: Limits
    window: int | None = None  # sliding, of all layers
    ahead: int = 1  # tokens the drafter looks ahead
    kv: dict[tuple[int, int], object] = field(default_factory=dict)
    draft_kv: dict[tuple[int, int], object] = field(default_factory=dict)
    tokens: dict[int, tuple[int, ...]] = field(default_factory=dict)
    garbage: int = 0
    host: dict[tuple[int, int], tuple[object, object]] = field(default_factory=dict)

    def swap(self, swaps: Swaps) -> None:
        """Copy blocks of both caches to the host, then others back."""
        for block, kept in swaps.out:
            for offset in range(self.limits.block_size):
                at = (block, offset)
                self.host[kept, offset] = (self.kv.get(at), self.draft_kv.get(at))
        for kept, block in swaps.into:
            for offset in range(self.limits.block_size):
                at = (block, offset)
                self.kv[at], self.draft_kv[at] = self.host[kept, offset]

    def copy(self, copies: Iterable[tuple[int, int]]) -> None:
        """Give blocks of both caches the contents of others."""
        for source, target in copies:
            for offset in range(self.limits.block_size):
                for cache in (self.kv, self.draft_kv):
                    cache[target, offset] = cache.get((source, offset))

    def run(self, request: Request, row: ScheduledRow, accepted: int) -> tuple[int, ...]:
        """One row of a step: check all that it attends to, write, return the sampled tokens."""
        uid, speculates = request.uid, request.speculates
        if row.decodes:
            base = len(self.tokens[uid]) - 1
            last = base + request.window
            fresh = accepted + 1
        else:
            base, last = row.start, row.start + len(row.tokens)
            prompt = tuple(request.token(position) for position in range(row.start))
            assert row.prefix in ((), prompt)
            self.tokens[uid] = prompt + row.tokens
            if not row.samples:
                assert row.following >= 0
                self.tokens[uid] += (row.following,)
            elif row.forced >= 0:
                assert row.following == row.forced
                self.tokens[uid] += (row.forced,)
            else:
                assert row.following == -1
            fresh = int(row.yields)
        self._attend(row, base, speculates)
        sampled: tuple[int, ...] = ()
        for _ in range(fresh):
            drawn = 0 if request.fork_of is None else uid  # completions of one prompt differ
            sampled += ((after(self.tokens[uid] + sampled) + drawn) % 3,)
        self.tokens[uid] += sampled
        known = self.tokens[uid]
        for position in range(base, min(last, self.limits.context_length - 1)):
            right = position < len(known) - bool(row.decodes or sampled)
            self._write(row, self.kv, position, known[: position + 1] if right else None)
        if speculates:
            # Each of its rounds feeds one token more, the first the last sampled one.
            far = len(known) - 3 + request.window if row.samples else last - 1
            for position in range(base, min(far + 1, self.limits.context_length)):
                right = position + self.ahead < len(known)
                value = known[: position + 1 + self.ahead] if right else None
                self._write(row, self.draft_kv, position, value)
        return sampled

    def _attend(self, row: ScheduledRow, first_query: int, speculates: bool) -> None:
        known = self.tokens[row.request.uid]
        for position in range(min(first_query, self.limits.context_length - 1)):
            if self.window is None or position > first_query - self.window:
                at = self._slot(row, position)
                assert self.kv[at] == known[: position + 1], "another prefix's keys"
                if speculates:
                    reads = known[: position + 1 + self.ahead]
                    assert self.draft_kv[at] == reads, "another prefix's drafter keys"

    def _write(
        self,
        row: ScheduledRow,
        cache: dict[tuple[int, int], object],
        position: int,
        value: object,
    ) -> None:
        self.garbage += 1
        cache[self._slot(row, position)] = self.garbage if value is None else value

    def _slot(self, row: ScheduledRow, position: int) -> tuple[int, int]:
        block, offset = divmod(position, self.limits.block_size)
        assert block < len(row.blocks), "past the blocks that it holds"
        assert row.blocks[block] != 0, "in a block that it gave back"
        return row.blocks[block], offset


@dataclass
class Simulation:
    """A table and a device at some depth. `step()` commits, schedules, and checks everything."""

    table: RequestTable
    device: Device
    depth: int
    reuse: int
    rnd: random.Random
    flying: list[StepBatch] = field(default_factory=list)
    steps: int = 0
    used: dict[int, int] = field(default_factory=dict)  # block -> last step that listed it
    lives: dict[tuple[int, int, int], int] = field(default_factory=dict)  # life -> blocks seen
    tables: dict[int, list[int]] = field(default_factory=dict)  # by request slot
    stop: float = 0.0
    out_after: int = 0  # steps from a block's last use to its copy to the host

    def step(self) -> StepBatch:
        if len(self.flying) == self.depth:
            self.commit(self.flying.pop(0))
        batch = self.table.schedule(self.steps)
        self._check(batch)
        self.flying.append(batch)
        self.steps += 1
        return batch

    def drain(self, most: int = 3000) -> None:
        while not self.table.idle:
            self.step()
            assert self.steps < most, "it does not end"
        while self.flying:
            self.commit(self.flying.pop(0))

    def commit(self, batch: StepBatch) -> None:
        if batch.swaps is not None:
            self.device.swap(batch.swaps)
        self.device.copy(batch.copies)
        for row in batch.rows:
            self.table.settle(row)
        for row in batch.rows:
            owner = self.table.find(row.request.uid)
            sampled = self.device.run(owner, row, self.rnd.randrange(owner.window))
            if not row.yields or owner.phase == "done":
                continue
            room = owner.max_tokens - len(owner.output_ids)
            owner.output_ids += sampled[:room]
            if len(sampled) >= room:
                self.table.finish(owner, "length")
            elif self.rnd.random() < self.stop:
                if self.rnd.random() < 0.5:
                    del owner.output_ids[-1:]  # a stop string takes its tokens back
                self.table.finish(owner, "stop")
        self.table.take_ended()
        self.table.check_conservation()

    def _check_table(self, row: ScheduledRow) -> None:
        """What is new of a block table makes the whole of it out of what was there before."""
        if not row.known:
            self.tables[row.request_slot] = []
        table = self.tables[row.request_slot]
        assert len(table) == row.known
        assert not set(row.passed) - set(range(row.known))
        for column in row.passed:
            table[column] = 0
        table.extend(row.blocks[row.known :])
        assert table == list(row.blocks)

    def _check(self, batch: StepBatch) -> None:
        self.table.check_conservation()
        size = self.device.limits.block_size
        for block, _ in batch.swaps.out if batch.swaps is not None else ():
            assert self.used.get(block, -self.out_after) + self.out_after <= batch.step
        assert sum(row.queries for row in batch.rows) <= self.device.limits.token_budget
        assert sum(len(row.prefix) for row in batch.rows) <= self.device.limits.context_length
        for row in batch.rows:
            owner = self.table.find(row.request.uid)
            life = (owner.uid, row.request_slot, row.generation)
            assert row.tokens or row.decodes, "a row that computes nothing"
            assert owner.phase == "running", "chosen, and then preempted"
            assert len(row.prefix) in (0, row.start)
            if life not in self.lives:
                assert row.start == len(row.prefix)
                self.lives[life] = row.start // size
            self._check_table(row)
            for block in row.blocks[self.lives[life] :]:
                assert self.used.get(block, -self.reuse) + self.reuse <= batch.step
            self.lives[life] = len(row.blocks)
            first = owner.settled - 1 if row.decodes else row.start
            written = set(row.blocks[first // size :]) - {0}
            for other in self.table.requests.values():
                if other is not owner and other.phase == "running":
                    assert not written & set(other.blocks), "writes into another's block"
        for row in batch.rows:
            self.used.update((block, batch.step) for block in row.blocks if block)
