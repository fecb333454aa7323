"""DRY and XTC as plain loops over lists: what the ones on tensors must equal."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def dry(
    text: Sequence[int],
    multiplier: float,
    base: float,
    allowed_length: int,
    last_n: int = -1,
    breakers: Collection[int] = (),
    longest: int = 50,
) -> dict[int, float]:
    """What is taken off the logit of each token that may come after a text."""
    seen = list(text) if last_n < 0 else list(text)[max(0, len(text) - last_n) :]
    taken: dict[int, float] = {}
    for place in range(1, len(seen)):
        follower = seen[place]
        if follower in breakers:
            continue
        length = 0
        while (
            length < min(longest, place)
            and seen[place - 1 - length] == seen[-1 - length]
            and seen[-1 - length] not in breakers
        ):
            length += 1
        if length >= allowed_length:
            penalty = multiplier * base ** (length - allowed_length)
            taken[follower] = max(penalty, taken.get(follower, 0.0))
    return taken


def xtc(probabilities: Sequence[float], threshold: float) -> list[int]:
    """The tokens that are left out where top choices are, the most probable first."""
    ranked = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])
    top = [token for token in ranked if probabilities[token] >= threshold]
    return top[:-1]
