"""The policies of one engine: one for each decision."""

from __future__ import annotations

from dataclasses import dataclass, field

from .acceptance import Acceptance, Coupled


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """A policy for each decision that the engine leaves to one; the defaults are those of files."""

    acceptance: Acceptance = field(default_factory=Coupled)
