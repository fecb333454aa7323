"""Every policy that ships, made with options where it has no defaults."""

from __future__ import annotations

from typing import Any

from stepweave.policies.registry import DECISIONS, known, policy

OPTIONS: dict[str, dict[str, Any]] = {
    "acceptance.synthetic": {"rates": (0.5, 0.25)},
    "resumption.cheaper": {"block_us": 20, "token_us": 3},
    "drafting.by_rows": {"tokens": 9},
    "drafting.by_acceptance": {"cost": 0.3, "windows": 4, "every": 1},
    "drafting.fastest": {
        "rows": (1, 4),
        "periods_us": ((1.0, 1.1, 1.2, 1.3), (1.0, 1.5, 2.0, 2.5)),
    },
    "scheduling.decodes_first": {"prompt_tokens": 5},
    "stopping.repetition": {"times": 3, "longest": 4},
}
"""By `decision.name`: other options than the defaults."""

NEED_OPTIONS = ("synthetic", "cheaper", "fastest")
"""They have no default for some option."""

EVERY = [(decision, name) for decision in DECISIONS for name in known(decision, installed=False)]


def sample(decision: str, name: str) -> Any:
    """The policy of that name with options under which it has something to decide."""
    return policy(decision, name, **OPTIONS.get(f"{decision}.{name}", {}))


def samples(decision: str) -> list[Any]:
    """All policies for a decision; those that need no options with their defaults too."""
    found = [sample(decision, name) for name in known(decision, installed=False)]
    plain = [name for name in known(decision, installed=False) if f"{decision}.{name}" in OPTIONS]
    return found + [policy(decision, name) for name in plain if name not in NEED_OPTIONS]
