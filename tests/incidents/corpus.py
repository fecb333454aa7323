"""All incidents, in the order of the table."""

from __future__ import annotations

from tests.incidents import grammar, identity, optimistic, read_early, reused_early

INCIDENTS = [
    *reused_early.INCIDENTS,
    *read_early.INCIDENTS,
    *identity.INCIDENTS,
    *optimistic.INCIDENTS,
    *grammar.INCIDENTS,
]
