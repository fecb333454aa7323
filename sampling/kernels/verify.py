"""Draft windows verified by drafter-invariant coupling, from scores or straight from the logits.

The whole of `policies.acceptance.coupled`, and the mask, the temperature and min-p before it, in
two launches if all rows are greedy and three if some draw; each but the last reads the logits once
and writes a few keys per line. Nothing of the size of the logits is written.

Shapes: S rows, windows of W = k + 1 positions, V tokens.
"""

from torch import Tensor

from ...backends.kernels import current
from ..noise import Purpose
from ..stand_ins import StandIns
from . import choose, settle
from .checks import check_shapes


def coupled_scores(
    target: Tensor,
    drafts: Tensor,
    valid: Tensor,
    seeds: Tensor,
    positions: Tensor,
    greedy: Tensor,
    *,
    any_random: bool = True,
) -> tuple[Tensor, Tensor]:
    """Tokens `[S, W]` and counts `[S]` of `acceptance.coupled` for `target[S, W, V]`.

    `drafts[S, W − 1]`, `valid[S]`, `seeds[S]`, `positions[S]`, `greedy[S]`: see `Windows`.
    """
    rows, width, vocab = target.shape
    check_shapes((rows, width - 1), drafts=drafts)
    flat = target.reshape(rows * width, vocab)
    with current(target.device):
        if any_random:
            keys = choose.draw_keys(flat, seeds, positions, greedy, Purpose.TARGET, width)
        else:
            keys = choose.best(flat)
        return settle.keep_equal(keys, drafts, valid)


def coupled(
    logits: Tensor,
    bits: Tensor | None,
    drafts: Tensor,
    valid: Tensor,
    seeds: Tensor,
    positions: Tensor,
    temperature: Tensor,
    *,
    lines: Tensor | None = None,
    stand_ins: StandIns | None = None,
    min_p: Tensor | None = None,
    forced: Tensor | None = None,
    any_random: bool = True,
) -> tuple[Tensor, Tensor]:
    """Tokens `[S, W]` and counts `[S]` of `logits[S, W, V]`, as `acceptance.coupled` gives them for
    `filtered_log_probs(…, normalized=False)` of the masked logits without top-k and top-p.

    `bits[M, V / 32]` int32, None for no mask; `lines[S, W]` which of its lines each place has, -1
    for none, None where all have one, in their order; `stand_ins` in the place of some lines of the
    logits, None where there are none; `temperature[S]`; `min_p[S]`, None if no row
    uses it. A row whose `forced[S]` is not negative gives that token alone. `drafts[S, W − 1]`,
    `valid[S]`, `seeds[S]`, `positions[S]`: see `Windows`.
    """
    rows, width, vocab = logits.shape
    check_shapes((rows, width - 1), drafts=drafts)
    flat = logits.reshape(rows * width, vocab)
    check_shapes((rows, width), lines=lines)
    whose = None if lines is None else lines.reshape(-1)
    with current(logits.device):
        if any_random:
            keys = choose.sample_keys(
                flat,
                bits,
                whose,
                temperature,
                min_p,
                seeds,
                positions,
                Purpose.TARGET,
                width,
                stand_ins,
            )
        else:
            keys = choose.best(flat, bits, whose, stand_ins)
        return settle.keep_equal(keys, drafts, valid, forced)
