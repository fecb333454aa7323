"""Server-sent events out of bytes, however the bytes were cut.

A reader for what https://html.spec.whatwg.org/multipage/server-sent-events.html defines, which does
no input or output itself. It is lenient at the end only: an event that the last blank line is
missing from is still one, since some servers end a stream with `data: [DONE]` and nothing else.
"""

from __future__ import annotations

import re

MAX_LINE_BYTES = 64 * 1024 * 1024
_LINE_ENDS = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


class EventReader:
    """Gives the data of each event, once it is whole."""

    def __init__(self) -> None:
        self._rest = b""  # of a line that has no end yet
        self._data: list[str] = []  # of the event that has no end yet
        self._after_return = False  # a line feed that comes next belongs to the line before
        self._began = False

    def feed(self, received: bytes) -> list[str]:
        """The events that end in what was received. Raises `ValueError` for an endless line."""
        if self._after_return and received:
            received = received.removeprefix(b"\n")
            self._after_return = False
        if not received:
            return []
        *lines, self._rest = _LINE_ENDS.split(self._rest + received)
        if len(self._rest) > MAX_LINE_BYTES:
            raise ValueError(f"a line of the stream is longer than {MAX_LINE_BYTES >> 20} MiB")
        self._after_return = received.endswith(b"\r")
        return [event for line in lines if (event := self._line(line)) is not None]

    def finish(self) -> list[str]:
        """The stream has ended: the event that was not ended by a blank line, if there is one."""
        last = [self._line(self._rest), self._line(b"")]
        self._rest = b""
        return [event for event in last if event is not None]

    def _line(self, line: bytes) -> str | None:
        if not self._began:
            line, self._began = line.removeprefix(_BOM), True
        if not line:
            event = "\n".join(self._data) if self._data else None
            self._data = []
            return event
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" ").decode("utf-8", errors="replace"))
        return None
