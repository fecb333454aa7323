"""The device's side of sampling as a few Triton kernels; the torch functions are their reference.

    checks.py   what is checked before a launch
    keys.py     a score and its token as one integer, so that the best is a maximum; masks
    noise.py    the Gumbel noise of `sampling.noise`, bit for bit, where it is used
    uniform.py  a number per draw, for rules that keep drafts at random
    choose.py   the best token, or a draw: one read of the logits each, nothing written back
    settle.py   which drafts of a window are kept, and the token after them
    verify.py   both of them: windows of drafts straight from the logits
    mask.py     logits with a grammar's mask applied
    scale.py    logits relative to the best one, divided by the temperature
    cut.py      top-k, top-p and min-p, by a search for the threshold
    hand_on.py  what the next step finds on the device

In torch a draw is over a hundred passes over numbers of the size of the logits, nearly all of them
for the noise, and as many launches. `backends.kernels` tells a caller whether they run; they import
Triton, so they are imported only where they do.
"""
