"""A headless Chromium for tests: started once, watched for errors and for requests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # CI runs as root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
OWN = ("file:", "data:", "about:", "blob:", "chrome:")  # schemes that reach no network


def missing() -> str | None:
    """What has to be installed before a browser test can run; None if all is there."""
    wanted = {"chromium": _chromium(), "chromedriver": shutil.which("chromedriver")}
    absent = [name for name, path in wanted.items() if path is None]
    if not absent:
        return None
    return f"no {' and no '.join(absent)} on the path (Debian: chromium and chromium-driver)"


def _chromium() -> str | None:
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """A WebDriver whose browser keeps all it writes in the folder `profile`.

    Both programs are named, so selenium looks for neither and downloads neither.
    """
    options = Options()
    options.binary_location = _chromium() or ""
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def until(driver: Any, script: str) -> None:
    """Wait until this is true in the page: a page handles input and media when its frame comes."""
    asked = f"return Boolean({script})"
    WebDriverWait(driver, 90, poll_frequency=0.05).until(
        lambda _: driver.execute_script(asked), script
    )


def complaints(driver: Any) -> list[str]:
    """What the console said since the last call: errors, violations, warnings."""
    entries = driver.get_log("browser")
    return [entry["message"] for entry in entries if entry["level"] in {"SEVERE", "WARNING"}]


def outside_requests(driver: Any) -> list[str]:
    """Every address asked for since the last call that is neither a file nor inline."""
    addresses = []
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            addresses.append(message["params"]["request"]["url"])
        elif message["method"] == "Network.webSocketCreated":
            addresses.append(message["params"]["url"])
    return [address for address in addresses if not address.startswith(OWN)]
