"""What families of decoders do differently in what stands between their products."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True)
class Norm:
    """An RMSNorm over `weight[H]`: numbers times the inverse root of their mean square."""

    weight: Tensor
    epsilon: float
    offset: bool = False  # weights are given less one
    rounds: bool = True  # to the precision of the numbers before they meet the weights


@dataclass(frozen=True)
class Angles:
    """Rotary positions: `cos[N, A]`, `sin[N, A]`, and which line of them is each token's."""

    cos: Tensor
    sin: Tensor
    index: Tensor | None = None  # [T], none below 0 is looked up; None: line t is of token t
    halved: bool = False  # both halves of what is turned have the same A angles
