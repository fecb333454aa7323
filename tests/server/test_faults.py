"""What fails, ends the requests concerned, with a word that says so; nobody else notices."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from stepweave.graph.node import OpContext, Run
from stepweave.requests.batch import StepBatch
from stepweave.server.settings import Settings
from stepweave.serving.async_llm import AsyncLLM
from stepweave.serving.engine import EngineError
from stepweave.structured.auto_backend import AutoBackend
from stepweave.structured.backend import CompiledGrammar
from stepweave.structured.compiler_process import CompilerProcess
from stepweave.testing.faults import (
    Changing,
    FaultyDecoder,
    FaultyGrammar,
    InjectedFault,
    with_faults,
)
from tests.server.in_thread import Running, running
from tests.server.leftovers import Held, nothing_left_in, until

TEXT = "/v1/completions"
LETTERS = {"structured_outputs": {"regex": "[a-z ]{30}"}}
OPS = (
    "schedule.host",
    "prepare_inputs.host",
    "prepare_inputs.device",
    "forward.host",
    "forward.device",
    "bitmask.host",
    "bitmask.device",
    "sample.host",
    "sample.device",
    "draft.host",
    "draft.device",
    "d2h_copy.host",
    "d2h_copy.device",
    "commit.host.advance",
    "commit.host.finish",
)
BUFFERS = ("staging", "mask_host", "host_sampled", "host_drafts")


@dataclass
class Faults:
    """What goes wrong at present, in a plan that asks before each op and each buffer.

    `op` fails once, before or after its work, in the first step from now on with two rows; or
    again and again if it is `lasting`. `buffer` cannot be allocated.
    """

    op: str | None = None
    after: bool = False
    lasting: bool = False
    buffer: str | None = None
    error: Callable[[], Exception] = lambda: InjectedFault("on purpose")
    hit: list[str] = field(default_factory=list)  # ids of the requests of the failed step
    failed: int = 0
    batches: dict[int, list[str]] = field(default_factory=dict)

    def fail(self, op: str, *, after: bool = False, lasting: bool = False) -> None:
        self.hit, self.failed, self.batches = [], 0, {}
        self.after, self.lasting, self.op = after, lasting, op

    def mend(self) -> None:
        self.op = self.buffer = None

    def around(self, name: str, ctx: OpContext, run: Run) -> None:
        if name == "schedule.host":
            ctx = Changing(ctx, {"batch": lambda batch: self._scheduled(ctx.step, batch)})
        self._maybe(name, ctx.step, after=False)
        run(ctx)
        self._maybe(name, ctx.step, after=True)

    def allocating(self, name: str) -> None:
        if name == self.buffer:
            self.failed += 1
            raise MemoryError(f"no memory for {name}, on purpose")

    def _scheduled(self, step: int, batch: StepBatch) -> StepBatch:
        self.batches[step] = [row.request.id for row in batch.rows]
        return batch

    def _maybe(self, name: str, step: int, *, after: bool) -> None:
        if (name, after) != (self.op, self.after):
            return
        mine = self.batches.get(step, [])
        unscheduled = name == "schedule.host" and not after
        seen = self.batches.get(step - 1, []) if unscheduled else mine
        if len(seen) < (1 if self.lasting else 2):
            return
        if not self.lasting:
            self.op = None
        self.failed += 1
        self.hit = list(mine)
        self.batches.clear()
        raise self.error()


FAULTS = Faults()


def prepared(llm: AsyncLLM) -> None:
    llm.engine.plan = with_faults(llm.engine.plan, FAULTS.around, FAULTS.allocating)


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    settings = Settings(models=("embedded",))
    # A run that may replay steps of earlier ones keeps their buffers, and asks for none.
    changed = {"scheduler.max_rows": 2, "graphs": False}
    with running(settings, changed, prepare=prepared) as found:
        assert tuple(found.llm.plan.graph.vertices) == OPS
        assert {n for n, v in found.llm.plan.graph.values.items() if v.allocate} == set(BUFFERS)
        yield found


@pytest.fixture(autouse=True)
def _whole(service: Running) -> Iterator[None]:
    """Nothing is left behind by any of these, and the service is well."""
    yield
    FAULTS.mend()
    nothing_left_in(service.llm.service)


def asked(prompt: str, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **more}


MIXED = (
    asked("Write a story.", **LETTERS),
    asked("A list:", temperature=0.9, seed=3, logprobs=2),
    asked("Once"),
    asked("The capital of", frequency_penalty=0.4, bad_words=["of"]),
)


def answers(service: Running, bodies: Sequence[Mapping[str, Any]]) -> list[httpx.Response]:
    """Of requests that are sent together, with the ids 0, 1, and so on."""

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=service.url, timeout=120, trust_env=False) as client:
            calls = [
                client.post(TEXT, json=dict(body), headers={"x-request-id": f"{index}"})
                for index, body in enumerate(bodies)
            ]
            return list(await asyncio.gather(*calls))

    return asyncio.run(ask())


def said(answer: httpx.Response) -> tuple[str, Any]:
    [choice] = answer.json()["choices"]
    return choice["text"], choice["logprobs"]


@pytest.fixture(scope="module")
def alone(service: Running) -> list[tuple[str, Any]]:
    return [said(answers(service, [body])[0]) for body in MIXED]


def concerned(service: Running, alone: list[tuple[str, Any]], op: str) -> None:
    """Those of the failed step have its error, the others what they get without it."""
    found = answers(service, MIXED)
    assert FAULTS.failed == 1, "nothing failed"
    errors = {f"{index}" for index, each in enumerate(found) if each.status_code != 200}
    assert errors == set(FAULTS.hit)
    for index, answer in enumerate(found):
        if answer.status_code == 200:
            assert said(answer) == alone[index]
            continue
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert error["type"] == "server_error"
        assert f"op {op!r} failed in step" in error["message"]
        assert "on purpose" in error["message"]
    with service.client() as client:
        assert client.get("/health").status_code == 200


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("op", "after"),
    [
        *((op, index % 2 == 1) for index, op in enumerate(OPS)),
        *(pytest.param(op, i % 2 == 0, marks=pytest.mark.nightly) for i, op in enumerate(OPS)),
    ],
)
def test_a_fault_at_a_node_ends_the_requests_of_its_step_alone(
    service: Running, alone: list[tuple[str, Any]], op: str, after: bool
) -> None:
    """Before or after its work; the other end of each node nightly."""
    FAULTS.fail(op, after=after)
    concerned(service, alone, op)


def test_memory_that_a_step_does_not_get_ends_its_requests_alone(
    service: Running, alone: list[tuple[str, Any]]
) -> None:
    FAULTS.error = lambda: MemoryError("on purpose: 80 GiB")
    FAULTS.fail("forward.device")
    concerned(service, alone, "forward.device")
    FAULTS.error = lambda: InjectedFault("on purpose")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("buffer", BUFFERS)
def test_memory_that_a_run_does_not_get_is_told_and_asked_for_again(
    service: Running, alone: list[tuple[str, Any]], buffer: str
) -> None:
    """A run that cannot begin serves nobody; the one after it does."""
    FAULTS.failed, FAULTS.buffer = 0, buffer
    service.llm.service.table.leave()
    until(lambda: FAULTS.failed > 1, "a run could not begin")
    answer = answers(service, MIXED[:1])[0]
    assert answer.status_code == 500
    assert f"no memory for {buffer}" in answer.json()["error"]["message"]
    FAULTS.mend()
    assert said(answers(service, MIXED[:1])[0]) == alone[0]


def test_an_engine_whose_steps_all_fail_is_not_well_until_one_does_not(service: Running) -> None:
    """Each failure ends its requests, so nothing is stuck; but nobody is served."""
    FAULTS.fail("forward.device", lasting=True)
    with service.client() as client:
        before = client.get("/health").status_code
        for _ in range(6):
            assert answers(service, MIXED[:1])[0].status_code == 500
        assert (before, client.get("/health").status_code) == (200, 503)
        assert client.get("/ready").status_code == 503
        FAULTS.mend()
        assert answers(service, MIXED[:1])[0].status_code == 200
        assert client.get("/health").status_code == 200


def ends_alone(
    service: Running, alone: list[tuple[str, Any]], body: Mapping[str, Any], message: str
) -> None:
    """This request has an error that says so; another at its side gets what it gets alone."""
    hit, other = answers(service, [body, MIXED[1]])
    assert hit.status_code == 500
    assert message in hit.json()["error"]["message"]
    assert said(other) == alone[1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("call", ["matcher", "fill", "advance"])
def test_an_error_of_a_matcher_ends_its_request_alone(
    service: Running, alone: list[tuple[str, Any]], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    intake = service.llm.service.intake
    compiled = intake.grammar

    def faulty(*given: Any) -> Future[CompiledGrammar]:
        made: Future[CompiledGrammar] = Future()
        made.set_result(
            FaultyGrammar(compiled(*given).result(), {call: 2 if call != "matcher" else 1})
        )
        return made

    monkeypatch.setattr(intake, "grammar", faulty)
    ends_alone(service, alone, MIXED[0], "failed on purpose")


def test_an_error_of_the_decoder_ends_its_request_alone(
    service: Running, alone: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    intake = service.llm.service.intake
    made = intake.requests

    def faulty(*given: Any) -> Any:
        requests = made(*given)
        for request in requests:
            if request.id == "0":
                request.decoder = FaultyDecoder(request.decoder, 3)
        return requests

    monkeypatch.setattr(intake, "requests", faulty)
    ends_alone(service, alone, MIXED[2], "the decoder failed on purpose")


def test_an_error_of_the_tokenizer_ends_its_request_alone(
    service: Running, alone: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = type(service.llm.tokenizer)
    encode = tokenizer.__call__

    def faulty(self: Any, text: Any, *given: Any, **more: Any) -> Any:
        if "poison" in f"{text}":
            raise RuntimeError("the tokenizer failed on purpose")
        return encode(self, text, *given, **more)

    monkeypatch.setattr(tokenizer, "__call__", faulty)
    ends_alone(service, alone, asked("poison"), "failed")


def compilers(service: Running) -> list[CompilerProcess]:
    grammars = service.llm.service.intake._grammars
    assert grammars is not None
    assert isinstance(grammars._backend, AutoBackend)
    pools = [each._processes for each in grammars._backend._backends.values()]
    return [process for pool in pools if pool is not None for process in pool._all]


def test_a_compiling_process_that_is_killed_is_replaced(service: Running) -> None:
    """Between two grammars, and at one: it is stopped first, so that it cannot have ended it."""

    def current() -> subprocess.Popen[bytes]:
        return next(each._process for each in compilers(service) if each._process is not None)

    def asked_for(regex: str) -> None:
        body = asked("a", structured_outputs={"regex": regex}, max_tokens=40)
        [answer] = answers(service, [{**body, "ignore_eos": False}])
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == regex

    def kill_when_somebody_waits(process: subprocess.Popen[bytes]) -> None:
        until(lambda: service.llm.service._uncompiled, "a request waits for its grammar")
        os.killpg(process.pid, signal.SIGKILL)

    asked_for("before it")
    first, files = current(), Held.now().files
    os.killpg(first.pid, signal.SIGKILL)
    asked_for("after it")
    second = current()
    os.killpg(second.pid, signal.SIGSTOP)
    killer = threading.Thread(target=kill_when_somebody_waits, args=[second])
    killer.start()
    asked_for("at one")
    killer.join()
    assert len({first.pid, second.pid, current().pid}) == 3
    assert (first.poll(), second.poll()) == (-signal.SIGKILL, -signal.SIGKILL)
    assert Held.now().files <= files + 2, "pipes of processes that are gone"


def test_a_service_that_is_closed_leaves_nothing_behind_and_another_begins(
    service: Running,
) -> None:
    """Threads and files are those of before; what ran is told."""
    before = Held.now()
    for _ in range(2):
        with running() as other:
            assert answers(other, MIXED[:2])[0].status_code == 200
        assert not other.llm.service.unended
        with pytest.raises(EngineError):
            other.llm.service.submit("a", None, lambda _: None, id="late")
    until(lambda: not Held.now().exceeds(before, files=2), "threads and files are back")
