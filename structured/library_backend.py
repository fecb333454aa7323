"""What the backends share: checks before the library, a cache after it, and whose error it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, Generic, Protocol, TypeVar

from .cache import ByteCache
from .compiler_process import CompilerPool, CompilerProcess
from .grammar import GrammarError, GrammarSpec, MatcherFailure
from .matcher import MaskShape, reason
from .reading import Library, read

CACHE_BYTES: Final = 64 * 1024 * 1024


class _Compiled(Protocol):
    @property
    def spec(self) -> GrammarSpec: ...


G = TypeVar("G", bound=_Compiled)


class LibraryBackend(ABC, Generic[G]):
    """A `GrammarBackend` on one library, which says with `_make` how it compiles."""

    def __init__(
        self,
        shape: MaskShape,
        library: Library,
        *,
        strict: bool,
        cache_bytes: int,
        processes: list[CompilerProcess],
    ) -> None:
        self._shape = shape
        self._library: Library = library
        self._strict = strict
        self._cache: ByteCache[GrammarSpec, G] = ByteCache(cache_bytes)
        self._processes = CompilerPool(processes) if processes else None

    @property
    def vocab_size(self) -> int:
        return self._shape.vocab_size

    def cached(self, spec: GrammarSpec) -> G | None:
        return self._cache.get(spec)

    def compile(self, spec: GrammarSpec) -> G:
        """See `GrammarBackend.compile`. Equal specs are compiled once while they stay cached."""
        if (kept := self._cache.get(spec)) is not None:
            return kept
        reading = read(spec, self._library)
        given = reading.exactly() if self._strict else reading.spec
        try:
            compiled, size = self._make(spec, given, reading.unenforced)
        except MatcherFailure as error:
            raise GrammarError(f"{spec.kind}: no output can satisfy it ({error})") from error
        except GrammarError as error:
            raise GrammarError(f"{spec.kind}: {error}") from error
        except Exception as error:
            raise GrammarError(f"{spec.kind}: {reason(error)}") from error
        self._cache.put(spec, compiled, size)
        return compiled

    def start(self) -> None:
        """Start the compiling processes, if any are to be, rather than for the first request."""
        if self._processes is not None:
            self._processes.start()

    def close(self) -> None:
        """End the compiling processes, if there are any."""
        if self._processes is not None:
            self._processes.close()

    def _in_process(self, job: dict[str, Any]) -> Any:
        """The answer of a compiling process to a job; there must be one."""
        assert self._processes is not None, "this backend compiles here"
        return self._processes.run(job)

    @abstractmethod
    def _make(
        self, spec: GrammarSpec, given: GrammarSpec, warnings: tuple[str, ...]
    ) -> tuple[G, int]:
        """The grammar, and the bytes that it takes in the cache. May raise anything.

        Args:
            spec: as it was asked for.
            given: as the library reads it.
            warnings: what is not enforced.
        """
