"""The KV blocks of all requests: who holds which, what is in them, when they are given back.

Everything here goes by settled counts, but for how much to reserve. The tokens of a request whose
keys and values are *in place* are those of its committed chunks and, once it decodes, all settled
tokens but the last, which has not been an input yet. No step that is in flight or yet to come
writes there, and none computes a query before the first position that is not in place: a decode
step begins at the last settled token or later, a drafter's round likewise. So a block wholly in
place may be shared, and what no query from there on attends to may be given back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..models.paged_cache import SCRATCH_BLOCK
from .attachments import content_of
from .batch import ScheduledRow
from .forks import Forks
from .limits import Limits
from .pools import KeyPool, Leases, one_class
from .prefix_cache import PrefixCache, block_hash, empty_hash
from .request import Request
from .swap import SWAP, SwapSpace

ONE_CLASS = one_class()


class BlockTable(NamedTuple):
    """The blocks of one request, and what is new of them since it was last scheduled.

    `known` entries were in its table by then, of which those at `passed` were given back since.
    """

    blocks: tuple[int, ...]
    known: int
    passed: tuple[int, ...]


@dataclass(slots=True)
class _Record:
    """What is known of one request's blocks. All but `names` is of its present admission."""

    names: list[bytes] = field(default_factory=list)  # of its full blocks, from the first on
    long: bool = False  # what the names are of: keys differ beyond a model's original context
    prefix: int = 0  # tokens found in the cache that no scheduled row has named yet
    computed: int = 0  # tokens whose chunks are committed, or that were found in the cache
    entered: int = 0  # blocks that the prefix cache has been told of
    passed: int = 0  # blocks that the sliding window has left behind
    told_passed: int = 0  # … when it was last scheduled
    table: BlockTable | None = None  # of its last scheduled row


