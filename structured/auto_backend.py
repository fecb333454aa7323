"""Per grammar the library that serves it exactly.

llguidance comes first: it compiles real schemas in milliseconds (0.02 s at most over 250 of them,
where XGrammar took up to 5.6 s), bounds its work by itself, fills masks of bounded strings a
hundred times as fast, and is exact in more forms. XGrammar comes first for grammars in EBNF, of
which llguidance cannot write every output, and serves whatever llguidance refuses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from .cache import ByteCache
from .grammar import GrammarKind, GrammarSpec
from .library_backend import DEFAULTS, BackendOptions
from .llguidance_backend import LLGrammar, LLGuidanceBackend
from .reading import Library
from .refusal import Cause, Refusal
from .xgrammar_backend import XGrammar, XGrammarBackend

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ORDER: Final[tuple[Library, ...]] = ("llguidance", "xgrammar")


def order(kind: GrammarKind) -> tuple[Library, ...]:
    """The libraries in the order in which they are asked for a grammar of some kind."""
    return ("xgrammar", "llguidance") if kind == "grammar" else ORDER


class AutoBackend:
    """A `GrammarBackend` on both libraries; see `LLGuidanceBackend` for the arguments.

    A grammar's `notes` say which library serves it, and what the first choice had against it. With
    `strict` off, a library that enforces all of a grammar is still preferred to one that does not.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        vocab_size: int,
        eos_token_ids: Collection[int],
        options: BackendOptions = DEFAULTS,
    ) -> None:
        # What is compiled is kept here, under one limit.
        kinds: dict[Library, type[LLGuidanceBackend | XGrammarBackend]] = {
            "llguidance": LLGuidanceBackend,
            "xgrammar": XGrammarBackend,
        }
        self._backends: dict[Library, LLGuidanceBackend | XGrammarBackend] = {
            library: kinds[library](
                tokenizer, vocab_size, eos_token_ids, replace(options, cache_bytes=0)
            )
            for library in ORDER
        }
        self._strict = options.strict
        self._cache: ByteCache[GrammarSpec, LLGrammar | XGrammar] = ByteCache(options.cache_bytes)

    @property
    def vocab_size(self) -> int:
        return self._backends[ORDER[0]].vocab_size

    def cached(self, spec: GrammarSpec) -> LLGrammar | XGrammar | None:
        return self._cache.get(spec)

    def compile(self, spec: GrammarSpec) -> LLGrammar | XGrammar:
        """See `GrammarBackend.compile`.

        Raises:
            Refusal: no library serves it; the reason is one that holds for all of them if there is
                such a one.
        """
        if (kept := self._cache.get(spec)) is not None:
            return kept
        refusals: dict[Library, Refusal] = {}
        for strict in (True,) if self._strict else (True, False):
            for library in order(spec.kind):
                try:
                    made, size = self._backends[library].make(spec, strict=strict)
                except Refusal as refusal:
                    refusals[library] = refusal
                    if refusal.cause == "source":
                        raise
                    continue
                compiled = replace(made, notes=(note(spec, library, refusals),))
                self._cache.put(spec, compiled, size)
                return compiled
        raise one_refusal([refusals[library] for library in order(spec.kind)])

    def start(self, *, every: bool = False) -> None:
        """Start the compiling processes of the library that is asked first, or of every one."""
        for library in ORDER if every else ORDER[:1]:
            self._backends[library].start()

    def close(self) -> None:
        """End all compiling processes."""
        for backend in self._backends.values():
            backend.close()


def note(spec: GrammarSpec, library: Library, refusals: dict[Library, Refusal]) -> str:
    """Which library serves a grammar, and what those had against it that were asked before."""
    said = f"{spec.kind}: served by {library}"
    for other, refusal in refusals.items():
        if other != library:
            said += f"; {other} refuses it: {str(refusal).removeprefix(f'{spec.kind}: ')}"
    return said


_TELLING: Final[dict[Cause, int]] = {
    "source": 0,
    "unenforced": 1,
    "limit": 2,
    "library": 3,
    "foreign": 4,
}
"""Which of two refusals says more to who wrote the grammar: lower is better. That a library has no
equal for something says nothing if the other has one and refuses it all the same."""


def one_refusal(refusals: Sequence[Refusal]) -> Refusal:
    """The refusal to report where every library refuses: one sentence, not one of each library.

    A reason that all of them have stands: only without it could any of them serve the grammar.
    Otherwise the reason that says most, of the library that is asked first.
    """
    for reason in refusals[0].reasons:
        if all(reason in other.reasons for other in refusals):
            return Refusal(refusals[0].cause, [reason])
    return min(refusals, key=lambda refusal: _TELLING[refusal.cause])
