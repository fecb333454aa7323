"""The browser tests' own instruments: they see the errors and requests that they are for."""

from __future__ import annotations

from typing import Any

from tests.browser.driver import complaints, outside_requests


def test_a_page_without_faults_is_left_alone(open_page: Any) -> None:
    driver = open_page("<!doctype html><title>fine</title><p>x")
    assert driver.title == "fine"


def test_an_error_in_a_script_is_a_complaint(open_page: Any) -> None:
    driver = open_page("<!doctype html><script>throw new Error('on purpose')</script>")
    assert any("on purpose" in said for said in complaints(driver))


def test_a_request_to_a_network_is_seen(open_page: Any) -> None:
    driver = open_page("<!doctype html><img src='http://127.0.0.1:9/x.png'>")
    assert outside_requests(driver) == ["http://127.0.0.1:9/x.png"]
    assert complaints(driver)
