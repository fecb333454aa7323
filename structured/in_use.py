"""The compiled grammars of the requests that are being served, by the request's number.

A batch names a grammar by its request, since a compiled grammar belongs to the process that has
compiled it. An entry is there before any batch names it, never changes, and stays until no step in
flight names it any more; so whoever looks one up finds the same at any time.
"""

from __future__ import annotations

from .backend import CompiledGrammar


class GrammarsInUse:
    """Entered and removed by the request table, read by whoever needs a matcher (any thread)."""

    def __init__(self) -> None:
        self._grammars: dict[int, CompiledGrammar] = {}

    def enter(self, uid: int, grammar: CompiledGrammar) -> None:
        """From now on `uid` has this grammar, until `remove`."""
        self._grammars[uid] = grammar

    def remove(self, uid: int) -> None:
        """No step that is in flight names `uid`. One without a grammar is no error."""
        self._grammars.pop(uid, None)

    def of(self, uid: int) -> CompiledGrammar:
        """Raises `KeyError` where no request of that number with a grammar is being served."""
        return self._grammars[uid]

    def __len__(self) -> int:
        return len(self._grammars)
