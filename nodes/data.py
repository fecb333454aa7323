"""The data that travel between nodes, field by field: meaning, shape, unit.

Sizes: T tokens and N rows of the step, S of them sampling; W positions of the widest draft window,
the last token and up to k drafts; R request slots, of which a request keeps one while it
runs; P prompt tokens whose log-probabilities are asked for; V the vocabulary. Tensors of integers
are int64 unless said otherwise. Everything is immutable once it is published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ..models.tree_rows import TreeRows
from ..sampling.windows import BITS

if TYPE_CHECKING:
    from ..sampling.logprobs import Logprobs
    from .request_settings import RequestSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedStep:
    """`staging`: the batch in a pinned buffer, and what the host knows of it: never tokens."""

    flat: Tensor  # [words] pinned: the buffer, filled
    tokens: int  # T
    query_lens: tuple[int, ...]  # [N] tokens of each row
    blocks: int  # columns of the block tables in use
    row_blocks: tuple[int, ...] | None = None  # [N] of each row, where most have far fewer
    samples: int  # S
    width: int  # W
    draft_width: int  # the most drafts that a sampling row may be offered for its next window
    whole: bool  # every sampling row may be offered as many, and has room for them
    decodes: int  # rows that decode; they lie before the prefill rows
    given: int  # tokens that the host gives: those of prompt chunks
    adapters: bool  # some row has an adapter of the model
    axes: bool  # some row's positions have axes of their own
    encoded: int  # tokens that stand for encoded rows
    long: bool  # the model has a context of short texts, and rows are told apart by it
    ends: bool  # some row may come to its end, so that positions have to be checked
    clears: int  # request slots whose block tables begin anew
    changes: int  # entries of block tables that are new
    known: int  # tokens for the history
    prompt: int  # entries in use of the part `prompt`
    edited: int  # sampling rows whose logits are changed, or for which there is room; 0: nobody's
    readers: int  # the first so many of these are changed by what was written before
    biases: int  # … of `biases`
    bans: int  # … of `bans`
    words: int  # … of `words`
    repeats: int  # tokens that the end of a text is compared with what stands earlier; 0: nobody's
    dry: bool  # DRY may change some row's logits
    xtc: bool  # XTC may cut some row's tokens
    settings: tuple[str, ...]  # what nodes take from requests, by name; none where nobody gives any
    longest: int  # tokens: no row has more
    forced: bool  # some row's next token is known
    greedy: bool  # no sampling row draws at random
    any_top_k: bool  # top-k may cut some row's tokens
    any_top_p: bool  # top-p may cut some row's tokens
    penalized: bool  # some row's scores depend on its output so far
    structured: bool  # some row must not be sampled without its mask
    logprobs: int  # alternatives wanted beside each token; −1: none wants any
    prompt_logprobs: int  # the same of prompt tokens
    one_off: bool  # sizes as they are, not rounded up

    @property
    def masked(self) -> int:
        """Entries whose positions may be masked: tokens, and windows where there are drafts."""
        return self.tokens + (self.samples * self.width if self.width > 1 else 0)

    @property
    def apart(self) -> bool:
        """Whether rows whose logits are changed are listed: not where all are, in their order."""
        everyone = self.edited == self.samples and self.readers in (0, self.samples)
        return self.edited > 0 and not everyone


@dataclass(frozen=True, slots=True)
class Edits:
    """What requests change about their logits; None where no row asks for any of a kind.

    Of E sampling rows, of which the first T are changed by what was written before. Others may be
    among them, who ask for nothing and get their own logits. Sparse entries name one of the E.
    """

    rows: Tensor | None = None  # [E] which sampling rows they are; None: all, in their order
    lines: Tensor | None = None  # [S, W] each place's line of the E · W, −1: none; None: in order
    readers: int | None = None  # T; None: all
    penalties: Tensor | None = None  # [T, 3] float64: repetition, presence, frequency
    biases: Tensor | None = None  # [B, 2]: row, token
    bias_values: Tensor | None = None  # [B] float64: what is added to the logit
    bans: Tensor | None = None  # [B, 3]: row, token, the first output position that may be it
    words: Tensor | None = None  # [M, 2 + L]: row, length, tokens, right-aligned
    repeats: Tensor | None = None  # [T, 3 + B]: n of n-grams; DRY's allowed length, range, breakers
    dry: Tensor | None = None  # [2, T] float64: multiplier, base
    longest_match: int = 0  # tokens that the end of a text is compared with what stands earlier

    @property
    def wanted(self) -> bool:
        """Whether any request changes its logits."""
        kinds = (self.penalties, self.biases, self.bans, self.words, self.repeats)
        return any(each is not None for each in kinds)

    @property
    def reads_text(self) -> bool:
        """Whether they depend on what was written before."""
        return any(each is not None for each in (self.penalties, self.words, self.repeats))

    @property
    def bans_any(self) -> bool:
        """Whether tokens may be banned, which gives way where nothing else is left."""
        return any(each is not None for each in (self.bans, self.words, self.repeats))


GENERATION, STEP = 0, 1  # columns of tags


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The sampling rows of a step with their windows, on the device."""

    batch_index: Tensor  # [S] which rows of the batch they are
    request_slot: Tensor  # [S] where the tables keep their requests
    window_start: Tensor  # [S] position in the text of the window's first token
    first: Tensor  # [S] that token
    drafts: Tensor  # [S, W − 1], −1 where there is none
    valid: Tensor  # [S] how many of them may be considered
    forced: Tensor | None  # [S] a known next token, or −1; None if no row has one
    draft_limit: Tensor  # [S] drafts that the row may be offered for its next window
    logit_index: Tensor  # [S, W] which of the T tokens stands at each window position
    seeds: Tensor  # [S] of the requests
    prompt: Tensor  # [S] tokens of the prompt: an absolute position less these is one of output
    top_k: Tensor  # [S], 0: none
    temperature: Tensor  # [S] float64, 0: greedy
    top_p: Tensor  # [S] float64
    min_p: Tensor  # [S] float64
    tags: Tensor  # [S, 2]: the generation of the request slot, new for each owner; the step
    edits: Edits  # what the requests change about their logits
    draft_width: int  # no row may be offered more drafts
    longest: int  # no row has more tokens
    greedy: bool  # the host knows that nothing is drawn at random
    structured: bool  # some row has a grammar
    logprobs: int  # alternatives wanted beside each token, −1 for none at all
    any_top_k: bool = True  # top-k may cut some row's tokens
    any_top_p: bool = True  # top-p may cut some row's tokens
    whole: bool = False  # every request may be offered `draft_width` drafts, and has room for them
    xtc: Tensor | None = None  # [2, S] float64: probability, threshold; None: nobody asks for it
    settings: Tensor | None = None  # [A, S] float64: what requests give to nodes; None: nobody does
    setting_names: tuple[str, ...] = ()  # [A]
    branches: Tensor | None = None  # [S, 3, W] as in `DraftTable`; None: drafts are no trees

    def setting(self, of: RequestSetting) -> Tensor | None:
        """`[S]` float64: what each row's request gives for it; None where no row of the step gives
        any, so that all have the default. Raises `KeyError` where the kind does not list it.
        """
        if self.settings is None:
            return None
        if of.name not in self.setting_names:
            raise KeyError(f"{of.name!r} is not in `asks` of this node's kind")
        return self.settings[self.setting_names.index(of.name)]

    @property
    def generation(self) -> Tensor:
        """`[S]`, of the request slots."""
        return self.tags[:, GENERATION]

    @property
    def step(self) -> Tensor:
        """`[S]` the number of the step."""
        return self.tags[:, STEP]

    @property
    def cut(self) -> bool:
        """Whether top-k, top-p or XTC may cut some row's tokens."""
        return self.any_top_k or self.any_top_p or self.xtc is not None


