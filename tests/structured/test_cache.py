"""What is kept is bounded in bytes, and the least recently used goes first."""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from stepweave.structured.cache import ByteCache
from stepweave.structured.grammar import GrammarSpec
from stepweave.structured.library_backend import BackendOptions
from stepweave.structured.llguidance_backend import BYTES_PER_GRAMMAR, LLGuidanceBackend
from stepweave.structured.xgrammar_backend import XGrammarBackend

from .conftest import STOPS, VOCAB


def test_the_least_recently_used_goes_first() -> None:
    cache: ByteCache[str, int] = ByteCache(10)
    for key, nbytes in (("a", 4), ("b", 4)):
        cache.put(key, ord(key), nbytes)
    assert cache.get("a") == ord("a"), "now b is the older one"
    cache.put("c", 3, 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (ord("a"), None, 3)
    assert (cache.nbytes, len(cache)) == (8, 2)


def test_what_alone_exceeds_the_bound_is_not_kept_and_pushes_nothing_out() -> None:
    cache: ByteCache[str, int] = ByteCache(10)
    cache.put("a", 1, 10)
    cache.put("huge", 2, 11)
    assert (cache.get("a"), cache.get("huge")) == (1, None)


def test_a_value_put_again_is_counted_once() -> None:
    cache: ByteCache[str, int] = ByteCache(10)
    for value in range(5):
        cache.put("a", value, 6)
    assert (cache.get("a"), cache.nbytes, len(cache)) == (4, 6, 1)


def test_grammars_are_evicted_by_their_size(tokenizer: PreTrainedTokenizerFast) -> None:
    specs = [GrammarSpec("regex", text * 3) for text in "abc"]
    size = int(XGrammarBackend(tokenizer, VOCAB, STOPS).compile(specs[0]).handle.memory_size_bytes)
    backend = XGrammarBackend(tokenizer, VOCAB, STOPS, BackendOptions(cache_bytes=int(2.5 * size)))
    first = backend.compile(specs[0])
    assert backend.compile(specs[0]) is first
    for spec in specs[1:]:
        backend.compile(spec)
    assert backend.cached(specs[0]) is None
    assert backend.cached(specs[2]) is not None
    assert backend.compile(specs[0]) is not first


def test_a_grammar_bigger_than_the_bound_is_used_but_not_kept(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    spec = GrammarSpec("regex", "hello")
    for backend in (
        XGrammarBackend(tokenizer, VOCAB, STOPS, BackendOptions(cache_bytes=16)),
        LLGuidanceBackend(tokenizer, VOCAB, STOPS, BackendOptions(cache_bytes=BYTES_PER_GRAMMAR)),
    ):
        compiled = backend.compile(spec)
        assert compiled.matcher().accept(tokenizer.encode("hello")[0])
        assert backend.cached(spec) is None
