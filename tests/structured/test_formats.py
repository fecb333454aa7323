"""Formats: what matches is of the format, by the standard library and by hand."""

from __future__ import annotations

import random
from datetime import date, datetime
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from stepweave.structured.formats import format_names, format_pattern
from stepweave.structured.regex_syntax import finds


def of(name: str, text: str) -> bool:
    pattern = format_pattern(name)
    assert pattern is not None
    return finds(pattern, text)


def readable(read: object, text: str) -> bool:
    try:
        read(text)  # type: ignore[operator]
    except ValueError:
        return False
    return True


def test_dates_are_those_of_the_calendar() -> None:
    for year in (1, 4, 100, 400, 1900, 1999, 2000, 2023, 2024, 2100, 9999):
        for month in range(14):
            for day in range(33):
                text = f"{year:04}-{month:02}-{day:02}"
                assert of("date", text) == readable(date.fromisoformat, text), text
    assert not of("date", "0000-01-01")
    assert not of("date", "2020-1-01")


def test_addresses_are_those_of_the_standard_library() -> None:
    draw = random.Random(0)
    for _ in range(3000):
        groups = draw.choices(
            ["0", "1", "ffff", "a0b", "", "", "12345", "1.2.3.4"], k=draw.randrange(1, 10)
        )
        text = ":".join(groups)
        assert of("ipv6", text) == readable(IPv6Address, text), text
        bytes_ = draw.choices(["0", "9", "10", "99", "199", "249", "255", "256", "01", ""], k=4)
        text = ".".join(bytes_[: draw.choice([3, 4, 4, 4])])
        assert of("ipv4", text) == readable(IPv4Address, text), text


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("time", ["10:00:00Z", "23:59:59.123+01:30"], ["24:00:00Z", "10:00:00", "10:60:00Z"]),
        ("date-time", ["2024-02-29T00:00:00Z"], ["2023-02-29T00:00:00Z", "2024-02-29 00:00:00Z"]),
        ("duration", ["P1Y2M3DT4H5M6S", "PT1S", "P2W", "P1DT1H"], ["P", "PT", "P1H", "P1YT", "1D"]),
        (
            "email",
            ["a@b.de", "a.b+c@d-e.example.com"],
            ["a", "a@", ".a@b.de", "a..b@c.de", "a b@c.de"],
        ),
        (
            "hostname",
            ["a", "a-b.example.com", "a" * 63],
            ["-a", "a-", "a..b", "a" * 64, "xn--x", ""],
        ),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000"]),
        (
            "uri",
            ["https://a.b/c?d#e", "urn:a:b", "mailto:a@b.c", "a:"],
            ["a/b", "//a", "a b:c", "%:a"],
        ),
        ("uri-reference", ["", "a/b", "/a", "?a", "#b", "//a/b", "a:b"], ["a b", "%", "a\\b"]),
        ("uri-template", ["/a/{b}", "{?x,y*}", "{+a.b:3}"], ["{", "{a b}", "a}"]),
        ("json-pointer", ["", "/a", "/a~1b/~0", '/é"'], ["a", "/~2", "/~"]),
        ("relative-json-pointer", ["0", "1/a", "2#"], ["-1", "01", "/a", "1#a"]),
    ],
)
def test_texts_are_of_a_format_or_not(name: str, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not of(name, text)] == []
    assert [text for text in wrong if of(name, text)] == []
    for text in right:
        if name == "uri":
            assert urlsplit(text).scheme
        if name == "uuid":
            UUID(text)
        if name == "date-time":
            datetime.fromisoformat(text)


def test_other_formats_are_annotations() -> None:
    assert format_pattern("password") is None
    assert "regex" not in format_names()
