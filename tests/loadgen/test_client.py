"""A real server on loopback: what is sent, what is read, and every way in which that can fail."""

from __future__ import annotations

import asyncio
import socket

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.loadgen.ask import Ask
from stepweave.loadgen.choices import Endpoint
from stepweave.loadgen.client import USAGES, Target, connected, root_of
from stepweave.loadgen.load import Load, Result
from stepweave.loadgen.outcome import Outcome
from stepweave.loadgen.reading import Reading
from stepweave.loadgen.served import serve_bench
from stepweave.loadgen.session import Session
from stepweave.loadgen.workload import RandomPrompts
from tests.loadgen.stub import BAD, GOOD, LATE, PLAIN, Stub


def load(warm_up: int = 0) -> Load:
    return Load(RandomPrompts(47, 5), 4, limit=2, warm_up=warm_up)


def bench(target: Target, model: str | None = None, asked: Load | None = None) -> Result:
    return asyncio.run(serve_bench(Session(), target, model, asked or load()))


def answer(server: Stub, model: str, timeout_s: float = 60.0) -> Outcome:
    """What becomes of one request."""

    async def main() -> Outcome:
        async with connected(Target(server.url, timeout_s=timeout_s)) as client:
            client.model = model
            reading = Reading("one", 0.0, 0.0)
            await client.answer(Ask("one", "Hi", 3), reading)
            return reading.outcome()

    return asyncio.run(main())


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_a_load_comes_to_its_figures(server: Stub, endpoint: Endpoint) -> None:
    result = bench(Target(server.url, endpoint, extra={"temperature": 0.5}))
    assert result.about["model_id"] == GOOD
    assert (result.summary.completed, result.summary.failed) == (4, 0)
    # A prompt of 47 tokens has (47 - 7) / 2 words: two requests told what a word costs.
    assert result.summary.input_tokens == 4 * 47
    assert result.summary.output_tokens == 4 * 5
    assert all(len(each.arrivals) == 5 for each in result.ran.outcomes)
    assert result.remarks == ()
    first, *_, last = server.bodies
    assert (first["max_tokens"], last["max_tokens"]) == (1, 5)
    assert last["stream_options"] == USAGES[0]
    assert last["temperature"] == 0.5
    assert ("messages" in last) == (endpoint is Endpoint.CHAT)


def test_counters_of_speculation_are_those_of_the_load_alone(server: Stub) -> None:
    result = bench(Target(server.url), asked=load(warm_up=3))
    assert len(server.bodies) == 2 + 3 + 4
    assert result.speculation is not None
    assert (result.speculation.drafts, result.speculation.drafted) == (8, 24)
    assert result.speculation.rate == 0.5


def test_warm_up_asks_for_other_prompts_than_the_load(server: Stub) -> None:
    bench(Target(server.url), asked=load(warm_up=3))
    prompts = [body["messages"][0]["content"] for body in server.bodies]
    assert len(set(prompts)) == 2 + 3 + 4


def test_what_a_server_refuses_to_count_is_left_out(server: Stub) -> None:
    late = bench(Target(server.url), LATE)
    assert server.bodies[-1]["stream_options"] == USAGES[1]
    assert (late.summary.input_tokens, late.summary.output_tokens) == (4 * 47, 20)
    plain = bench(Target(server.url), PLAIN)
    assert "stream_options" not in server.bodies[-1]
    assert (plain.summary.input_tokens, plain.summary.output_tokens) == (None, 20)
    assert "does not count tokens" in plain.remarks[0]


def test_headers_go_with_every_request_and_are_not_in_the_result(server: Stub) -> None:
    headers = {"Authorization": "Bearer secret", "X-Team": "a"}
    result = bench(Target(server.url, headers=headers))
    assert all(each["Authorization"] == "Bearer secret" for each in server.headers)
    assert all(each["Accept-Encoding"] == "identity" for each in server.headers)
    assert "secret" not in str(result.to_json(requests=True))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("busy", "HTTP 429: the queue is full"),
        ("down", "HTTP 503: draining"),
        ("odd", 'HTTP 418: ["teapot"]'),
        ("page", "answered with text/html, not with a stream of events"),
        ("breaks", "the engine failed"),
    ],
)
def test_a_failure_says_why(server: Stub, model: str, said: str) -> None:
    assert answer(server, model).error == said


def test_a_connection_that_is_cut_is_a_failure_with_the_tokens_so_far(server: Stub) -> None:
    found = answer(server, "cut")
    assert found.error is not None
    assert found.tokens == 3


def test_silence_ends_a_request(server: Stub) -> None:
    assert answer(server, "silent", timeout_s=0.05).error == "no byte came for 0.05 s"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("god", "HTTP 404: no model god; no model 'god' is served (did you mean 'good'?)"),
        ("elsewhere", "no model 'elsewhere' is served (known: good)"),
        *((name, f"the first request failed: HTTP {status}") for name, (status, _) in BAD.items()),
    ],
)
def test_a_server_that_answers_no_first_request_is_refused(
    server: Stub, model: str, said: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        bench(Target(server.url), model)
    assert said in raised.value.message


def test_a_server_without_models_needs_a_name(server: Stub) -> None:
    server.models = []
    with pytest.raises(ConfigError, match="lists none: add --model"):
        bench(Target(server.url))


def test_a_server_that_wants_a_key_is_not_said_to_want_a_model(server: Stub) -> None:
    server.key = "secret"
    with pytest.raises(ConfigError, match=r"answered 401 a key is needed; --api-key sends one$"):
        bench(Target(server.url))


def test_nobody_there_is_said_with_the_place() -> None:
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"cannot be reached: .*Does a server run"):
            bench(Target(url))
        with pytest.raises(ConfigError, match="the first request failed"):
            bench(Target(url), GOOD)


@pytest.mark.parametrize(
    "url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", "http://h:1//"]
)
def test_a_base_url_may_end_as_clients_write_it(url: str) -> None:
    assert root_of(url) == "http://h:1"
    assert root_of("https://h/openai/v1") == "https://h/openai"


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "http://", "http://[", "http://h:99999999"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="write it as http://HOST:PORT"):
        root_of(url)


def test_a_stop_before_the_load_ends_it_at_once(server: Stub) -> None:
    """The first request is answered by nobody: the stop cancels what waits for it."""

    session = Session()

    async def run() -> None:
        session.begin()
        await serve_bench(session, Target(server.url), "silent", load())

    async def main() -> None:
        running = asyncio.create_task(run())
        while not server.bodies:
            await asyncio.sleep(0)
        session.stop()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())


def test_any_key_goes_with_every_request(server: Stub) -> None:
    extra = {"stream_options": {"include_usage": True}, "ask": 1, "endpoint": 2}
    bench(Target(server.url, extra=extra))
    assert extra.items() <= server.bodies[-1].items()
