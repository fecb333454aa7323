"""Grammars by XGrammar (Dong et al. 2024, arXiv:2411.15100).

The library throws where an engine cannot afford it (a mask asked of a finished matcher, a roll back
too far), and it takes the text of control tokens for text. This file owns the difference: a matcher
whose every call has a defined answer, and a vocabulary in which control tokens spell nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xgrammar as xgr

from .bitmask import Words, row_allowing, words
from .compiler_process import CompilerProcess
from .grammar import GrammarError, GrammarSpec, MatcherFailure
from .json_schema import check_schema
from .xgrammar_compile import compile_job, job_for

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CACHE_BYTES: Final = 64 * 1024 * 1024


class XGrammarBackend:
    """Compiles grammars for one tokenizer; compiled ones are kept, least recently used go first.

    Args:
        tokenizer: a Hugging Face tokenizer.
        vocab_size: tokens in the model's output layer. Where it exceeds the tokenizer's, the ids
            that the tokenizer does not know are never allowed.
        eos_token_ids: the tokens that end an output; at least one, since they are all that a
            finished grammar allows.
        any_whitespace: let JSON contain any white space. Off by default: the compact form is
            shorter, and a model cannot lose itself in blanks.
        cache_bytes: limit of the cache of compiled grammars.
        compile_threads: threads of one compilation.
        compile_limit_s: seconds that a compilation may take. It then runs in a process of its own
            and is killed when they are over: set it where requests come from strangers. None
            compiles here, without limit.

    Raises:
        ValueError: no end token, or one outside the vocabulary.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        vocab_size: int,
        eos_token_ids: Collection[int],
        any_whitespace: bool = False,
        cache_bytes: int = CACHE_BYTES,
        compile_threads: int = 2,
        compile_limit_s: float | None = None,
    ) -> None:
        if not eos_token_ids:
            raise ValueError("eos_token_ids is empty: a finished grammar would allow no token")
        self._vocab_size = vocab_size
        self._any_whitespace = any_whitespace
        self._stop_tokens = frozenset(eos_token_ids)
        self._closed_row = row_allowing(self._stop_tokens, vocab_size)
        self._closed_row.flags.writeable = False
        self._last_word = row_allowing(range(vocab_size), vocab_size)[-1]
        info = _tokenizer_info(tokenizer, vocab_size, sorted(self._stop_tokens))
        self._compiler = xgr.GrammarCompiler(
            info, max_threads=compile_threads, cache_limit_bytes=cache_bytes
        )
        self._process = (
            None
            if compile_limit_s is None
            else CompilerProcess(info, compile_limit_s, cache_bytes, compile_threads)
        )

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def compile(self, spec: GrammarSpec) -> XGrammar:
        """See `GrammarBackend.compile`. Equal specs are compiled once while they stay cached."""
        if spec.kind == "json":
            check_schema(spec.source)
        try:
            compiled = XGrammar(
                spec,
                self._compile(spec),
                self._vocab_size,
                self._stop_tokens,
                self._closed_row,
                self._last_word,
            )
            # The library compiles grammars that no text can satisfy; their first mask is empty.
            compiled.matcher().fill_window((), np.zeros((1, words(self._vocab_size)), np.int32))
        except MatcherFailure as error:
            raise GrammarError(f"{spec.kind}: no output can satisfy it ({error})") from error
        except GrammarError as error:
            raise GrammarError(f"{spec.kind}: {error}") from error
        except Exception as error:
            # The library throws RuntimeError for nearly everything, and prefixes a time and a
            # file of its own; the rest is what the user can act on.
            raise GrammarError(f"{spec.kind}: {_reason(error)}") from error
        return compiled

    def start(self) -> None:
        """Start the compiling process, if there is to be one, rather than for the first request."""
        if self._process is not None:
            self._process.start()

    def close(self) -> None:
        """End the compiling process, if there is one."""
        if self._process is not None:
            self._process.close()

    def _compile(self, spec: GrammarSpec) -> Any:
        job = job_for(spec, self._any_whitespace)
        if self._process is not None:
            return self._process.compile(job)
        return compile_job(self._compiler, job)


@dataclass(frozen=True)
class XGrammar:
    """One compiled grammar of `XGrammarBackend`."""

    spec: GrammarSpec
    handle: Any
    vocab_size: int
    stop_tokens: frozenset[int]
    closed_row: Words
    last_word: np.int32

    def matcher(self) -> XGrammarMatcher:
        return XGrammarMatcher(self)