@dataclass(frozen=True, slots=True)
class PromptTargets:
    """The prompt tokens whose log-probabilities are asked for."""

    token_index: Tensor  # [P] the tokens of the step that predict them
    targets: Tensor  # [P] the tokens
    top: int  # alternatives beside each


@dataclass(frozen=True, slots=True)
class TreePlaces:
    """Where the tokens of a step stand whose draft windows are trees.

    Of the places of a window, the first is its last token's; a draft's parent is at a place before
    its own. A tensor of *branches* says of each place its parent, its depth, and as the bits of
    one number which places are its ancestors or itself. A token's position is its depth behind
    the window's start, while its key is kept by its place.
    """

    places: Tensor  # [T], −1 for a masked token
    starts: Tensor  # [T] its window's first place; of a prompt's token its own
    bits: Tensor  # [T] which of the places from there on it sees
    width: int  # places of the widest window
    rows: int  # rows with a window; they lie first


@dataclass(frozen=True, slots=True)
class Inputs:
    """`inputs`: what the models compute on; tokens in the order of the batch's rows.

    `query_lens`, `decodes` and the shapes are all that the host knows.
    """

    ids: Tensor  # [T] the tokens; any of the vocabulary where one is masked
    positions: Tensor  # [T], −1 for a masked token, whose keys go to the scratch block
    cache_slots: Tensor  # [T] where the KV caches keep its keys and values
    blocks: Tensor  # [N, B] block tables
    following: Tensor  # [1 + G] −1, then tokens of prompts
    next_index: Tensor  # [T] the token after each: one of the S · W sampled ones, then `following`
    query_lens: tuple[int, ...]  # [N] tokens of each row
    request_slots: Tensor  # [N] where the tables keep their requests
    decodes: int  # rows that decode; they lie first
    sample: SampleRows | None  # None: no row samples
    prompt: PromptTargets | None  # None: nobody asks for log-probabilities of a prompt
    adapters: Tensor | None = None  # [T] the number of each row's adapter; None: no row has one
    long: Tensor | None = None  # [T] bool: rows beyond the model's original context, if it has one
    tree: TreePlaces | None = None  # where tokens of draft trees stand; None: there are none
    axes: Tensor | None = None  # [3, T] what is added to positions on each axis; None: nothing
    encoded: Tensor | None = None  # [2, E] tokens, and the encoded rows that they stand for
    row_blocks: tuple[int, ...] | None = None  # [N] of each row, where most have far fewer than B

    @property
    def only_decodes(self) -> bool:
        """Whether no prompt is computed: such a step may be recorded as one, and not in pieces."""
        return self.decodes == len(self.query_lens)

    @property
    def places(self) -> Tensor:
        """`[T]`: which of its row's keys is each token's; its position, but in a draft tree."""
        return self.positions if self.tree is None else self.tree.places

    @property
    def tree_rows(self) -> TreeRows | None:
        """The same for attention."""
        if self.tree is None:
            return None
        return TreeRows(self.tree.rows, self.tree.starts, self.tree.bits, self.tree.width)

    @property
    def blocks_of_samples(self) -> Tensor:
        """Block tables of the sampling rows, `[S, B]`: those of all, if all sample."""
        if self.sample is None or len(self.sample.batch_index) == len(self.query_lens):
            return self.blocks
        return self.blocks.index_select(0, self.sample.batch_index)

    @property
    def long_rows(self) -> Tensor | None:
        """`long` of each sampling row, `[S]`."""
        if self.long is None or self.sample is None:
            return None
        return self.long[self.sample.logit_index[:, 0]]


