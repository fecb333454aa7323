"""Compilation in a process of its own: the same grammars, and an end to the ones that never end."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured import compiler_process
from stepweave.structured.backend import GrammarBackend
from stepweave.structured.bitmask import Words, words
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.xgrammar_backend import XGrammarBackend
from stepweave.structured.xgrammar_compile import Job, job_for

from .conftest import STOPS, VOCAB

ENDLESS = GrammarSpec.from_request(
    {
        "json": {
            "type": "object",
            "properties": {f"p{index}": {"type": "integer"} for index in range(4000)},
        }
    }
)
"""4000 optional properties: all pairs of them are compiled."""


@pytest.fixture(scope="module")
def guarded(tokenizer: PreTrainedTokenizerFast) -> Iterator[XGrammarBackend]:
    backend = XGrammarBackend(tokenizer, VOCAB, STOPS, compile_threads=1, compile_limit_s=1.0)
    yield backend
    backend.close()


def first_mask(backend: GrammarBackend, spec: GrammarSpec) -> Words:
    row = np.zeros((1, words(VOCAB)), dtype=np.int32)
    backend.compile(spec).matcher().fill_window((), row)
    return row


def test_a_compilation_that_takes_too_long_is_stopped_and_the_next_one_works(
    guarded: XGrammarBackend, xgrammar: XGrammarBackend
) -> None:
    plain = GrammarSpec.from_request({"choice": ["é\n", "yes"]})
    np.testing.assert_array_equal(first_mask(guarded, plain), first_mask(xgrammar, plain))
    start = time.monotonic()
    with pytest.raises(GrammarError, match="json: compiling took longer than 1 s"):
        guarded.compile(ENDLESS)
    assert time.monotonic() - start < 5
    for spec in (GrammarSpec("json", '{"type":"string"}'), GrammarSpec("json_object", "")):
        np.testing.assert_array_equal(first_mask(guarded, spec), first_mask(xgrammar, spec))


def test_a_refusal_reads_the_same_as_without_a_process(
    guarded: XGrammarBackend, xgrammar: XGrammarBackend
) -> None:
    def refusal(by: XGrammarBackend) -> str:
        with pytest.raises(GrammarError) as error:
            by.compile(GrammarSpec("regex", "a("))
        return str(error.value)

    assert refusal(guarded) == refusal(xgrammar)


def test_a_process_that_dies_fails_one_compilation_only(guarded: XGrammarBackend) -> None:
    guarded.compile(GrammarSpec("regex", "a"))
    child = child_of(guarded)
    child.kill()
    child.wait()
    guarded.compile(GrammarSpec("regex", "b"))


@pytest.fixture(scope="module")
def tried(tokenizer: PreTrainedTokenizerFast) -> Iterator[LLGuidanceBackend]:
    backend = LLGuidanceBackend(tokenizer, VOCAB, STOPS, compile_limit_s=20.0)
    yield backend
    backend.close()


def test_the_other_library_tries_a_grammar_in_its_process_first(
    tried: LLGuidanceBackend, llguidance: LLGuidanceBackend
) -> None:
    spec = GrammarSpec.from_request({"choice": ["é\n", "yes"]})
    np.testing.assert_array_equal(first_mask(tried, spec), first_mask(llguidance, spec))
    with pytest.raises(GrammarError) as here:
        llguidance.compile(GrammarSpec("regex", "a("))
    with pytest.raises(GrammarError) as there:
        tried.compile(GrammarSpec("regex", "a("))
    assert str(here.value) == str(there.value)


def test_a_crash_in_a_compilation_fails_that_one_only(
    tried: LLGuidanceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = compiler_process._send

    def send_and_crash(process: subprocess.Popen[bytes], message: Any) -> None:
        process.send_signal(signal.SIGSTOP)  # so that it cannot answer before it crashes
        send(process, message)
        process.send_signal(signal.SIGSEGV)
        process.send_signal(signal.SIGCONT)

    tried.start()
    with monkeypatch.context() as patch:
        patch.setattr(compiler_process, "_send", send_and_crash)
        with pytest.raises(GrammarError, match="regex: the compiling process died"):
            tried.compile(GrammarSpec("regex", "crash"))
    assert tried.compile(GrammarSpec("regex", "crash")).spec.source == "crash"


def test_a_compilation_that_takes_too_much_memory_fails_and_the_next_one_works(
    xgrammar: XGrammarBackend,
) -> None:
    process = compiler_process.CompilerProcess(
        "xgrammar",
        {"tokenizer": xgrammar._info.serialize_json()},
        limit_s=60.0,
        memory_bytes=8 * 1024 * 1024,
    )
    with pytest.raises(RuntimeError):
        process.run(asdict(job_for(ENDLESS, False)))
    assert process.run(asdict(Job("regex", "a")))
    process.close()


def test_a_job_waits_only_while_every_process_is_busy() -> None:
    busy, begun = threading.Event(), threading.Semaphore(0)
    ran: list[str] = []

    class Process:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, job: dict[str, Any]) -> str:
            if job["slow"]:
                begun.release()
                assert busy.wait(20)
            ran.append(self.name)
            return self.name

        def close(self) -> None:
            ran.append(f"{self.name} closed")

    pool = compiler_process.CompilerPool([Process("first"), Process("second")])  # type: ignore[list-item]
    slow = threading.Thread(target=pool.run, args=({"slow": True},))
    slow.start()
    assert begun.acquire(timeout=20)
    assert [pool.run({"slow": False}) for _ in range(2)] == ["second", "second"]
    busy.set()
    slow.join(20)
    pool.close()
    assert ran == ["second", "second", "first", "first closed", "second closed"]
    with pytest.raises(ValueError, match="at least one"):
        compiler_process.CompilerPool([])


def child_of(backend: XGrammarBackend | LLGuidanceBackend) -> subprocess.Popen[bytes]:
    assert backend._processes is not None
    child = backend._processes._all[0]._process
    assert child is not None, "not started"
    return child


def test_what_is_cached_needs_no_process(guarded: XGrammarBackend) -> None:
    spec = GrammarSpec("regex", "hello")
    first = guarded.compile(spec)
    guarded.close()
    assert guarded.compile(spec).handle is first.handle
