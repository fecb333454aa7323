"""What is raised where a pipeline cannot be timed."""

from __future__ import annotations

from ..graph.errors import StepweaveError


class ProfileError(StepweaveError):
    """A pipeline that cannot be timed as asked."""
