"""The live page in a real browser, at a service that serves: figures, lanes, keys, its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stepweave.server.settings import Settings
from tests.browser.driver import complaints, outside_requests, until
from tests.server.in_thread import Running, running

STORY = {"prompt": "Once upon a time", "max_tokens": 64, "ignore_eos": True, "temperature": 0}
HOSTILE = "<img src=x onerror=\"document.title='taken'\"></td><script>alert(1)</script>"
Visit = Callable[..., Any]


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running() as found, found.client() as client:
        for _ in range(2):
            assert client.post("/v1/completions", json=STORY).status_code == 200
        yield found


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    """`visit(service, width=1280, wrong=())` opens its page.

    After the test no page has complained, but of `wrong`, nor asked anybody else for anything.
    """
    browser.get("about:blank")
    complaints(browser), outside_requests(browser)  # what others left
    expected: list[str] = []
    origins: list[str] = []

    def opened(service: Running, *, width: int = 1280, wrong: tuple[str, ...] = ()) -> Any:
        expected.extend(wrong)
        origins.append(service.url)
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
        browser.get(f"{service.url}/")
        return browser

    yield opened
    browser.get("about:blank")
    said = [each for each in complaints(browser) if not any(word in each for word in expected)]
    assert said == []
    asked = {
        each for each in outside_requests(browser) if not each.startswith(tuple(origins or ["-"]))
    }
    assert asked == set()


def ask(page: Any, script: str) -> Any:
    return page.execute_script(f"return {script}")


def text(page: Any, selector: str) -> str:
    return str(ask(page, f"document.querySelector('{selector}').innerText"))


def shown(page: Any) -> None:
    until(page, "!document.querySelector('main').hidden && document.querySelector('#facts dd')")


def painted(page: Any, selector: str = "#lanes") -> str:
    return str(ask(page, f"document.querySelector('{selector}').toDataURL()"))


def test_it_shows_what_the_service_has_done(visit: Visit, service: Running) -> None:
    page = visit(service)
    shown(page)
    assert text(page, "#model") == "embedded"
    assert text(page, "#state") == "serving"
    assert service.llm.plan.digest[:12] in text(page, "#plan")
    tokens = service.llm.service.totals.tokens
    assert f"{tokens} so far" in text(page, "#facts")
    assert "host work hidden" in text(page, "#facts")
    ops = ask(
        page, "[...document.querySelectorAll('#ops tbody tr')].map(r => r.cells[0].innerText)"
    )
    assert {*ops} == {*service.llm.plan.graph.vertices}
    waits = ask(page, "document.querySelectorAll('#waits tbody tr').length")
    assert waits == len(service.llm.plan.waits)
    positions = ask(page, "document.querySelectorAll('#accepted tbody tr').length")
    assert positions == len(service.llm.service.totals.accepted_at)
    assert ask(page, "document.documentElement.scrollWidth <= innerWidth")


def test_the_lanes_are_drawn_and_an_op_says_what_it_is(visit: Visit, service: Running) -> None:
    page = visit(service)
    shown(page)
    colours = ask(
        page,
        """(() => {
          const canvas = document.getElementById("lanes");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const found = new Set();
          for (let i = 0; i < data.length; i += 4)
            found.add([data[i], data[i + 1], data[i + 2]].join());
          return [...found];
        })()""",
    )
    assert {"143,205,242", "244,184,74", "114,207,178"} <= {*colours}  # of three steps
    assert "176,15,58" in colours  # a wait
    box = ask(
        page,
        "(r => [r.left, r.top, r.width])(document.getElementById('lanes').getBoundingClientRect())",
    )
    tips = set()
    for share in range(20, 100, 5):
        place = {"x": box[0] + box[2] * share / 100, "y": box[1] + 20 + 30 * 1.5}
        page.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **place})
        tips.add(text(page, "#tip"))
    ops = service.llm.plan.graph.vertices
    assert any(tip.split(" of step ")[0] in ops for tip in tips), tips


def test_what_comes_meanwhile_is_shown(visit: Visit, service: Running) -> None:
    page = visit(service)
    shown(page)
    before, lanes = service.llm.service.totals.tokens, text(page, "#lanes-note")
    with service.client() as client:
        client.post("/v1/completions", json=STORY, headers={"x-request-id": "another-story"})
    until(page, f"document.getElementById('facts').innerText.includes('{before + 64} so far')")
    assert text(page, "#requests td") == "another-story"
    assert text(page, "#lanes-note") != lanes


def test_ids_of_requests_are_text_whatever_they_are(visit: Visit, service: Running) -> None:
    async def served() -> None:
        async with await service.llm.submit("a", {"max_tokens": 2}, id=HOSTILE) as stream:
            async for _ in stream:
                pass

    asyncio.run_coroutine_threadsafe(served(), service.loop).result(60)
    page = visit(service)
    shown(page)
    cells = "[...document.querySelectorAll('#requests td')]"
    until(page, f"{cells}.some(each => each.innerText === {json.dumps(HOSTILE)})")
    assert ask(page, "document.querySelectorAll('#requests img, #requests script').length") == 0
    assert ask(page, "document.title") == "embedded · Stepweave"


@pytest.mark.parametrize(
    "width", [*(pytest.param(width, marks=pytest.mark.nightly) for width in (1280, 390)), 320]
)
def test_it_fits_light_and_dark(visit: Visit, service: Running, width: int) -> None:
    page = visit(service, width=width)
    shown(page)
    ground = "getComputedStyle(document.body).backgroundColor"
    assert ask(page, ground) == "rgb(255, 255, 255)"
    light = painted(page)
    ask(page, "document.getElementById('theme').click()")
    assert ask(page, ground) == "rgb(15, 19, 24)"
    assert painted(page) != light
    assert ask(page, "document.documentElement.scrollWidth") <= width
    ask(page, "document.getElementById('theme').click()")
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.refresh()
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    shown(page)
    until(page, f"{ground} === 'rgb(15, 19, 24)'")
    until(page, "document.getElementById('theme').getAttribute('aria-pressed') === 'true'")


def test_it_can_be_held_and_goes_on(visit: Visit, service: Running) -> None:
    page = visit(service)
    shown(page)
    page.execute_script(
        "window.asked = 0; const old = window.fetch;"
        "window.fetch = (...all) => { window.asked++; return old(...all); };"
        "const wait = window.setTimeout;"  # a second of the page's clock is a tenth of one
        "window.setTimeout = (then, ms) => wait(then, ms / 10)"
    )
    until(page, "window.asked > 0")
    page.execute_script("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'p'}))")
    assert text(page, "#pause") == "Go on"
    held = ask(page, "window.asked")
    # Two rounds of the page's own clock, and nothing was asked.
    page.execute_async_script("setTimeout(arguments[0], 2500)")
    assert ask(page, "window.asked") == held
    ask(page, "document.getElementById('pause').click()")
    until(page, f"window.asked > {held}")


def test_it_asks_for_the_key_and_keeps_it_for_this_tab_only(visit: Visit) -> None:
    settings = Settings(models=("embedded",), api_keys=("secret",))
    with running(settings) as service:
        page = visit(service, wrong=("401",))
        until(page, "!document.getElementById('ask').hidden")
        assert ask(page, "document.querySelector('main').hidden")
        assert "embedded" not in text(page, "body")

        def give(key: str) -> None:
            page.execute_script("document.getElementById('key').value = arguments[0]", key)
            page.execute_script("document.querySelector('#ask button').click()")

        give("other")
        until(page, "!document.getElementById('wrong').hidden")
        assert ask(page, "document.querySelector('main').hidden")
        give("secret")
        shown(page)
        assert text(page, "#model") == "embedded"
        page.refresh()
        shown(page)
        assert "secret" not in ask(page, "location.href + document.cookie")
        assert ask(page, "localStorage.length") == 0
        page.execute_script("sessionStorage.clear()")


def test_it_goes_on_while_the_service_drains_and_says_when_it_is_gone(visit: Visit) -> None:
    with running() as service:
        page = visit(service, wrong=("ERR_CONNECTION", "ERR_EMPTY_RESPONSE", "Failed to load"))
        shown(page)
        service.engine.draining = True
        until(page, "document.getElementById('state').innerText === 'draining'")
        assert text(page, "#model") == "embedded"
    until(page, "document.getElementById('state').innerText === 'no answer'")
    assert "said last" in text(page, "#silent")
    assert ask(page, "document.querySelectorAll('#facts dd').length") > 4


def test_a_page_without_the_recorder_says_so(visit: Visit) -> None:
    with running(Settings(models=("embedded",), recorder=False)) as service:
        page = visit(service)
        shown(page)
        assert "--no-recorder" in text(page, "#lanes-note")
        assert ask(page, "document.getElementById('lanes').hidden")


def test_it_may_ask_nobody_else(visit: Visit, service: Running) -> None:
    page = visit(service, wrong=("Content Security Policy", "violates"))
    shown(page)
    refused = page.execute_async_script(
        "const done = arguments[0];"
        "document.addEventListener('securitypolicyviolation',"
        " (event) => done(event.effectiveDirective));"
        "fetch('http://127.0.0.1:9/').catch(() => null)"
    )
    assert refused == "connect-src"
    page.execute_script(
        "const made = document.createElement('script'); made.textContent = 'window.ran = true';"
        "document.body.append(made)"
    )
    assert ask(page, "window.ran") is None