class BlockManager:
    """Grants blocks to requests, shares those of known prefixes, takes them back.

    `cache_tail`: how many tokens after a block its contents depend on. An EAGLE drafter's keys
    and values at a position are made with the token after it, so there it is 1: the name of a
    speculating request's block then takes in that token too. `sliding_window`: the largest of
    all layers, if each layer has one; a query at position p attends to those after p − window.
    With `forks`, completions of one prompt share its blocks without `prefix_cache` too; `copies`: a
    step can copy blocks for them.
    Raises `ValueError` for a negative tail, and a window below 1.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        leases: Leases = ONE_CLASS,
        prefix_cache: bool = False,
        cache_tail: int = 0,
        sliding_window: int | None = None,
        host_blocks: int = 0,
        host_leases: Leases = ONE_CLASS,
        forks: bool = True,
        copies: bool = False,
    ) -> None:
        if cache_tail < 0:
            raise ValueError(f"cache_tail must be at least 0, not {cache_tail}")
        if sliding_window is not None and sliding_window < 1:
            raise ValueError(f"sliding_window must be at least 1, not {sliding_window}")
        self.limits = limits
        self.cache, self._for_all, self._for_forks = PrefixCache(), prefix_cache, forks
        self.forks = Forks(can_copy=copies)
        # The scratch block of the cache is never granted.
        self.pool = KeyPool(
            range(SCRATCH_BLOCK + 1, SCRATCH_BLOCK + 1 + limits.num_blocks),
            leases,
            evicted=self.cache.forget,
        )
        self.swap = SwapSpace(host_blocks, self.pool, leases, host_leases, self.cache)
        self.prefix_queries = 0  # tokens looked up in the prefix cache at admissions
        self.prefix_hits = 0  # tokens of them that were found
        self.freed_by_window = 0  # blocks given back below the sliding window
        self._tail = cache_tail
        self._window = sliding_window
        self._records: dict[int, _Record] = {}

    # -- admission -------------------------------------------------------------------------

    def admit(self, request: Request, step: int) -> bool:
        """Grant the blocks of its prompt and its first window; those that are cached are shared.

        Sets `blocks`, `prefilled` and `prefill_target` of the request, if there is room.
        """
        found, need = self._wanted(request)
        back = self._kept_after(request, len(found))
        if self.pool.available(step, without=found) < need or self.swap.is_leaving(request.uid):
            return False
        if back and self.pool.available(step, without=found, users=SWAP) < back:
            return False
        self.pool.share(found)
        filled = self.pool.grant(back, step, SWAP) if back else []
        fresh = self.pool.grant(need - back, step)
        assert filled is not None, "available() said so"
        assert fresh is not None, "available() said so"
        request.blocks = [*found, *filled, *fresh]
        if self.swap.blocks_of(request.uid):
            self.swap.come_back(request.uid, len(found), filled, step)
        hit = len(found) * self.limits.block_size
        back *= self.limits.block_size
        hit += 0 if back else self._copied(request, len(found), step)
        request.prefilled = cached = hit + back
        if request.preemptions == 0:
            request.cached_tokens = min(hit, len(request.prompt_ids))
        if self._for_all and self._shares(request):
            self.prefix_queries += request.prefill_target
            self.prefix_hits += len(found) * self.limits.block_size
        names = self._record(request).names
        self._records[request.uid] = _Record(names, request.long, cached, cached, len(found))
        self.forks.admitted(request)
        return True

    def awaits_prompt(self, request: Request) -> bool:
        """Whether another completion of its prompt is about to have computed what it can share.

        Of a prompt that fills no block there is nothing to share: to wait would take longer.
        """
        if request.resumes or not self._shares(request) or not self._full_of_prompt(request):
            return False
        others = self.forks.others(request)
        return bool(others) and not any(map(self._has_prompt, others))

    def _copied(self, request: Request, found: int, step: int) -> int:
        """Copy what the prompt has in its last block from another completion; how many tokens."""
        last, tokens = divmod(len(request.prompt_ids) - 1, self.limits.block_size)
        wanted = self.forks.can_copy and self._shares(request) and not request.resumes
        if not (wanted and tokens and found == last):
            return 0
        for other in self.forks.others(request):
            source = other.blocks[last]
            if self.swap.is_awaited(other.uid, step):
                continue  # it is being filled from the host
            if self._has_prompt(other) and other.long == request.long and source != SCRATCH_BLOCK:
                # It stays where it is until this step has read it, whatever becomes of its owner.
                self.pool.share([source])
                self.pool.release([source], step)
                self.forks.copy(source, request.blocks[last])
                request.last_step = step  # which writes this block, with a row of it or without
                return tokens
        return 0

    def _has_prompt(self, request: Request) -> bool:
        """Whether all of its prompt is in place but for the last token, which each computes."""
        return self._record(request).computed >= len(request.prompt_ids) - 1

    def _full_of_prompt(self, request: Request) -> int:
        """How many blocks its prompt fills, without the last token."""
        return (len(request.prompt_ids) - 1) // self.limits.block_size

    def _kept_after(self, request: Request, found: int) -> int:
        """How many blocks after the first `found` can be filled from the host."""
        most = (request.prefill_target - 1) // self.limits.block_size
        return max(0, min(self.swap.blocks_of(request.uid), most) - found)

    def fits_without(self, request: Request, victims: Sequence[Request], step: int) -> bool:
        """Whether there is room for `request` once the victims' blocks are free to grant."""
        found, need = self._wanted(request)
        theirs = Counter(block for each in victims for block in _held(each))
        freed = sum(
            self.pool.users(block) == count for block, count in theirs.items() if block not in found
        )
        released = self.pool.resting(without=found) + freed + len(self.swap.leaving)
        return self.pool.available(step, without=found) + released >= need

    def _wanted(self, request: Request) -> tuple[list[int], int]:
        """The cached blocks that a request could share, and how many more it needs."""
        limits = self.limits
        request.begin_prefill()
        if request.long != limits.is_long(request.settled):
            # Steps that were in flight when it gave way took it past the switch of embeddings.
            request.long = not request.long
            self.swap.drop(request.uid)
        found: list[int] = []
        if self._shares(request):
            # At least one token is computed: its logits, or the drafter's start, are wanted.
            most = (request.prefill_target - 1) // limits.block_size
            found = self.cache.find(self._names(request, most))
        reach = request.prefill_target + 1 + 2 * (request.window - 1)
        return found, limits.blocks_for(reach) - len(found)

    def _shares(self, request: Request) -> bool:
        """Whether it may take over blocks: not if it wants the logits of its whole prompt."""
        return self._keeps(request) and request.params.prompt_logprobs is None

    def _keeps(self, request: Request) -> bool:
        """Whether others may take over its blocks."""
        return self._for_all or (self._for_forks and request.fork_of is not None)

    # -- while it runs ---------------------------------------------------------------------

    def missing(self, request: Request) -> int:
        """Blocks it lacks for one more window, up to the furthest position a step may write.

        The upper bound counts every draft in flight as accepted; the drafter then writes as far
        past the window as the window is long.
        """
        furthest = request.upper_bound() + 2 * (request.window - 1)
        return self.limits.blocks_for(furthest) - len(request.blocks)

    def extend(self, request: Request, count: int, step: int) -> bool:
        granted = self.pool.grant(count, step)
        if granted is None:
            return False
        request.blocks.extend(granted)
        return True

    def pending_prefix(self, request: Request) -> int:
        """Tokens from the prefix cache that the next row of the request has to name."""
        return self._record(request).prefix

    def named_prefix(self, request: Request) -> None:
        self._record(request).prefix = 0

    def next_table(self, request: Request) -> BlockTable:
        """The table for a row that is scheduled now: the next is told from it."""
        record = self._record(request)
        before = record.table
        if before is None:
            found = BlockTable(tuple(request.blocks), 0, ())
        else:
            known, told = len(before.blocks), record.told_passed
            passed = tuple(range(told, min(record.passed, known)))
            same = known == len(request.blocks) and not passed
            found = BlockTable(before.blocks if same else tuple(request.blocks), known, passed)
        record.table, record.told_passed = found, record.passed
        return found

    def settle(self, request: Request, row: ScheduledRow) -> None:
        """A scheduled row is committed: its chunk, if it has one, is in place."""
        same_life = (row.request_slot, row.generation) == (request.request_slot, request.generation)
        if same_life and not row.decodes:
            self._record(request).computed = row.start + len(row.tokens)

    def keep_up(self, request: Request, step: int) -> None:
        """Enter what is newly in place into the prefix cache; give back what is out of reach."""
        self._enter(request, step)
        if self._window is not None:
            record = self._record(request)
            reach = self._in_place(request) - (self._window - 1)  # the first position attended
            last = min(reach // self.limits.block_size, len(request.blocks))
            passed = range(record.passed, last)
            self._give_back([request.blocks[index] for index in passed], request.last_step)
            for index in passed:
                request.blocks[index] = SCRATCH_BLOCK
            self.freed_by_window += len(passed)
            record.passed = max(record.passed, last)

    def can_keep(self, request: Request, step: int) -> int:
        """How many blocks of a request that gives way could wait on the host, from its first on.

        None where others share them, or its window has left some behind, or there is no room, or
        they have only just come from there.
        """
        if self.swap.is_filling(request.uid, step):
            return 0
        tail = self._tail if request.speculates else 0
        count = min(self._in_place(request), request.settled - tail) // self.limits.block_size
        alone = all(self.pool.users(block) == 1 for block in request.blocks[:count])
        return count if alone and self.swap.has_room(count, step) else 0

    def swap_out(self, request: Request, count: int, step: int) -> None:
        """Copy the first blocks of a request that gives way to the host: as many as `can_keep`."""
        self._enter(request, step)
        self.swap.leave(request.uid, request.blocks[:count], request.last_step, step)
        request.blocks[:count] = [SCRATCH_BLOCK] * count

    # -- the end ---------------------------------------------------------------------------

    def release(self, request: Request, step: int) -> None:
        """Take all blocks back, of a request that is preempted or ends."""
        self._enter(request, step)
        self.forks.released(request)
        # The end of a chain is no use without its beginning: it is evicted first.
        self._give_back(reversed(_held(request)), request.last_step)
        request.blocks = []

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self._records.pop(request.uid, None)
        self.swap.drop(request.uid)

    def forget_all(self) -> None:
        """Empty the prefix cache. Nobody holds blocks: steps were abandoned half-way.

        What is in place by the host's counts may lack the keys and values of a drafter whose
        step never got there, and which blocks these are is not known any more.
        """
        self._records.clear()
        self.swap.drop_all()
        self.pool.keep_nothing()

    def check_conservation(self, running: Iterable[Request]) -> None:
        """Every block is in one place, and its users are those who list it.

        Raises `PoolError`.
        """
        self.pool.check_conservation()
        self.swap.check_conservation()
        listed = Counter(block for request in running for block in _held(request))
        listed.update(self.swap.leaving)
        users = {block: self.pool.users(block) for block in self.pool.held}
        assert users == listed, "blocks leaked, or shared without being counted"
        self.cache.check(self.pool.held, self.pool.kept)

    # -- details ---------------------------------------------------------------------------

    def _record(self, request: Request) -> _Record:
        return self._records.setdefault(request.uid, _Record())

    def _in_place(self, request: Request) -> int:
        """Tokens from the first on whose keys and values committed steps have made, for good."""
        computed = self._record(request).computed
        if computed < request.prefill_target:
            return computed
        return max(computed, request.settled - 1)

    def _enter(self, request: Request, step: int) -> None:
        if self.swap.is_awaited(request.uid, step):
            return  # they are being filled, for a later step
        count = self._in_place(request) // self.limits.block_size if self._keeps(request) else 0
        if not self._for_all:
            count = min(count, self._full_of_prompt(request))
        record = self._record(request)
        names = self._names(request, count)
        for index in range(record.entered, len(names)):
            if request.blocks[index] != SCRATCH_BLOCK:
                self.cache.enter(names[index], request.blocks[index])
        record.entered = max(record.entered, len(names))

    def _names(self, request: Request, count: int) -> list[bytes]:
        """Names of the request's first `count` blocks, or of as many as settled tokens name."""
        record, size = self._record(request), self.limits.block_size
        if record.long != request.long:
            record.names, record.long = [], request.long
        names = record.names
        tail = self._tail if request.speculates else 0
        count = min(count, (request.settled - tail) // size)
        for start in range(len(names) * size, count * size, size):
            parent = names[-1] if names else self._root_of(request)
            stop = start + size + tail
            tokens = [request.token(at) for at in range(start, stop)]
            content = content_of(request.attachments, start, stop)
            names.append(block_hash(parent, tokens, content))
        return names[:count]

    def _give_back(self, blocks: Iterable[int], last_step: int) -> None:
        self.pool.release(blocks, last_step, keep=self.cache)

    def _root_of(self, request: Request) -> bytes:
        """Without speculation there are no keys of a drafter; those of a long text are others, and
        those by an adapter too.

        Whoever has another salt finds none: what is cached can be told by how soon an answer
        begins. Where nothing is cached for all, completions of one prompt find those of each other.
        """
        kind = "drafted" if request.speculates else "plain"
        known = f"{kind}, long" if request.long else kind
        known = f"{known}, adapter {request.adapter}" if request.adapter else known
        if not self._for_all:
            known = f"{known}, {request.fork_of}"
        return empty_hash(known.encode() + b"\0" + request.cache_salt)


def _held(request: Request) -> list[int]:
    """The blocks it holds, without the places of those that it has given back."""
    return [block for block in request.blocks if block != SCRATCH_BLOCK]
