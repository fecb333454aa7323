"""The middle of a gated MLP on a GPU, in one launch: what the gate lets through of `up`.

Shapes: T tokens, I numbers of each.
"""

import triton
import triton.language as tl
from torch import Tensor

from .forms import Activation

_BLOCK = 1024


def gated(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """`[T, I]`: `activation` of `gate[T, I]`, times `up[T, I]`.

    The activation is computed in float32 and rounded before it is multiplied, as in torch. The
    tensors may lie in memory in any way.

    Raises:
        ValueError: shapes do not fit.
    """
    if gate.shape != up.shape or gate.dim() != 2:
        raise ValueError(f"gate {tuple(gate.shape)} and up {tuple(up.shape)} do not fit together")
    out = gate.new_empty(gate.shape)
    tokens, width = gate.shape
    if out.numel() == 0:
        return out
    block = min(_BLOCK, triton.next_power_of_2(width))
    _gated[(tokens, triton.cdiv(width, block))](
        gate,
        up,
        out,
        width,
        *gate.stride(),
        *up.stride(),
        ACTIVATION=activation,
        BLOCK=block,
        num_warps=4,
    )
    return out


@triton.jit
def _gated(
    gate,
    up,
    out,
    width,
    gate_row_stride,
    gate_stride,
    up_row_stride,
    up_stride,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (token, part of its numbers)."""
    token = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < width
    x = tl.load(gate + token * gate_row_stride + d * gate_stride, mask=inside, other=0.0)
    other = tl.load(up + token * up_row_stride + d * up_stride, mask=inside, other=0.0)
    like = out.dtype.element_ty
    x = x.to(tl.float32)
    if ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        # 0.5 (1 + tanh(y)) = sigmoid(2y)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    x = x.to(like).to(tl.float32) * other.to(tl.float32)
    tl.store(out + token * width + d, x.to(like), mask=inside)
