"""Trials in a process of its own: the same grammars, and an end to the ones that never end."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured import compiler_process
from stepweave.structured.backend import GrammarBackend
from stepweave.structured.bitmask import Words, words
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.job import MAX_JOB_BYTES, Job
from stepweave.structured.library_backend import BackendOptions
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.refusal import Refusal, refused
from stepweave.structured.xgrammar_backend import XGrammarBackend

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
    backend = XGrammarBackend(
        tokenizer, VOCAB, STOPS, BackendOptions(compile_threads=1, compile_limit_s=1.0)
    )
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
    process = child_of(guarded).pid
    with pytest.raises(GrammarError, match="json: compiling takes more than 1 s of processor time"):
        guarded.compile(ENDLESS)
    assert child_of(guarded).pid == process, "nobody waits for another to start"
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


@pytest.fixture(scope="module")
def tried(tokenizer: PreTrainedTokenizerFast) -> Iterator[LLGuidanceBackend]:
    backend = LLGuidanceBackend(tokenizer, VOCAB, STOPS, BackendOptions(compile_limit_s=20.0))
    yield backend
    backend.close()


def test_a_process_that_dies_fails_one_compilation_only(tried: LLGuidanceBackend) -> None:
    tried.compile(GrammarSpec("regex", "a"))
    child = child_of(tried)
    child.kill()
    child.wait()
    tried.compile(GrammarSpec("regex", "b"))


def test_a_process_that_is_killed_at_a_grammar_is_replaced_by_one_that_compiles_it(
    tried: LLGuidanceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: whatever ends the second one too is told."""
    tried.compile(GrammarSpec("regex", "a"))
    send, killed = compiler_process._send, 0

    def send_and_kill(process: subprocess.Popen[bytes], message: Any) -> None:
        nonlocal killed
        kill = "kind" in message and killed < kills
        if kill:
            process.send_signal(signal.SIGSTOP)  # or it could answer before it is killed
        send(process, message)
        if kill:
            killed += 1
            process.kill()
            process.wait()

    monkeypatch.setattr(compiler_process, "_send", send_and_kill)
    kills = 1
    tried.compile(GrammarSpec("regex", "killed once"))
    assert killed == 1
    kills = 3
    with pytest.raises(GrammarError, match="the compiling process died"):
        tried.compile(GrammarSpec("regex", "killed twice"))
    assert killed == 3
    tried.compile(GrammarSpec("regex", "killed twice"))


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


def test_time_in_which_a_trial_gets_no_processor_is_not_counted(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_s = 0.3
    backend = LLGuidanceBackend(tokenizer, VOCAB, STOPS, BackendOptions(compile_limit_s=limit_s))
    backend.start()
    send = compiler_process._send

    def send_under_load(process: subprocess.Popen[bytes], message: Any) -> None:
        process.send_signal(signal.SIGSTOP)
        send(process, message)
        threading.Timer(2 * limit_s, process.send_signal, (signal.SIGCONT,)).start()

    monkeypatch.setattr(compiler_process, "_send", send_under_load)
    assert backend.compile(GrammarSpec("regex", "slow")).spec.source == "slow"
    backend.close()


def test_a_compilation_that_takes_too_much_memory_fails_and_the_next_one_works(
    xgrammar: XGrammarBackend,
) -> None:
    process = compiler_process.CompilerProcess(
        "xgrammar",
        {"tokenizer": xgrammar._info.serialize_json(), "vocab_size": VOCAB},
        limit_s=60.0,
        memory_bytes=8 * 1024 * 1024,
    )
    for _ in range(2):  # the same each time, whatever was tried before
        with pytest.raises(Refusal, match="json: compiling takes too much memory") as error:
            process.run(ENDLESS, any_whitespace=False, strict=True)
        assert error.value.cause == "limit"
        assert process.run(GrammarSpec("regex", "a"), any_whitespace=False, strict=True)
    process.close()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("std::bad_alloc"),
        SystemError("error return without exception set"),  # no memory for the exception itself
    ],
)
def test_what_libraries_raise_without_memory(error: Exception) -> None:
    assert refused("json", error).cause == "limit"
    assert "json: compiling takes too much memory" in str(refused("json", error))


def test_what_comes_back_is_text_and_not_what_was_compiled(
    guarded: XGrammarBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded = {f"p{i}": {"type": "string", "maxLength": 1000} for i in range(3)}
    received: list[int] = []
    receive = compiler_process._receive_line

    def counted(process: subprocess.Popen[bytes], limit_s: float) -> bytes:
        line = receive(process, limit_s)
        received.append(len(line))
        return line

    monkeypatch.setattr(compiler_process, "_receive_line", counted)
    guarded.start()
    guarded.compile(GrammarSpec.from_request({"json": {"type": "object", "properties": bounded}}))
    assert max(received) < 2000


def test_a_grammar_that_grows_too_long_on_its_way_to_the_library_is_refused() -> None:
    assert Job("json", "x" * MAX_JOB_BYTES).checked("json")
    with pytest.raises(Refusal, match=r"json: written out it has \d+ bytes, more than"):
        Job("json", "é" * MAX_JOB_BYTES).checked("json")


def test_closing_ends_a_trial_under_way(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = LLGuidanceBackend(tokenizer, VOCAB, STOPS, BackendOptions(compile_limit_s=3600.0))
    backend.start()
    sent, send = threading.Event(), compiler_process._send

    def send_and_stay(process: subprocess.Popen[bytes], message: Any) -> None:
        process.send_signal(signal.SIGSTOP)
        send(process, message)
        sent.set()

    monkeypatch.setattr(compiler_process, "_send", send_and_stay)
    errors: list[GrammarError] = []

    def compile_endless() -> None:
        with pytest.raises(GrammarError) as error:
            backend.compile(GrammarSpec("regex", "never tried"))
        errors.append(error.value)

    thread = threading.Thread(target=compile_endless)
    thread.start()
    assert sent.wait(60)
    backend.close()
    thread.join(60)
    assert "the compiling process died" in str(errors[0])


def test_a_job_waits_only_while_every_process_is_busy() -> None:
    busy, begun = threading.Event(), threading.Semaphore(0)
    ran: list[str] = []

    class Process:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, spec: str, **options: bool) -> str:
            if spec == "slow":
                begun.release()
                assert busy.wait(20)
            ran.append(self.name)
            return self.name

        def close(self) -> None:
            ran.append(f"{self.name} closed")

    pool = compiler_process.CompilerPool([Process("first"), Process("second")])  # type: ignore[list-item]
    ask: Any = partial(pool.run, any_whitespace=False, strict=True)
    slow = threading.Thread(target=ask, args=("slow",))
    slow.start()
    assert begun.acquire(timeout=20)
    assert [ask("fast") for _ in range(2)] == ["second", "second"]
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
