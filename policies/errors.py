"""What can be wrong with a policy."""

from __future__ import annotations

from ..graph.errors import StepweaveError


class PolicyError(StepweaveError):
    """A policy cannot be used, or broke a rule of its decision."""

    code = "SW-POLICY"
