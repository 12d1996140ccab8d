"""Structured logs, through Python's logging: every message is a line of text or of JSON.

    {"time": "2026-11-16T09:30:00.123Z", "level": "info", "event": "round", "run": "a", "round": 3}
    2026-11-16T09:30:00.123Z info  round run=a round=3

Messages go to the logger `fedrows` and those below it, with their fields as `fields`:

    logging.getLogger("fedrows.run").info("round", extra={"fields": {"run": "a", "round": 3}})

A message never takes more than one line, and what looks like a password is left out.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from fedrows.errors import FedrowsError
from fedrows.files.whole import finite, reason

HIDDEN = "***"
_SECRET = re.compile(
    r"(?i)password|passphrase|secret|credential|authorization|(private|api|access|signing)_?key"
    r"|(access|auth|bearer|api|refresh)_?token"
)
_USER = re.compile(r"(?<=://)[^/\s@]+(?=@)")  # of scheme://user:password@host
_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class LogError(FedrowsError, OSError):
    """A log that cannot be written."""


def start(form: str, path: Path | None = None, level: str = "info") -> logging.Handler:
    """Writes all messages of fedrows, as `text` or `json`, to stderr or a file.

    A file is added to, and opened anew when it was moved away (logrotate).
    """
    handler: logging.Handler
    if path is None:
        handler = _Stream(sys.stderr)
    else:
        try:
            handler = _File(path, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise LogError(
                f"--log-file {path} cannot be written ({reason(error)}): name another file."
            ) from error
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    handler.setLevel(level.upper())
    logger = logging.getLogger("fedrows")
    logger.addHandler(handler)
    if logger.level == logging.NOTSET or logger.level > handler.level:
        logger.setLevel(handler.level)
    return handler


def stop(handler: logging.Handler) -> None:
    """Ends what `start` has begun."""
    logger = logging.getLogger("fedrows")
    logger.removeHandler(handler)
    if not logger.handlers:
        logger.setLevel(logging.NOTSET)
    with suppress(OSError):  # a full disk was reported before
        handler.close()


class JsonLines(logging.Formatter):
    """A record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(finite(_fields(record)), ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """A record as time, level, what happened, and name=value pairs."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        first = [str(fields.pop(name)) for name in ("time", "level", "event")]
        pairs = [f"{_text(name)}={_text(value)}" for name, value in fields.items()]
        return " ".join([first[0], first[1].ljust(7), _one_line(first[2]), *pairs])


def without_secrets(value: Any, name: str = "") -> Any:
    """The same value without passwords: in an address, or under a name that says so."""
    if value is not None and _SECRET.search(name):
        return HIDDEN
    if isinstance(value, Mapping):
        return {str(key): without_secrets(part, str(key)) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(part) for part in value]
    return _USER.sub(HIDDEN, value) if isinstance(value, str) else value


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a line, in their order."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    fields = {
        "time": f"{moment}.{int(record.msecs):03}Z",
        "level": record.levelname.lower(),
        "event": without_secrets(record.getMessage()),
    }
    extra = without_secrets(getattr(record, "fields", {}))
    fields |= {name: value for name, value in extra.items() if name not in fields}
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        fields["error"] = without_secrets(f"{type(error).__name__}: {error}")
    return fields


def _text(value: Any) -> str:
    """A value as it stands in a line of text: quoted, unless it is a plain word."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else _one_line(json.dumps(value))
    return _one_line(json.dumps(finite(value), ensure_ascii=False, default=str))


def _one_line(text: str) -> str:
    """Text without line breaks and control characters, so that no text can forge a line."""
    return re.sub(
        r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text
    )


class _Quiet:
    """A handler that reports once that a line cannot be written, and lets the run go on."""

    _reported = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._reported:
            self._reported = True
            error = sys.exc_info()[1]
            print(f"The log cannot be written ({error}): the run goes on.", file=sys.stderr)


class _Stream(_Quiet, logging.StreamHandler[Any]):
    pass


class _File(_Quiet, WatchedFileHandler):
    pass
