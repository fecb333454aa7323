"""An endpoint of the OpenAI API over HTTP: requests out, and moments at which bytes were read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..configs.errors import ConfigError, Mark
from ..graph.errors import did_you_mean
from .ask import Ask, body
from .choices import Endpoint
from .outcome import Outcome
from .reading import Reading, error_message
from .sse import EventReader

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

MOST_OF_AN_ERROR = 4096  # bytes
USAGES: tuple[Mapping[str, bool], ...] = (  # of stream_options, the most telling first
    {"include_usage": True, "continuous_usage_stats": True},
    {"include_usage": True},
    {},
)


@dataclass(frozen=True)
class Target:
    """Where a load goes. `root` is the URL without /v1; `timeout_s` is the longest silence."""

    root: str
    endpoint: Endpoint = Endpoint.CHAT
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)  # of every body
    timeout_s: float = 600.0


def root_of(url: str, where: str = "--base-url") -> str:
    """The URL without its last slash and without /v1. Raises `ConfigError` for what is none."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError.at(Mark(f"{where} {url}"), "write it as http://HOST:PORT")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


@asynccontextmanager
async def connected(
    target: Target, clock: Callable[[], float] = perf_counter
) -> AsyncIterator[Client]:
    """A client of the endpoint, whose connections are kept open until the block ends."""
    try:
        import aiohttp
    except ImportError:
        said = "needs aiohttp: pip install 'stepweave[bench]'"
        raise ConfigError.at(Mark("stepweave bench"), said) from None
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=target.timeout_s, sock_read=target.timeout_s
    )
    headers = {"Accept-Encoding": "identity", **target.headers}  # compressed is buffered
    try:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=timeout, headers=headers
        ) as session:
            yield Client(session, target, clock)
    except aiohttp.ClientError as error:  # outside of a request, whose failures are outcomes
        raise unreachable(target, error) from error


class Client:
    """What a benchmark asks of an endpoint. `model` and `usage` go with every request."""

    def __init__(
        self, session: ClientSession, target: Target, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._session, self._target, self._clock = session, target, clock
        self.model = ""
        self.usage = USAGES[0]
        self.status = 0  # of the last answer to an ask; 0 where there was none

    @property
    def place(self) -> str:
        """The URL that is asked."""
        return self._target.root + self._target.endpoint.path

    async def answer(self, ask: Ask, reading: Reading) -> None:
        """Send a request and read its answer. What goes wrong is noted in the reading."""
        from aiohttp import ClientError

        options = {"stream_options": dict(self.usage)} if self.usage else {}
        target = self._target
        asked = body(ask, target.endpoint, self.model, {**options, **target.extra})
        self.status = 0
        try:
            async with self._session.post(
                self.place, json=asked, allow_redirects=False
            ) as response:
                self.status = response.status
                await self._read(response, reading)
        except TimeoutError:
            reading.fail(f"no byte came for {target.timeout_s:g} s", self._clock())
        except (ClientError, OSError, ValueError) as error:
            reading.fail(f"{type(error).__name__}: {error}", self._clock())

    async def _read(self, response: ClientResponse, reading: Reading) -> None:
        if response.status != 200:
            said = await _short_text(response)
            reading.fail(f"HTTP {response.status}: {said}".rstrip(": "), self._clock())
            return
        if response.content_type != "text/event-stream":
            said = f"answered with {response.content_type}, not with a stream of events"
            reading.fail(said, self._clock())
            return
        events = EventReader()
        at_s = self._clock()
        async for received in response.content.iter_any():
            at_s = self._clock()  # before anything is made of it
            for data in events.feed(received):
                reading.event(data, at_s)
        for data in events.finish():
            reading.event(data, at_s)

    async def first_answer(self, ask: Ask) -> Outcome:
        """Ask, and find how the server counts tokens: options that it refuses are left out.

        Raises `ConfigError` if it answers none of the forms.
        """
        for usage in USAGES[USAGES.index(self.usage) :]:
            self.usage = usage
            now_s = self._clock()
            reading = Reading(ask.name, now_s, now_s)
            await self.answer(ask, reading)
            outcome = reading.outcome()
            if outcome.error is None:
                return outcome
            if self.status not in (400, 422):
                break
        hint = await self._unknown_model() if self.status in (400, 404) else ""
        raise ConfigError.at(Mark(self.place), f"the first request failed: {outcome.error}{hint}")

    async def models(self) -> list[str]:
        """The ids of the models that are served. Raises `ConfigError`."""
        url = f"{self._target.root}/v1/models"
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status != 200:
                    text = await _short_text(response)
                    said = f"answered {response.status} {text}".rstrip()
                    advice = (
                        "--api-key sends one" if response.status == 401 else "--model names one"
                    )
                    raise ConfigError.at(Mark(url), f"{said}; {advice}")
                listed = await response.json(content_type=None)
        except (OSError, TimeoutError) as error:
            raise unreachable(self._target, error) from error
        except ValueError as error:
            raise ConfigError.at(Mark(url), f"is not JSON: {error}") from error
        data = listed.get("data") if isinstance(listed, dict) else None
        return [str(each["id"]) for each in data or () if isinstance(each, dict) and "id" in each]

    async def choose_model(self, wanted: str | None) -> None:
        """Take the model that is wanted, or else the first that is served. Raises `ConfigError`."""
        if wanted is not None:
            self.model = wanted
            return
        served = await self.models()
        if not served:
            raise ConfigError.at(Mark(f"{self._target.root}/v1/models"), "lists none: add --model")
        self.model = served[0]

    async def metrics(self) -> str | None:
        """What /metrics says; None where there is no such page."""
        from aiohttp import ClientError

        try:
            async with self._session.get(f"{self._target.root}/metrics") as response:
                return await response.text() if response.status == 200 else None
        except (ClientError, OSError, TimeoutError, ValueError):
            return None

    async def _unknown_model(self) -> str:
        """A hint that ends a message, where the model is not one of those served."""
        try:
            served = await self.models()
        except ConfigError:
            return ""
        if not served or self.model in served:
            return ""
        return f"; no model {self.model!r} is served{did_you_mean(self.model, served)}"


def unreachable(target: Target, error: BaseException) -> ConfigError:
    """Nobody answers at the URL."""
    cause = getattr(error, "os_error", error)  # of aiohttp, whose own words tell of its insides
    reason = getattr(cause, "strerror", None) or f"{cause}" or type(cause).__name__
    return ConfigError.at(Mark(target.root), f"cannot be reached: {reason}. Does a server run?")


async def _short_text(response: ClientResponse) -> str:
    """What the body says, cut; the message of a JSON error."""
    raw = await response.content.read(MOST_OF_AN_ERROR)
    text = raw.decode("utf-8", errors="replace")
    with suppress(ValueError):
        text = error_message(json.loads(text)) or text
    return " ".join(text.split())