class XGrammarMatcher:
    """Follows one request; see `Matcher` for what each call promises.

    The library's matcher is never asked anything once it has terminated. Stop tokens accepted after
    the first (a request that ignores the end of sequence keeps getting them) are only counted here,
    and undone here.
    """

    def __init__(self, grammar: XGrammar) -> None:
        self._grammar = grammar
        self._inner = xgr.GrammarMatcher(
            grammar.handle, override_stop_tokens=sorted(grammar.stop_tokens)
        )
        self._accepted = 0  # tokens inside the library's matcher
        self._after_end = 0  # stop tokens after the one that ended the grammar
        self._terminated = False
        self._failure: MatcherFailure | None = None

    @property
    def terminated(self) -> bool:
        return self._terminated

    @property
    def failed(self) -> bool:
        return self._failure is not None

    @property
    def closed_row(self) -> Words:
        return self._grammar.closed_row

    def accept(self, token: int) -> bool:
        with self._boundary():
            return self._accept(token)

    def rollback(self, count: int) -> None:
        with self._boundary():
            self._rollback(count)

    def advance(self, tokens: Sequence[int]) -> None:
        with self._boundary():
            for index, token in enumerate(tokens):
                if not self._accept(token):
                    self._rollback(index)
                    raise GrammarError(
                        f"{self._grammar.spec.kind}: committed token {token} at index {index} of "
                        f"{len(tokens)} is not allowed by the grammar; the row was sampled "
                        "without its mask"
                    )

    def fill_window(self, drafts: Sequence[int], rows: Words) -> int:
        with self._boundary():
            if len(rows) <= len(drafts):
                raise ValueError(f"{len(drafts)} drafts need {len(drafts) + 1} rows, {len(rows)}")
            start = self._depth
            valid = 0
            try:
                if not self._fill(rows, 0):
                    raise MatcherFailure("no token can follow: the grammar has reached a dead end")
                for draft in drafts:
                    if self._terminated or not self._accept(draft):
                        break
                    valid += 1
                    if not self._fill(rows, valid):
                        # Only if this draft is accepted does the request stand in the dead end,
                        # as it would have without drafts; until then it has not failed.
                        rows[valid] = self.closed_row
            finally:
                self._rollback(self._depth - start)
            rows[valid + 1 :] = self.closed_row
            return valid

    @property
    def _depth(self) -> int:
        return self._accepted + self._after_end

    def _accept(self, token: int) -> bool:
        if self._terminated:
            if token not in self._grammar.stop_tokens:
                return False
            self._after_end += 1
            return True
        if not 0 <= token < self._grammar.vocab_size or not self._inner.accept_token(int(token)):
            return False
        self._accepted += 1
        # Asked of the library only where it can be true: the call costs as much as an accept.
        if token in self._grammar.stop_tokens:
            self._terminated = bool(self._inner.is_terminated())
        return True

    def _rollback(self, count: int) -> None:
        if not 0 <= count <= self._depth:
            raise ValueError(f"cannot undo {count} tokens, {self._depth} were accepted")
        outside = min(count, self._after_end)
        self._after_end -= outside
        inside = count - outside
        if inside:
            self._inner.rollback(inside)
            self._accepted -= inside
            self._terminated = False

    def _fill(self, rows: Words, index: int) -> bool:
        """Fill one row; False if it allows nothing."""
        if self._terminated:
            rows[index] = self.closed_row
            return True
        self._inner.fill_next_token_bitmask(rows, index)
        # The library sets the bits behind the vocabulary when nearly everything is allowed. They
        # would hide that a row allows nothing, and reach anyone who reads the row by words.
        rows[index, -1] &= self._grammar.last_word
        return bool(rows[index].any())

    @contextmanager
    def _boundary(self) -> Iterator[None]:
        """Turn whatever escapes into this request's failure, and remember it.

        After an exception of the library nothing is known about its state, so it is not asked
        again. A refused committed token is no such case: the matcher stands where it stood.
        """
        if self._failure is not None:
            raise MatcherFailure(f"the matcher failed before: {self._failure}") from self._failure
        try:
            yield
        except GrammarError:
            raise
        except MatcherFailure as error:
            self._failure = error
            raise
        except Exception as error:
            self._failure = MatcherFailure(f"{self._grammar.spec.kind}: {_reason(error)}")
            raise self._failure from error


def _tokenizer_info(
    tokenizer: PreTrainedTokenizerBase, vocab_size: int, stop_tokens: list[int]
) -> Any:
    """The vocabulary as bytes, in which control tokens spell nothing.

    The library takes the text of a control token ("<pad>") for text that a string may contain. The
    model never means it so, and decoding drops it, so the output would not match the grammar.
    """
    known = max(tokenizer.get_vocab().values(), default=-1) + 1
    info = xgr.TokenizerInfo.from_huggingface(
        tokenizer, vocab_size=max(vocab_size, known), stop_token_ids=stop_tokens
    )
    vocabulary = list(info.decoded_vocab)[:vocab_size]
    control = {index for index, added in tokenizer.added_tokens_decoder.items() if added.special}
    for index in control | set(tokenizer.all_special_ids):
        if index < len(vocabulary):
            vocabulary[index] = b""  # an empty token is one that the library never allows
    return xgr.TokenizerInfo(
        vocabulary,
        xgr.VocabType.RAW,
        vocab_size=vocab_size,
        stop_token_ids=stop_tokens,
        add_prefix_space=info.add_prefix_space,
    )


def _reason(error: Exception) -> str:
    # "[12:00:00] /project/cpp/x.cc:17: Check failed: (…) is false: what matters"
    text = str(error).strip()
    if text.startswith("[") and ".cc:" in text:
        text = text.split(".cc:", 1)[1].split(":", 1)[-1].strip()
        if text.startswith("Check failed:") and " is false:" in text:
            text = text.split(" is false:", 1)[1].strip()
    return text or type(error).__name__
