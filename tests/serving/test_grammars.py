"""The processes that compile grammars: which are started when, and that closing ends them all."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from stepweave import LLM
from stepweave.models.source import resolve
from stepweave.models.tokenizer import load_tokenizer
from stepweave.nodes.bitmask import GrammarOptions
from stepweave.serving.engine import EngineError
from stepweave.serving.grammars import Grammars
from stepweave.structured.auto_backend import AutoBackend
from stepweave.structured.backend import CompiledGrammar
from stepweave.structured.compiler_process import CompilerProcess
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.library_backend import LibraryBackend


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The libraries whose processes were started, in this order; none really is."""
    names: list[str] = []
    monkeypatch.setattr(
        CompilerProcess, "start", lambda self: names.append(self._settings["library"])
    )
    return names


def grammars(**options: Any) -> Grammars:
    tokenizer = load_tokenizer(resolve("embedded"))
    return Grammars(GrammarOptions(**options), tokenizer, len(tokenizer), [tokenizer.eos_token_id])


def test_an_engine_starts_one_library_and_a_service_all(started: list[str]) -> None:
    found = grammars()
    for thread in found._starting:
        thread.join()
    assert started == ["llguidance"]
    found.start_all()
    found.close()  # it waits for what is being started
    assert started == ["llguidance", "llguidance", "xgrammar"]


@pytest.mark.parametrize("backend", ["auto", "xgrammar", "llguidance"])
def test_masks_are_filled_by_as_many_threads_as_the_file_says(
    started: list[str], monkeypatch: pytest.MonkeyPatch, backend: Any
) -> None:
    threads: list[int] = []
    made = LibraryBackend.__init__

    def seen(self: Any, shape: Any, library: Any, options: Any, worker: Any) -> None:
        threads.append(options.fill_threads)
        made(self, shape, library, options, worker)

    monkeypatch.setattr(LibraryBackend, "__init__", seen)
    here = {"backend": backend, "compile_limit_s": None}  # without a process that tries them
    for found in (grammars(**here, fill_threads=3), grammars(**here)):
        asked = GrammarSpec.from_request({"regex": "[ab]+c"})
        assert found.compile(asked, None).result().spec == asked
        found.close()
    half = len(threads) // 2
    assert (set(threads[:half]), set(threads[half:])) == ({3}, {1})


def test_a_process_that_starts_while_all_is_closed_is_ended_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, closed = threading.Event(), threading.Event()
    start, close = CompilerProcess._started, AutoBackend.close
    processes: list[Any] = []

    def start_late(self: CompilerProcess) -> Any:
        begun.set()
        assert closed.wait(60)
        processes.append(start(self))
        return processes[-1]

    def close_and_tell(self: AutoBackend) -> None:
        close(self)
        closed.set()

    monkeypatch.setattr(AutoBackend, "close", close_and_tell)
    monkeypatch.setattr(CompilerProcess, "start", start_late)
    found = grammars()
    assert begun.wait(60)
    found.close()
    [process] = processes
    assert process.poll() is not None, "it runs on"


def test_a_grammar_behind_a_section_of_reasoning_can_be_cancelled(
    started: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = grammars(reasoning_end="</think>")
    waiting, other = Future[CompiledGrammar](), Future[CompiledGrammar]()
    answers = [waiting, other]
    monkeypatch.setattr(found._service, "submit", lambda spec: answers.pop(0))
    asked = GrammarSpec.from_request({"regex": "[ab]+c"})
    assert found.compile(asked, None).cancel()
    assert waiting.cancelled()
    other.set_running_or_notify_cancel()  # a worker is at it
    assert found.compile(asked, None).cancel()
    other.set_exception(GrammarError("over the limit"))
    assert not caplog.records, "an error in a callback is logged, and nowhere else"
    found.close()


def test_a_text_that_cannot_end_a_section_of_reasoning_is_refused_at_once() -> None:
    said = "nodes.bitmask: reasoning: .*ends the whole output"
    with pytest.raises(EngineError, match=said):
        LLM(pipeline="async_grammar", overrides={"nodes.bitmask.reasoning_end": "<|eos|>"})
