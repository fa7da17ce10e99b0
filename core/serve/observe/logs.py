"""Structured logs: one event, its fields, and the request's id wherever a request is spoken of.

The console form keeps the prefix that log readers of this field know:
`(EngineCore pid=387) INFO 05-19 10:13:11 [module:line] event key=value`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import time
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import structlog

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+%@")


def configure_logs(level: str, form: str, process: str = "") -> None:
    """Sends structlog and the standard library's loggers to stderr as `form`: "console" or "json"."""
    render: Any = structlog.processors.JSONRenderer() if form == "json" else ConsoleForm(process)
    stamp = [structlog.processors.TimeStamper(fmt="iso", utc=True)] if form == "json" else []
    if form == "json" and process:
        stamp.append(_named(process))
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.CallsiteParameterAdder(
            {
                structlog.processors.CallsiteParameter.MODULE,
                structlog.processors.CallsiteParameter.LINENO,
            }
        ),
        structlog.processors.format_exc_info,
        *stamp,
        render,
    ]
    structlog.configure(
        processors=shared,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _LossyStderr())),
        cache_logger_on_first_use=True,
    )
    _capture_standard_library(level)


class _LossyStderr(io.TextIOBase):
    """A line that cannot be written (a reader that has gone, a full disk) is lost; nothing else is."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def _named(process: str) -> Any:
    def add(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["process"], event["pid"] = process, os.getpid()
        return event

    return add


class ConsoleForm:
    """One line of text for an event; newlines in values are escaped, so that no client can forge a line."""

    def __init__(self, process: str) -> None:
        self._tag = f"({process} pid={os.getpid()}) " if process else ""

    def __call__(self, _: Any, __: str, event: MutableMapping[str, Any]) -> str:
        level = str(event.pop("level", "info")).upper()
        where = f"{event.pop('module', '')}.py:{event.pop('lineno', 0)}"
        message = _one_line(str(event.pop("event", "")))
        trace = event.pop("exception", None)
        fields = "".join(f" {key}={_quoted(value)}" for key, value in event.items())
        stamp = time.strftime("%m-%d %H:%M:%S")
        line = f"{self._tag}{level} {stamp} [{where}] {message}{fields}"
        return f"{line}\n{trace}" if trace else line


def _one_line(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _quoted(value: object) -> str:
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    return text if text and _BARE.issuperset(text) else repr(text)


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logger = structlog.get_logger(source=record.name)
        logger.log(record.levelno, record.getMessage(), exc_info=record.exc_info or None)


def _capture_standard_library(level: str) -> None:
    root = logging.getLogger()
    root.handlers[:] = [_Forward()]
    root.setLevel(max(_LEVELS[level], logging.WARNING))
