"""Which of a model's layers one rank has."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ModelError


@dataclass(frozen=True, slots=True)
class Stage:
    """One of `count` stages, by its `index`. Raises `ValueError` where there is no such stage."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"there is no stage {self.index} of {self.count}")

    @property
    def first(self) -> bool:
        """Whether it is given tokens, and not what another stage made of them."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether it makes logits."""
        return self.index == self.count - 1

    def layers(self, total: int) -> range:
        """Its layers, of `total`. The last stages have fewer where they cannot be equal, since the
        last has the output layer too. Raises `ModelError` where a stage would have none.
        """
        if total < self.count:
            raise ModelError(
                f"{total} layers cannot be divided into {self.count} stages: take fewer"
            )
        each, more = divmod(total, self.count)
        start = self.index * each + min(self.index, more)
        return range(start, start + each + (self.index < more))

    def __str__(self) -> str:
        return f"stage {self.index} of {self.count}"
