"""The memory in which recordings work."""

from __future__ import annotations


class Pools:
    """The memory in which recordings of each stream work: another one after a failed capture."""

    def __init__(self) -> None:
        self._failed: dict[str, int] = {}

    def of(self, stream: str) -> str:
        failed = self._failed.get(stream, 0)
        return f"{stream}, after {failed} failed captures" if failed else stream

    def failed(self, stream: str) -> None:
        self._failed[stream] = self._failed.get(stream, 0) + 1