@dataclass(frozen=True, slots=True)
class FilledMask:
    """`mask_host`: the filled part of a mask buffer, in which it lies."""

    bits: Tensor  # [M, V / 32] int32, a line per window place of each row that has a grammar
    numbers: Tensor  # [S] or [S + S · W]: `valid` and, where rows look it up, `lines`
    rows: int  # S


@dataclass(frozen=True, slots=True)
class Mask:
    """`mask`: the same on the device."""

    bits: Tensor  # [M, V / 32] int32: 1 for a token that the grammar allows
    valid: Tensor  # [S] drafts that pass
    lines: Tensor | None = None  # [S, W] its line of `bits`, −1: all is allowed; None: line by line


@dataclass(frozen=True, slots=True)
class DraftMask:
    """`draft_mask`, and on the host `draft_mask_host`: what may follow the newest tokens."""

    bits: Tensor  # [M, V / 32] int32, a line for each row that has a grammar
    lines: Tensor | None  # [S] its line of `bits`, −1: all is allowed; None: line by line


@dataclass(frozen=True, slots=True)
class Sampled:
    """`sampled`: the tokens of a step."""

    tokens: Tensor  # [S, W], −1 after the first `counts`
    counts: Tensor  # [S] tokens, at least 1
    drafted: Tensor  # [S] drafts considered
    logprobs: Logprobs | None = None  # of all S · W positions, in order; None: nobody wants any
    prompt: Logprobs | None = None  # of the P prompt tokens
    paths: Tensor | None = None  # [S, W] of trees: the window place before each of the tokens


@dataclass(frozen=True, slots=True)
class Progress:
    """`progress`: how far each live request is; one step hands it to the next on the device.

    A request may sit out any number of steps, so every slot is carried forward.
    """

    last_token: Tensor  # [R]
    computed: Tensor  # [R] tokens whose keys and values are in place

    @staticmethod
    def empty(rows: int, device: torch.device | str = "cpu") -> Progress:
        return Progress(
            last_token=torch.zeros(rows, dtype=torch.int64, device=device),
            computed=torch.zeros(rows, dtype=torch.int64, device=device),
        )


