"""How the times of a plan with modes are told: the guaranteed, of each mode, the expected."""

from __future__ import annotations

from ..graph.answers.modes import DRAWN, ModePeriods


def mode_words(found: ModePeriods) -> list[str]:
    """One sentence for each figure."""
    whatever = f"at most {found.worst_us:,.6g} µs a step, whatever the modes of steps are"
    if found.word:
        whatever += f"; as long with {' '.join(found.word)}, repeated"
    each = [f"{name} {us:,.6g}" for name, us in found.by_mode.items()]
    lines = [whatever, *([f"all steps in one mode: {', '.join(each)}"] if each else [])]
    if found.expected_us is not None and found.expected_least_us is not None:
        lines.append(
            f"expected {found.expected_us:,.6g} for the given shares (mean of {DRAWN:,} drawn "
            f"steps; never below {found.expected_least_us:,.6g}, that of average costs)"
        )
    if found.unconditional_us is not None:
        lines.append(
            f"with every wait in every mode: at most {found.unconditional_us:,.6g} µs a step"
        )
    return lines


def modes_gain(found: ModePeriods) -> str:
    """What is gained by modes, in place of one cost for each op."""
    gain = found.one_cost_us / found.worst_us if found.worst_us else 1.0
    return (
        f"modes: guaranteed {found.worst_us:,.6g} µs a step, {gain:.2f}× the steps per second of "
        "the guarantee without modes, where each op takes its longest "
        f"({found.one_cost_us:,.6g} µs)"
    )
