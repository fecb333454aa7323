"""Logs as lines of JSON, each with what it is about."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

ACCESS = logging.getLogger("stepweave.access")
SERVER = logging.getLogger("stepweave.server")

MAX_MESSAGE = 4000
LEVELS = ("debug", "info", "warning", "error")


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message, and the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MAX_MESSAGE],
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(level: str) -> None:
    """Send every log of this process to stderr as JSON lines. `level` is one of `LEVELS`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for logger in (ACCESS, SERVER):
        logger.setLevel(level.upper())


def fields(**about: object) -> Mapping[str, object]:
    """The `extra` of a log call: what the line is about; None is left out."""
    return {"fields": {name: value for name, value in about.items() if value is not None}}