@dataclass(frozen=True, slots=True)
class DraftTable:
    """`drafts`: the pending drafts of every live row.

    Tags name the row's generation and the step that drafted, so that nobody takes the drafts of
    another request, or of a row's earlier life, for his own.
    """

    tokens: Tensor  # [R, k], −1 where there is none
    tags: Tensor  # [R, 2]: generation, step
    branches: Tensor | None = None  # [R, 3, k + 1] of window places: `TreePlaces` says what

    @staticmethod
    def empty(
        rows: int, k: int, device: torch.device | str = "cpu", *, tree: bool = False
    ) -> DraftTable:
        branches = torch.zeros(rows, 3, k + 1, dtype=torch.int64, device=device) if tree else None
        if branches is not None:
            branches[:, BITS, 0] = 1
        return DraftTable(
            tokens=torch.full((rows, k), -1, dtype=torch.int64, device=device),
            tags=torch.full((rows, 2), -1, dtype=torch.int64, device=device),
            branches=branches,
        )


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a drafter offers the sampling rows."""

    tokens: Tensor  # [S, n] drafts, n ≤ k
    valid: Tensor | None  # [S] how many of them are meant; None: all
    log_probs: Tensor | None = None  # [S, n, V] what they were drawn from; None: they were not
    branches: Tensor | None = None  # [S, 3, n + 1] of a tree, as in `DraftTable`; None: no tree


@dataclass(frozen=True, slots=True)
class Kept:
    """`kept`: the tokens of a drafter's padded first pass that are real."""

    token_index: Tensor  # [L] pinned: which tokens of the pass they are
    query_lens: tuple[int, ...]  # how many of each row


@dataclass(frozen=True, slots=True)
class HostLogprobs:
    """Log-probabilities of up to L tokens, pinned; alternatives are packed as many as computed."""

    logprob: Tensor  # [L] float32
    rank: Tensor  # [L], 1: the best
    top_tokens: Tensor  # [L, most] the best tokens
    top_logprobs: Tensor  # [L, most] float32


@dataclass(frozen=True, slots=True)
class HostSampled:
    """`host_sampled`: `Sampled` on the host, pinned; log-probabilities where asked for."""

    fixed: ClassVar[bool] = True  # allocated once: captured segments know it by identity

    tokens: Tensor  # [S, k + 1], packed, W to a row
    counts: Tensor  # [S]
    drafted: Tensor  # [S]
    logprobs: HostLogprobs  # of position j of sampling row s at index s · W + j
    prompt: HostLogprobs  # of the prompt tokens, in the order of the batch
    paths: Tensor | None = None  # [S, k + 1] of trees, packed as the tokens


@dataclass(frozen=True, slots=True)
class HostTokens:
    """`host_tokens`: the tokens of `Sampled` on the host, pinned."""

    fixed: ClassVar[bool] = True  # as above

    tokens: Tensor  # [S, k + 1], packed, W to a row
    counts: Tensor  # [S]


@dataclass(frozen=True, slots=True)
class HostDrafts:
    """`host_drafts`: `DraftTable` on the host, pinned."""

    fixed: ClassVar[bool] = True  # as above

    tokens: Tensor  # [R, k]
    tags: Tensor  # [R, 2]
    branches: Tensor | None = None  # [R, 3, k + 1]


@dataclass(frozen=True, slots=True)
class SettledRow:
    """What one request got from one step: its tokens, or the error that ends it."""

    uid: int  # the request's number
    tokens: tuple[int, ...] = ()  # what it got, in order
    drafted: int = 0  # drafts of this step's window
    accepted: int = 0  # of the drafts in this step's window, before a stop cuts the tokens
    error: str | None = None  # why the request ends


SettledRows = tuple[SettledRow, ...]
"""`settled`: one for each request that the step settled something for."""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Whom an op could not work for."""

    uid: int  # the request's number
    error: str  # why, for whoever asked


RequestFailures = tuple[RequestFailure, ...]
"""`request_failures`: one for each thing that could not be done, in order."""


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """The output of a request that has ended by a stop or by its length."""

    tokens: tuple[int, ...]
    after: int  # no request with a higher number had arrived by then


EndedRequests = tuple[EndedRequest, ...]
"""`ended_requests`: one for each request that ended in the step, in order."""
