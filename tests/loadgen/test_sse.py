"""Events are the same however their bytes were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepweave.loadgen import sse
from stepweave.loadgen.sse import EventReader

TEXTS = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=12)


def events(*parts: bytes) -> list[str]:
    reader = EventReader()
    return [*(event for part in parts for event in reader.feed(part)), *reader.finish()]


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    """The bytes in parts, cut at these places."""
    ends = [*sorted(place % (len(raw) + 1) for place in places), len(raw)]
    return [raw[first:end] for first, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"data: one\n\ndata: two\n\n", ["one", "two"]),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", ["one", "two"]),
        (b"data: one\r\rdata: two\r\r", ["one", "two"]),
        (b"data:one\n\n", ["one"]),
        (b"data:  one\n\n", [" one"]),  # one blank is taken away, no more
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data: a\r\ndata: b\r\n\r\n", ["a\nb"]),  # one byte at a time: \r\n is one end
        (b"data\n\n", [""]),
        (b": ping\n\ndata: one\n\n", ["one"]),
        (b"event: token\nid: 7\nretry: 10\ndata: one\n\n", ["one"]),
        (b"\xef\xbb\xbfdata: one\n\n", ["one"]),
        (b"\n\n\ndata: one\n\n\n\n", ["one"]),
        (b"data: [DONE]", ["[DONE]"]),  # some servers end without a blank line
        (b"data: one\n", ["one"]),
        (b"date: one\n\n", []),
        ("data: grüße 🦊\n\n".encode(), ["grüße 🦊"]),
    ],
)
def test_events_are_read_as_the_standard_says(raw: bytes, found: list[str]) -> None:
    assert events(raw) == found
    assert events(*(raw[place : place + 1] for place in range(len(raw)))) == found


@given(
    st.lists(st.lists(TEXTS, min_size=1, max_size=3), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_any_split_of_the_bytes_gives_the_same_events(
    sent: list[list[str]], end: str, places: list[int]
) -> None:
    raw = "".join(
        "".join(f"data: {line}{end}" for line in event) + f": a comment{end}{end}" for event in sent
    ).encode()
    assert events(*cut(raw, places)) == ["\n".join(event) for event in sent]


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_no_bytes_break_it_and_no_split_changes_what_it_makes_of_them(
    raw: bytes, places: list[int]
) -> None:
    assert events(*cut(raw, places)) == events(raw)


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_LINE_BYTES", 100)
    reader = EventReader()
    reader.feed(b"data: " + b"x" * 90)
    with pytest.raises(ValueError, match="longer than"):
        reader.feed(b"x" * 90)
