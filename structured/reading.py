"""How one library reads a grammar: what it is given, and what it would not enforce of it.

A pure function of the grammar: no library is loaded and nothing is compiled. A backend asks it
before it compiles; who has to choose a library asks it for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from .grammar import GrammarError, GrammarSpec
from .json_schema import LLGUIDANCE, XGRAMMAR, SchemaRules, check_sources

Library = Literal["xgrammar", "llguidance"]

_RULES: Final[dict[Library, SchemaRules]] = {"xgrammar": XGRAMMAR, "llguidance": LLGUIDANCE}


@dataclass(frozen=True)
class Reading:
    """A grammar as one library is to compile it."""

    spec: GrammarSpec
    """Equal in meaning to the one asked for, in forms that the library serves exactly."""
    unenforced: tuple[str, ...] = ()
    """Constraints that the library would ignore, each with its place in the source as it was
    written; empty where every output of the library is one that the grammar allows."""

    def exactly(self) -> GrammarSpec:
        """The spec to compile. Raises `GrammarError` if something would not be enforced."""
        if self.unenforced:
            raise GrammarError(self.unenforced[0])
        return self.spec


def read(spec: GrammarSpec, library: Library) -> Reading:
    """What the library is given for a spec, and what it would not enforce.

    Raises:
        GrammarError: no library can compile it: malformed, or a reference that leads nowhere.
    """
    return Reading(spec, check_sources(spec, _RULES[library], strict=False))
