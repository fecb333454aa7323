"""What the backends share: a trial before the library, a cache after it, and whose error it is.

With a limit, a grammar is first tried in a process that may be killed (`CompilerProcess`). All that
comes back is the library's text for it. The grammar is then compiled once more here: the libraries
give the interpreter's lock back while they compile, and what they compile is larger, and slower to
send and to read, than to make again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Generic, Protocol, TypeVar

from .cache import ByteCache
from .compiler_process import CompilerPool, CompilerProcess
from .grammar import GrammarSpec, MatcherFailure
from .job import Job
from .matcher import MaskShape
from .reading import Library
from .refusal import Refusal, refused

CACHE_BYTES: Final = 64 * 1024 * 1024


class _Compiled(Protocol):
    @property
    def spec(self) -> GrammarSpec: ...


G = TypeVar("G", bound=_Compiled)


class LibraryBackend(ABC, Generic[G]):
    """A `GrammarBackend` on one library, which says how it prepares a job and how it runs one."""

    def __init__(
        self,
        shape: MaskShape,
        library: Library,
        *,
        any_whitespace: bool,
        strict: bool,
        cache_bytes: int,
        processes: list[CompilerProcess],
    ) -> None:
        self._shape = shape
        self.library: Library = library
        self._any_whitespace = any_whitespace
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
        compiled, size = self.make(spec, strict=self._strict)
        self._cache.put(spec, compiled, size)
        return compiled

    def make(self, spec: GrammarSpec, *, strict: bool) -> tuple[G, int]:
        """Compile without the cache: the grammar, and the bytes that it takes.

        Raises:
            Refusal: this library does not serve it.
        """
        try:
            job = (
                self._prepare(spec, strict) if self._processes is None else self._try(spec, strict)
            )
            return self._run(spec, job)
        except MatcherFailure as error:
            raise Refusal(
                "library", [f"{spec.kind}: no output can satisfy it ({error})"]
            ) from error
        except Exception as error:
            raise refused(spec.kind, error) from error

    def start(self) -> None:
        """Start the compiling processes, if any are to be, rather than for the first request."""
        if self._processes is not None:
            self._processes.start()

    def close(self) -> None:
        """End the compiling processes, if there are any."""
        if self._processes is not None:
            self._processes.close()

    def _try(self, spec: GrammarSpec, strict: bool) -> Job:
        """The job for a grammar that a process has prepared and compiled within its limits."""
        assert self._processes is not None, "this backend compiles here"
        return self._processes.run(spec, any_whitespace=self._any_whitespace, strict=strict)

    @abstractmethod
    def _prepare(self, spec: GrammarSpec, strict: bool) -> Job:
        """The job for a grammar. Raises `GrammarError`."""

    @abstractmethod
    def _run(self, spec: GrammarSpec, job: Job) -> tuple[G, int]:
        """The grammar, and the bytes that it takes in the cache. May raise anything."""
