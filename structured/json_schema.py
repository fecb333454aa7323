"""Which JSON Schemas may be compiled: nothing that would be dropped in silence.

A grammar library ignores the keywords it does not know, so an output could break the schema while
the user believes it cannot. A constraint that cannot be kept is refused by name instead.
"""

from __future__ import annotations


def check_schema(source: str) -> None:
    """Raise `GrammarError` if a keyword of the schema would be ignored."""
