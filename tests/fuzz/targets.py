"""What must hold for any input at all: one function per door, from bytes to nothing.

The same functions serve hypothesis, the coverage-guided fuzzer and the corpus of regressions. Each
returns whether the input was usable; whatever it raises is a bug.
"""

from __future__ import annotations

import atexit
import json
import random
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load
from stepweave.configs.prompts import PromptLine, read_prompts
from stepweave.structured.backend import GrammarBackend, Matcher
from stepweave.structured.bitmask import words
from stepweave.structured.grammar import KINDS, GrammarError, GrammarSpec, MatcherFailure
from stepweave.structured.library_backend import BackendOptions
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.xgrammar_backend import XGrammarBackend
from stepweave.testing.models import tiny_tokenizer

VOCAB, STOPS = 320, (0,)
COMPILE_LIMIT_S = 3.0
STEPS, WINDOW = 12, 3

SHORT = dict(enumerate(KINDS))
"""The first byte of a grammar input names the kind of its source; any other, a whole request."""


@cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="stepweave-fuzz-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _refused(error: Exception) -> bool:
    assert str(error).strip(), "an error without a message"
    return False


def yaml(data: bytes) -> bool:
    """A pipeline file: it loads, or a `ConfigError` says what is wrong in it."""
    path = _folder() / "fuzz.yaml"
    path.write_bytes(data)
    try:
        load(path)
    except ConfigError as error:
        return _refused(error)
    return True


def prompts(data: bytes) -> bool:
    """A prompts file: every line is a request that survives being written and read again."""
    path = _folder() / "fuzz.jsonl"
    path.write_bytes(data)
    try:
        found = read_prompts(path)
    except ConfigError as error:
        return _refused(error)
    path.write_text("\n".join(map(as_line, found)), encoding="utf-8")
    assert read_prompts(path) == found, "a request changed on its way to a file and back"
    return True


def as_line(prompt: PromptLine) -> str:
    """A request as a line of a prompts file."""
    return json.dumps(prompt.model_dump(mode="json", by_alias=True, exclude_defaults=True))


@cache
def backends() -> tuple[GrammarBackend, ...]:
    """Both libraries, compiling as the engine does: in processes that are killed in time."""
    tokenizer = tiny_tokenizer(VOCAB)
    return (
        XGrammarBackend(tokenizer, VOCAB, STOPS, BackendOptions(compile_limit_s=COMPILE_LIMIT_S)),
        LLGuidanceBackend(tokenizer, VOCAB, STOPS, BackendOptions(compile_limit_s=COMPILE_LIMIT_S)),
    )


def grammar(data: bytes) -> bool:
    """A grammar: refused by a `GrammarError`, or its matchers never leave anybody without a token.

    The first byte chooses the kind, as the engine would get it from a client.
    """
    text = _text(data[1:])
    kind = SHORT.get(data[0] % 8) if data else None
    try:
        request = json.loads(text) if kind is None else {kind: kind == "json_object" or text}
    except ValueError:
        return False
    if kind == "choice":
        request = {kind: text.split("|")}
    if not isinstance(request, Mapping):
        return False
    return grammar_request(request, seed=len(data))


def _text(data: bytes) -> str:
    """Text with half surrogate pairs in it, which JSON can bring; what is none is replaced."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def grammar_request(request: Mapping[str, object], *, seed: int = 0) -> bool:
    """The same for the object that a client sends."""
    try:
        spec = GrammarSpec.from_request(request)
    except GrammarError as error:
        return _refused(error)
    usable = False
    for backend in backends():
        try:
            compiled = backend.compile(spec)
        except GrammarError as error:
            _refused(error)
            continue
        walk(compiled.matcher(), random.Random(seed))
        usable = True
    return usable


def walk(matcher: Matcher, rng: random.Random) -> None:
    """Take allowed tokens and offer any drafts. Only a `MatcherFailure` may end it early."""
    rows = np.zeros((WINDOW + 1, words(VOCAB)), np.int32)
    for _ in range(STEPS):
        drafts = [rng.choice([-1, VOCAB, 1 << 40, rng.randrange(VOCAB)]) for _ in range(WINDOW)]
        try:
            valid = matcher.fill_window(drafts, rows)
            assert 0 <= valid <= WINDOW
            assert rows.any(axis=1).all(), "a mask that allows nothing"
            bits = np.unpackbits(rows[0].view(np.uint8), bitorder="little")
            assert not bits[VOCAB:].any(), "a mask beyond the vocabulary"
            allowed = np.flatnonzero(bits)
            if matcher.terminated:
                assert set(allowed) == set(STOPS)
            token = int(rng.choice(allowed))
            before = matcher.terminated
            assert not matcher.accept(-1)
            if rng.random() < 0.5:
                assert matcher.accept(token), f"token {token} was allowed, then refused"
                matcher.rollback(1)
                assert matcher.terminated == before
            matcher.advance([token])
        except MatcherFailure as failure:
            _refused(failure)
            break
    else:
        return
    assert matcher.failed, "a failure that the matcher has forgotten"


TARGETS: Mapping[str, Callable[[bytes], bool]] = {
    "yaml": yaml,
    "prompts": prompts,
    "grammar": grammar,
}
