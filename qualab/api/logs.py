"""Logs as JSON, a line an event, on the error output."""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime

import orjson

FIELDS = ("request_id", "method", "path", "status", "duration_ms")


class JsonLines(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's text, where it comes from, and what was given with it."""
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in FIELDS if hasattr(record, name)},
        }
        if record.exc_info:
            said["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return orjson.dumps(said, default=str).decode()


def begin_logging() -> None:
    """From warnings on; what the service itself says, and requests, from information on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # not shown, so not looked up
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("qualab", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)
