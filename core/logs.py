"""Loggers; where nobody says otherwise, on standard error, for standard output is a command's answer."""

from __future__ import annotations

import sys

import structlog

if not structlog.is_configured():
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

get_logger = structlog.get_logger
