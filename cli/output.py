"""Where a verb's output goes: the one writer for every `-o`.

A regular file is replaced whole or not at all, so that nobody reads half of it. A link is followed,
and what it names is written. A device, a pipe or a socket is written to as it stands.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO

from ..configs.errors import ConfigError, Mark


def check_writable(path: str | Path) -> Path:
    """The path, checked before anything is computed for it.

    Raises `ConfigError` for a directory, a place in none, or one that may not be written.
    """
    with _told(path):
        target = _followed(path)
        mode = _mode(target)
        if mode is not None and stat.S_ISDIR(mode):
            raise ConfigError.at(Mark(str(path)), "is a directory; name a file in it")
        for parent in (Path(path).parent, target.parent):  # a link may lead elsewhere
            if not parent.is_dir():
                raise ConfigError.at(
                    Mark(str(path)), f"there is no directory {str(parent)!r}; make it"
                )
        if not os.access(target.parent if mode is None else target, os.W_OK):
            raise ConfigError.at(Mark(str(path)), "cannot be written: permission denied")
    return Path(path)


def save(path: str | Path, content: str | bytes) -> None:
    """Write a file. Raises `ConfigError` where it cannot be written."""
    data = content if isinstance(content, bytes) else content.encode(errors="backslashreplace")
    with _opened(path) as stream:
        stream.write(data)


@contextmanager
def writing(path: str | Path) -> Iterator[TextIOWrapper]:
    """A stream to a file that is written bit by bit. Raises `ConfigError` as `save` does."""
    with _opened(path) as raw:
        text = TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="\n")
        yield text
        text.detach()  # which flushes; the file is closed by who opened it


@contextmanager
def _opened(path: str | Path) -> Iterator[IO[bytes]]:
    check_writable(path)
    with _told(path):
        target = _followed(path)
        mode = _mode(target)
        replaced = mode is None or stat.S_ISREG(mode)
        if not replaced or not os.access(target.parent, os.W_OK):
            with target.open("wb") as stream:
                yield stream
            return
        aside = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}")
        try:
            with aside.open("xb") as stream:  # with the permissions that the umask leaves
                if mode is not None:
                    os.chmod(aside, stat.S_IMODE(mode))
                yield stream
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)


def _followed(path: str | Path) -> Path:
    """What is written: what a link leads to, but of a device or pipe the path itself, whose links
    (such as /dev/stdout) may lead to no name."""
    mode = _mode(Path(path))
    special = mode is not None and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
    return Path(path) if special else Path(os.path.realpath(path))


def _mode(path: Path) -> int | None:
    """What stands there; None where nothing does."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


@contextmanager
def _told(path: str | Path) -> Iterator[None]:
    """A refusal of the system as an error that names the file."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError.at(Mark(str(path)), f"cannot be written: {reason}") from error
