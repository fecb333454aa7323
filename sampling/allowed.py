"""Which tokens packed masks allow, where single tokens are asked about and not lines of logits."""

from __future__ import annotations

from torch import Tensor


def are_allowed(bits: Tensor, lines: Tensor | None, tokens: Tensor) -> Tensor:
    """`[R, n]` bool: which of `tokens[R, n]` have a 1 in their line of `bits[M, V / 32]` int32.

    `lines[...]`: the number of each token's line, −1 where all is allowed; a column, if a row has
    one for all of its tokens; None: the number of the row. What is no token is taken for the
    nearest. Raises nothing of its own.
    """
    words = bits.shape[1]
    token = tokens.long().clamp(0, 32 * words - 1)
    if lines is None:
        return ((bits.gather(1, token // 32) >> (token % 32)) & 1).bool()
    word = bits.flatten()[lines.clamp(min=0) * words + token // 32]
    return ((word >> (token % 32)) & 1).bool() | (lines < 0)
