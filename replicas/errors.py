"""What can be wrong with replicas."""

from __future__ import annotations

from ..graph.errors import StepweaveError


class ReplicaLost(StepweaveError):
    """A replica has ended, or cannot be reached. What it generated so far is known."""

    code = "SW-REPLICA"


class RayUnavailable(StepweaveError):
    """Ray cannot start the replicas, or cannot be reached."""

    code = "SW-RAY"
    names_nothing = True
