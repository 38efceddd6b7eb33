"""A node's log: one line a record, JSON for machines, text for people.

Log lines contain bytes of strangers and values of the configuration. So control characters cannot break a
line in two, lengths are bounded, and secrets are masked everywhere.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, TextIO

MASK: Final = "***"
MAX_TEXT: Final = 16 * 1024
"""Characters of a message, an extra or a traceback; a longer one is cut in the middle."""

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
FORMATS: Final = ("json", "text")

_SECRET_WORDS: Final = ("secret", "password", "passwd", "token", "credential", "access_key", "account_key")
_SHORTEST_SECRET: Final = 4
"""A shorter one would mask half of the log, and does not count as one."""
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_ESCAPED: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
_ESCAPED_BUT_LINES: Final = {code: text for code, text in _ESCAPED.items() if code not in (9, 10)}


class _Formatter(logging.Formatter):
    """Common part of both formats: the record's text, its extras and its traceback, made safe to print."""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__()
        # The longest first: one secret may be a part of another.
        known = {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}
        self._secrets = sorted(known, key=lambda secret: (-len(secret), secret))

    def safe(self, text: str) -> str:
        """The text without secrets, and not longer than MAX_TEXT."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        if len(text) > MAX_TEXT:
            half = MAX_TEXT // 2
            text = f"{text[:half]} [{len(text) - 2 * half} characters cut] {text[-half:]}"
        return text

    def message(self, record: logging.LogRecord) -> str:
        """The message; one whose arguments do not fit it is still worth reading."""
        try:
            return self.safe(record.getMessage())
        except Exception:
            return self.safe(_text(record.msg))

    def extras(self, record: logging.LogRecord) -> dict[str, Any]:
        """The values of `extra`, as plain values."""
        return {
            name: self._plain(name, value)
            for name, value in vars(record).items()
            if name not in _STANDARD and not name.startswith("_")
        }

    def _plain(self, name: str, value: object) -> Any:
        if any(word in name.lower() for word in _SECRET_WORDS):
            return MASK
        if value is None or isinstance(value, (bool, int)):
            return value
        if isinstance(value, Mapping):
            return {str(key): self._plain(str(key), item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._plain(name, item) for item in value]
        # JSON has no infinity and no NaN, so floats that are not numbers go as text.
        if isinstance(value, float) and value - value == 0:
            return value
        return self.safe(_text(value))

    def traceback(self, record: logging.LogRecord) -> str:
        """The traceback and the stack, if the record has any."""
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        if record.stack_info:
            parts.append(record.stack_info)
        return self.safe("\n".join(parts))

    @staticmethod
    def time(record: logging.LogRecord) -> str:
        """UTC, to the millisecond, as RFC 3339 writes it."""
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{whole}.{int(record.msecs):03d}Z"


def _text(value: object) -> str:
    """Any value as text: a record must not be lost because something in it has none."""
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__} without a text>"


class _Json(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message(record),
        }
        for name, value in self.extras(record).items():
            line.setdefault(name, value)
        if traceback := self.traceback(record):
            line["traceback"] = traceback
        return json.dumps(line, default=str, ensure_ascii=False).translate(_LINE_ENDS)


_LINE_ENDS: Final = {code: f"\\u{code:04x}" for code in (0x7F, 0x85, 0x2028, 0x2029)}
"""JSON allows these inside a string, but many readers take them for the end of a line."""


class _Text(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        extras = "".join(f" {name}={value!r}" for name, value in self.extras(record).items())
        head = f"{self.time(record)} {record.levelname:<8} {record.name}: {self.message(record)}{extras}"
        line = head.translate(_ESCAPED)
        if traceback := self.traceback(record):
            indented = "\n".join(f"    {part}" for part in traceback.splitlines())
            line += "\n" + indented.translate(_ESCAPED_BUT_LINES)
        return line


def configure(
    level: str,
    format: str,
    *,
    secrets: Sequence[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Log from `level` (see LEVELS) up as `format` (see FORMATS) to `stream`, by default standard error.

    Replaces the earlier configuration. Uncaught exceptions are logged too: those of the interpreter here,
    those of callbacks and tasks by their event loop. `secrets` never appear in a line.
    Raises ValueError for a level or a format that there is not.
    """
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is unknown: use one of {', '.join(LEVELS)}")
    if format not in FORMATS:
        raise ValueError(f"log format {format!r} is unknown: use one of {', '.join(FORMATS)}")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json(secrets) if format == "json" else _Text(secrets))
    root = logging.getLogger()
    for present in list(root.handlers):
        root.removeHandler(present)
    root.addHandler(handler)
    root.setLevel(LEVELS[level])
    # A reader of the log that went away must not bring down what logs, nor fill standard error.
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    sys.excepthook = _uncaught


def _uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    logging.getLogger("node").critical("uncaught exception: %r", error, exc_info=(kind, error, traceback))
