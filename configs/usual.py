"""What the plan of a pipeline itself is called, beside the other `plans` that it names."""

from __future__ import annotations

USUAL = "usual"
"""The plan with which an engine begins."""
