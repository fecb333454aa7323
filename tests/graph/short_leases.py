"""Leases that are one step shorter than planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from stepweave.graph.plan import Lease, Plan
from stepweave.graph.verifier.verify import violations


def shortened(plan: Plan, seed: int, seen: Callable[[Plan, Lease], object]) -> Counter[str]:
    """Every lease is the least: one step less is found by the verifier, and `seen` by an oracle.

    That gets the plan with the shorter lease, and the lease.
    """
    for index, lease in enumerate(plan.leases):
        shorter = replace(lease, steps=lease.steps - 1)
        leases = (*plan.leases[:index], shorter, *plan.leases[index + 1 :])
        mutant = replace(plan, leases=leases)
        codes = [violation.code for violation in violations(mutant)]
        assert codes == ["SW-LEASE"], f"seed {seed}: {lease} {codes}"
        assert seen(mutant, shorter), f"seed {seed}: {lease}"
    return Counter({"leases shortened": len(plan.leases)})
