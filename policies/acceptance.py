"""acceptance: which drafts of a window are kept, and the token after them.

A rule says what it needs before any model is loaded, so that the graph of a pipeline that is only
checked declares the same accesses as the one that runs. Nothing here imports torch until `verify`
is called; the mathematics of the shipped rules is in `sampling.verification`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol, runtime_checkable

from pydantic import Field

from .policy import Policy

if TYPE_CHECKING:
    from ..sampling.windows import Verified, Windows


@runtime_checkable
class Acceptance(Protocol):
    """A rule that verifies draft windows against the target distribution.

    One that judges draft trees too has an attribute `trees`, which is True.
    """

    @property
    def exact(self) -> bool:
        """Whether its tokens are those of decoding without drafts.

        They are, if the token at a position is the draw from the target with the noise of (seed,
        position), and a draft is kept where it is that token. Nothing is left to choose then: the
        step may verify windows straight from the logits, without calling `verify`.
        """
        ...

    @property
    def compares(self) -> bool:
        """Whether it needs the distributions that drafts were drawn from.

        Then drafters draw with noise of their own (`Purpose.DRAFT`, keyed by the window and the
        place in it: `noise.of_window`) and hand on what they drew from; otherwise
        `Windows.draft_log_probs` is None.
        """
        ...

    @property
    def couples(self) -> bool:
        """Whether drafts are drawn with the noise that the target draws with at their position.

        Otherwise drafters that draw nothing to be compared offer their most likely token.
        """
        ...

    def verify(self, windows: Windows) -> Verified:
        """Verify one window per row, on the device.

        Rows do not influence each other. No place behind the first `valid` drafts and the token
        after them has any influence: masks there may be closed, logits may be anything. The token
        after the kept drafts has a probability above 0 in the target. The result depends on a
        row's own tensors only, never on the step, and noise is keyed by (seed, position, purpose):
        then tokens are equal at every depth. Ask the host nothing: no `.item()`, no boolean index,
        no shape that depends on what is accepted.
        """
        ...


class Coupled(Policy):
    """With the same seed, the tokens are the same with and without speculation.

    Drafter-invariant coupling (Daliri, Musco, Suresh 2024): see `sampling.verification.coupled`.
    """

    trees: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    compares: ClassVar[bool] = False
    couples: ClassVar[bool] = True

    def verify(self, windows: Windows) -> Verified:
        from ..sampling.verification import coupled

        return coupled(windows)


class Rejection(Policy):
    """Rejection sampling, which keeps the distribution but not the tokens.

    Speculative sampling (Leviathan et al. 2023, Chen et al. 2023): see
    `sampling.verification.rejection`.
    """

    trees: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    compares: ClassVar[bool] = True
    couples: ClassVar[bool] = False

    def verify(self, windows: Windows) -> Verified:
        from ..sampling.verification import rejection

        return rejection(windows)


class Block(Policy):
    """Rejection sampling of a window as a whole: the same distribution, no fewer drafts kept.

    Block verification (Sun et al. 2024): see `sampling.block_verification.block`.
    """

    exact: ClassVar[bool] = False
    compares: ClassVar[bool] = True
    couples: ClassVar[bool] = False

    def verify(self, windows: Windows) -> Verified:
        from ..sampling.block_verification import block

        return block(windows)


class Typical(Policy):
    """Keep what is likely enough. The output is not distributed as the model's.

    Typical acceptance (Cai et al. 2024, Medusa): see `sampling.verification.typical`. At
    temperature 0 the tokens are those without drafts.
    """

    trees: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    couples: ClassVar[bool] = False

    epsilon: float = Field(
        default=0.09, gt=0, lt=1, description="A draft of a higher probability is always kept."
    )
    delta: float = Field(
        default=0.3,
        gt=0,
        le=1,
        description="A less likely one is kept if its probability is above this times "
        "exp(−entropy) of the target.",
    )

    def verify(self, windows: Windows) -> Verified:
        from ..sampling.verification import typical

        return typical(windows, self.epsilon, self.delta)


class Synthetic(Policy):
    """For benchmarks: drafts are kept at given rates, so the output is not the model's.

    It measures what an engine would do with a drafter of such rates, and nothing else. See
    `sampling.verification.synthetic`.
    """

    exact: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    couples: ClassVar[bool] = False

    rates: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        min_length=1,
        max_length=16,
        description="The probability with which the draft at each position is kept, if those "
        "before it were, whichever token it is. The last one holds for all further positions.",
    )

    def verify(self, windows: Windows) -> Verified:
        from ..sampling.verification import synthetic

        return synthetic(windows, self.rates)
