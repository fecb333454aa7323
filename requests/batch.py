"""The scheduled batch of one step: immutable all the way down, every row with its identity.

A batch holds what the ops of its step need to know of the requests, and no request: what a request
has come to is in the `requests` state, for the ops that declare it. So a batch says the same
whenever and wherever it is read, in another process too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .attachments import Axes, Encode
from .params import SamplingParams
from .swap import Swaps


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What a request asks for: fixed from the moment it arrives.

    `uid`: its number, by which its state is found; `id`: its name, for messages. `prompt_tokens`:
    tokens of its prompt. `window`: query tokens of its widest decode row, the last token and
    the drafts.
    `stop_tokens`: token ids that end it, ascending. `bad_words`: forbidden sequences of token ids.
    `dry_breakers`: token ids at which DRY breaks sequences. `settings`: the numbers that it
    gives to nodes, by name.
    `adapter`: the number of its adapter of the model; 0: it has none.
    `axes`: where its tokens stand, if not at their places in the text.
    `structured`: a grammar says what it may output.
    """

    uid: int
    id: str
    params: SamplingParams
    prompt_tokens: int
    window: int = 1
    stop_tokens: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    dry_breakers: tuple[int, ...] = ()
    settings: tuple[tuple[str, float], ...] = ()
    adapter: int = 0
    axes: Axes | None = None
    structured: bool = False


class ScheduledRow(
    NamedTuple
):  # one per row and step: a frozen dataclass takes three times as long
    """One row of a step, named by (step, request slot, generation).

    A decode row has no `tokens`: they are on the device. A prefill row computes `tokens` from
    position `start` on. `samples`: a window of logits is wanted. `forced` ≥ 0 is the token that
    a resumed row already has; it is handed to the drafter and yields no output. `following` is
    the settled token after a chunk's last, −1 where it is yet to be sampled. `prefix` are the
    tokens before `start` whose keys and values came from the prefix cache: named once, in the
    row's first chunk. At its `limit` a row ends, or its request is computed anew.

    `blocks` is the whole block table. The device has its first `known` entries, of the row's last
    step, and of them those at `passed` were given back since; without any it begins a new table.

    Its window is by `narrowed` shorter than its request's widest, and it may be offered `withheld`
    fewer drafts than the most for its next one.

    `most`: tokens of prompt and output that there can be once this step is done, every draft in
    flight accepted. `too_short`: it may yet be too short for a stop token; where it is, the stop
    tokens are banned by position, so a row that is said to be so for too long loses nothing.
    `earlier_output`: of a structured row, the tokens that were settled when this run of the engine
    began. `prompt_targets`: the prompt tokens that this chunk's tokens predict, one for each from
    the first on, if their log-probabilities are asked for. `encoded`: which of `tokens` stand for
    encoded rows, as runs of (token, row, how many).
    """

    request: RequestSpec
    request_slot: int
    generation: int
    blocks: tuple[int, ...]
    start: int = -1
    tokens: tuple[int, ...] = ()
    samples: bool = True
    forced: int = -1
    following: int = -1
    prefix: tuple[int, ...] = ()
    limit: int = 1 << 62  # tokens that it may come to, of its request's prompt and output
    most: int = 0
    too_short: bool = False
    earlier_output: tuple[int, ...] = ()
    prompt_targets: tuple[int, ...] = ()
    known: int = 0
    passed: tuple[int, ...] = ()
    narrowed: int = 0
    withheld: int = 0
    encoded: tuple[tuple[int, int, int], ...] = ()

    @property
    def queries(self) -> int:
        """Query tokens that this row takes of the budget."""
        return self.window if self.decodes else len(self.tokens)

    @property
    def window(self) -> int:
        """Query tokens of its window, if it decodes."""
        return self.request.window - self.narrowed

    @property
    def drafts(self) -> int:
        """The most drafts that it may be offered for its next window."""
        return self.request.window - 1 - self.withheld

    @property
    def decodes(self) -> bool:
        return self.start < 0

    @property
    def yields(self) -> bool:
        """Whether `commit` gets tokens of this row."""
        return self.samples and self.forced < 0


@dataclass(frozen=True)
class StepBatch:
    """The rows of one step in the order in which their tokens lie in the model's input.

    `padding`: with how many rows of no request the step is rounded up to a size that comes up
    again and again, for captured graphs; then every row has the widest window and the longest
    block table too. None: sizes are as they are. `swaps`, `copies`: KV blocks to copy before any
    row runs; the latter are pairs, from and to. `encodes`: what is encoded in the step, for rows of
    this or of later ones.
    """

    step: int
    rows: tuple[ScheduledRow, ...] = ()
    padding: int | None = None
    swaps: Swaps | None = None
    copies: tuple[tuple[int, int], ...] = ()
    encodes: tuple[Encode, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows)

    @cached_property
    def sampling(self) -> tuple[ScheduledRow, ...]:
        """Rows with a window of logits, in the order of `sampled`, `mask` and the copies."""
        return tuple(row for row in self.rows if row.samples)

    @property
    def padded_size(self) -> int:
        """Rows, with those of no request."""
        return len(self.rows) + (self.padding or 0)

    @property
    def samples(self) -> int:
        """Sampling rows, with those of no request."""
        return len(self.sampling) + (self.padding or 0)

    @cached_property
    def width(self) -> int:
        """The widest draft window among the sampling rows: 1 where none of them has drafts."""
        return max((row.window for row in self.sampling if row.decodes), default=1)

    @cached_property
    def draft_width(self) -> int:
        """The most drafts that any sampling row may be offered for its next window."""
        return max((row.drafts for row in self.sampling), default=0)

    @cached_property
    def logprobs(self) -> int:
        """The most alternatives that a yielding row wants beside its tokens; −1: none wants any."""
        asked = (row.request.params.logprobs for row in self.sampling if row.yields)
        return max((count for count in asked if count is not None), default=-1)

    @cached_property
    def prompt_logprobs(self) -> int:
        """The same of prompt tokens, over all prefill rows."""
        asked = (row.request.params.prompt_logprobs for row in self.rows if row.prompt_targets)
        return max((count for count in asked if count is not None), default=-1)

    @cached_property
    def all_greedy(self) -> bool:
        return all(row.request.params.temperature == 0 for row in self.sampling)

    @cached_property
    def any_top_k(self) -> bool:
        """Whether top-k may cut some row's tokens."""
        every = (row.request.params for row in self.sampling)
        return any(params.temperature > 0 and params.top_k > 0 for params in every)

    @cached_property
    def any_top_p(self) -> bool:
        """Whether top-p may cut some row's tokens."""
        every = (row.request.params for row in self.sampling)
        return any(params.temperature > 0 and params.top_p < 1 for params in every)

    @cached_property
    def structured(self) -> bool:
        """Whether any row that yields tokens has a grammar."""
        return any(row.yields and row.request.structured for row in self.sampling)
