"""One browser for all tests, and what every page is held to: no error, no request."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.driver import chromium, complaints, missing, outside_requests

OpenPage = Callable[..., Any]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A WebDriver; without a browser the tests are skipped, or fail where one is required."""
    if reason := missing():
        if os.environ.get("STEPWEAVE_REQUIRE_BROWSER") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[OpenPage]:
    """`open_page(html, fragment="", width=1280, height=800)` returns the WebDriver.

    After the test, no page that was opened has logged an error or asked a network for anything.
    """
    browser.get("about:blank")
    complaints(browser), outside_requests(browser)  # what others left: start page, earlier tests
    blank = True

    def opened(
        html: str, *, fragment: str = "", width: int = 1280, height: int = 800, scripts: bool = True
    ) -> Any:
        nonlocal blank
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
        if not blank:
            browser.get("about:blank")  # another fragment alone would not load the page again
        blank = False
        browser.get(path.as_uri() + (f"#{fragment}" if fragment else ""))
        return browser

    yield opened
    assert complaints(browser) == []
    assert outside_requests(browser) == []
