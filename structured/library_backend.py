"""What the backends share: a trial before the library, a cache after it, and whose error it is.

With a limit, a grammar is first tried in a process that may be killed (`CompilerProcess`). All that
comes back is the library's text for it. The grammar is then compiled once more here: the libraries
give the interpreter's lock back while they compile, and what they compile is larger, and slower to
send and to read, than to make again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from .cache import ByteCache
from .compiler_process import CompilerPool, CompilerProcess
from .grammar import GrammarSpec, MatcherFailure
from .job import Job
from .matcher import MaskShape
from .prepare import prepare
from .reading import Library
from .refusal import Refusal, refused

CACHE_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """How a backend compiles grammars and fills masks, whichever library it is on.

    Attributes:
        any_whitespace: let JSON contain any white space. Off by default: the compact form is
            shorter, and a model cannot lose itself in blanks.
        cache_bytes: limit of the cache of compiled grammars. A grammar that alone exceeds it is
            compiled for each request. Of llguidance's the sizes are estimates.
        compile_threads: threads of one compilation by XGrammar. Each takes a processor from the
            engine. llguidance has one.
        compile_limit_s: seconds of processor time that a compilation may take. It is then tried in
            a process of its own first, which is ended when they are over: set it where requests
            come from strangers. None compiles here at once, without limit.
        compile_processes: how many trials may run at once.
        strict: refuse schemas of which the library would ignore a constraint. Off, they compile,
            and the grammar's `warnings` name what is not enforced.
        fill_threads: threads that fill the masks of a batch. More than one pays only on cores that
            are idle meanwhile, and for masks that take hundreds of microseconds.
    """

    any_whitespace: bool = False
    cache_bytes: int = CACHE_BYTES
    compile_threads: int = 1
    compile_limit_s: float | None = None
    compile_processes: int = 1
    strict: bool = True
    fill_threads: int = 1


DEFAULTS: Final = BackendOptions()


class _Compiled(Protocol):
    @property
    def spec(self) -> GrammarSpec: ...


G = TypeVar("G", bound=_Compiled)


class LibraryBackend(ABC, Generic[G]):
    """A `GrammarBackend` on one library, which says how it runs a job.

    `worker` makes the settings of the compiling processes, where there are to be any.
    """

    def __init__(
        self,
        shape: MaskShape,
        library: Library,
        options: BackendOptions,
        worker: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._shape = shape
        self.library: Library = library
        self._options = options
        self._cache: ByteCache[GrammarSpec, G] = ByteCache(options.cache_bytes)
        self._processes: CompilerPool | None = None
        if (limit_s := options.compile_limit_s) is not None:
            settings = worker()
            self._processes = CompilerPool(
                [
                    CompilerProcess(library, settings, limit_s)
                    for _ in range(options.compile_processes)
                ]
            )

    @property
    def vocab_size(self) -> int:
        return self._shape.vocab_size

    def cached(self, spec: GrammarSpec) -> G | None:
        return self._cache.get(spec)

    def compile(self, spec: GrammarSpec) -> G:
        """See `GrammarBackend.compile`. Equal specs are compiled once while they stay cached."""
        if (kept := self._cache.get(spec)) is not None:
            return kept
        compiled, size = self.make(spec, strict=self._options.strict)
        self._cache.put(spec, compiled, size)
        return compiled

    def make(self, spec: GrammarSpec, *, strict: bool) -> tuple[G, int]:
        """Compile without the cache: the grammar, and the bytes that it takes.

        Raises:
            Refusal: this library does not serve it.
        """
        try:
            return self._run(spec, self._job(spec, strict))
        except MatcherFailure as error:
            raise Refusal(
                "library", [f"{spec.kind}: no output can satisfy it ({error})"]
            ) from error
        except Exception as error:
            raise refused(spec.kind, error) from error

    def start(self, *, every: bool = True) -> None:
        """Start the compiling processes, if any are to be, rather than for the first request.

        `every` changes nothing: there is one library.
        """
        if self._processes is not None:
            self._processes.start()

    def close(self) -> None:
        """End the compiling processes, if there are any."""
        if self._processes is not None:
            self._processes.close()

    def _job(self, spec: GrammarSpec, strict: bool) -> Job:
        """The job for a grammar; with processes, one has compiled it within its limits."""
        any_whitespace = self._options.any_whitespace
        if self._processes is None:
            return prepare(spec, self.library, any_whitespace=any_whitespace, strict=strict)
        return self._processes.run(spec, any_whitespace=any_whitespace, strict=strict)

    @abstractmethod
    def _run(self, spec: GrammarSpec, job: Job) -> tuple[G, int]:
        """The grammar, and the bytes that it takes in the cache. May raise anything."""
