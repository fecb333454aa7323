"""What all policies have in common: a policy is its options, checked and frozen."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Policy(BaseModel):
    """A decision, and the options that it was chosen with.

    A subclass lists its options as fields, with a default or without; a pipeline file gives them
    beside the policy's name. It decides from what it is given and keeps nothing from call to call,
    so one object may serve any number of runs. Its docstring's first line is its line in
    `stepweave list`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
