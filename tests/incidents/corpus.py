"""All incidents, in the order of the table."""

from __future__ import annotations

from tests.incidents import (
    grammar,
    identity,
    new_kinds,
    optimistic,
    read_early,
    reused_early,
    seeded,
    synchronization,
)

GROUPS = {
    "A": "A buffer is used again too early (write after read)",
    "B": "Read before it is there (read after write)",
    "C": "A value without identity",
    "D": "Optimistic where settled was needed",
    "E": "Grammars",
    "F": "Hidden or needless synchronization",
    "G": "The same, in nodes that are newer than the reports",
    "H": "The same, in what requests ask, in rules and in memory",
}
INCIDENTS = [
    *reused_early.INCIDENTS,
    *read_early.INCIDENTS,
    *identity.INCIDENTS,
    *optimistic.INCIDENTS,
    *grammar.INCIDENTS,
    *synchronization.INCIDENTS,
    *new_kinds.INCIDENTS,
    *seeded.INCIDENTS,
]
