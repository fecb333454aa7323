"""A request in simulated time: how long its prompt and answer are, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random


@dataclass(slots=True, eq=False)
class Job:
    """A request without tokens. Times are µs of the simulated clock.

    Each step that verifies drafts draws how many are accepted from `draw`, in the order of the
    request's own steps: so what is accepted does not depend on when steps run.
    """

    uid: int
    due_us: float
    prompt: int
    output: int
    seed: str
    computed: int = 0  # tokens whose keys and values are in the cache, or will be
    target: int = 0  # of them, those that a prefill computes
    settled: int = 0  # output tokens that the host knows
    in_flight: int = 0  # steps in flight that will give it tokens
    silent: int = 0  # steps in flight that will give it none
    blocks: int = 0
    turn: int = 0
    running: bool = False
    resumes: bool = False  # it was preempted: its last token is known already
    began_us: float | None = None
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # when tokens came, how many
    windows: int = 0  # steps that verified drafts
    accepted: int = 0
    refused: str | None = None
    draw: Random = field(init=False)

    def __post_init__(self) -> None:
        self.draw = Random(self.seed)

    @property
    def decodes(self) -> bool:
        """Whether its prompt is in the cache, or will be when the steps in flight are done."""
        return self.running and self.computed >= self.target

    @property
    def done(self) -> bool:
        return self.settled >= self.output

    def again(self) -> Job:
        """The same request, not served yet, with the same draws."""
        return Job(self.uid, self.due_us, self.prompt, self.output, self.seed)

    def accept(self, drafts: int, chance: float) -> int:
        """How many of the drafts are accepted: each with that chance, up to the first that is not.

        Draws once for each draft whatever happens.
        """
        kept = [self.draw.random() < chance for _ in range(drafts)]
        return kept.index(False) if False in kept else drafts
