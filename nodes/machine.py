"""What decode ops run on: the models and the sizes that only a loaded model knows.

An empty machine is enough to build and check a graph; the engine fills it before a run. Anything
that changes across steps is not here but a declared state, or the plan could not order it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..policies.acceptance import Acceptance, Coupled

if TYPE_CHECKING:
    import torch

    from ..models.causal_lm import CausalLM
    from ..models.eagle import EagleHead
    from ..requests.table import Limits


@dataclass
class Machine:
    """Fixed equipment of one engine. Access through the properties, which say what is missing."""

    limits_or_none: Limits | None = None
    model_or_none: CausalLM | None = None
    drafter_or_none: CausalLM | None = None
    head_or_none: EagleHead | None = None
    acceptance: Acceptance = field(default_factory=Coupled)
    vocab_size: int = 0  # the target's output layer
    buckets: tuple[int, ...] = ()  # rows to which decode steps are rounded up; none: they are not

    @property
    def limits(self) -> Limits:
        assert self.limits_or_none is not None, "this graph was built for checking, not for a run"
        return self.limits_or_none

    @property
    def model(self) -> CausalLM:
        assert self.model_or_none is not None, "no model is loaded"
        return self.model_or_none

    @property
    def device(self) -> torch.device:
        """Where device ops find their data: that of the model; the CPU without one."""
        import torch

        return self.model_or_none.device if self.model_or_none else torch.device("cpu")

    @property
    def drafter(self) -> CausalLM:
        assert self.drafter_or_none is not None, "no drafter is loaded"
        return self.drafter_or_none

    @property
    def head(self) -> EagleHead:
        assert self.head_or_none is not None, "no EAGLE head is loaded"
        return self.head_or_none
