"""Tool calls: which formats of a model's text are understood, and reading calls out of it as it comes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import RequestError
from .replies import FunctionCall, ToolCall

# Hermes' form, which Qwen2.5, Qwen3 and others were taught, too: JSON with a name and arguments between tags.
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_ANOTHER_FORM = "<function="  # between the same tags, as Qwen3-Coder writes it


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Raises RequestError for anything but functions with a name."""
    for index, tool in enumerate(tools):
        function = tool.get("function")
        named = isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"]
        if tool.get("type") != "function" or not named:
            raise RequestError(f"tools[{index}] must be of type function and have a function.name", "tools")


def require_readable(template: str | None, special_tokens: Container[str] = ()) -> None:
    """Raises RequestError if a model with this chat template writes calls in a form that is not read here."""
    text = template or ""
    if _OPEN not in text or _ANOTHER_FORM in text or _OPEN in special_tokens:
        raise RequestError(
            "tool calls of this model cannot be read: its chat template does not teach it the form "
            f"{_OPEN}JSON{_CLOSE}; send tool_choice: none, or no tools",
            "tools",
        )


def with_arguments_parsed(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The calls of an earlier answer as templates expect them: arguments as an object, not as JSON text."""
    parsed: list[dict[str, Any]] = []
    for call in calls:
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            call = {**call, "function": {**function, "arguments": _object(function["arguments"])}}
        parsed.append(dict(call))
    return parsed


def _object(text: str) -> Any:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


@dataclass(slots=True)
class Reading:
    """What a piece of text came to: text for the reader, and calls that are complete."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)


class ToolCallReader:
    """Reads one answer as it grows. Text that may be the beginning of a tag is held back, and no more than that.

    White space around calls is dropped; what stands between tags and is no call is text after all.
    """

    def __init__(self, most: int | None = None) -> None:
        """most: calls beyond so many are dropped (parallel_tool_calls: false is 1)."""
        self._most = most
        self._held = ""
        self._searched = 0  # of what is held, within a call
        self._inside = False
        self._space = ""  # white space before a call, or what may be one
        self._blank = True  # nothing but white space since the start or the last call
        self.num_calls = 0

    def push(self, text: str) -> Reading:
        """Takes text; returns what became certain."""
        reading = Reading()
        self._held += text
        while self._step(reading):
            pass
        return reading

    def finish(self) -> Reading:
        """What is left at the end; a call whose closing tag is missing counts if it is whole."""
        reading = Reading()
        held, self._held = self._held, ""
        if self._inside:
            self._end_call(held, reading, closed=False)
        else:
            self._say(held, reading)
        return reading

    def _step(self, reading: Reading) -> bool:
        """One tag further; whether there may be another."""
        if self._inside:
            at = self._held.find(_CLOSE, self._searched)
            if at < 0:
                self._searched = max(0, len(self._held) - len(_CLOSE) + 1)
                return False
            inner, self._held = self._held[:at], self._held[at + len(_CLOSE) :]
            self._inside = False
            self._end_call(inner, reading, closed=True)
            return True
        at = self._held.find(_OPEN)
        if at >= 0:
            self._say(self._held[:at], reading)
            self._held = self._held[at + len(_OPEN) :]
            self._inside, self._searched = True, 0
            return True
        keep = _beginning(self._held)
        certain = len(self._held) - keep
        if self._blank and not self._held[:certain].strip():
            return False  # a call may follow, and then nobody misses it
        self._say(self._held[:certain], reading)
        self._held = self._held[certain:]
        return False

    def _say(self, text: str, reading: Reading) -> None:
        if self._blank and not text.strip():
            self._space = text
            return
        self._blank = False
        reading.text += text

    def _end_call(self, inner: str, reading: Reading, closed: bool) -> None:
        call, space = _call(inner), self._space
        self._space = ""
        if call is None:
            self._blank = False
            reading.text += space + _OPEN + inner + (_CLOSE if closed else "")
            return
        self._blank = True
        if self._most is None or self.num_calls < self._most:
            self.num_calls += 1
            reading.calls.append(call)


def _beginning(text: str) -> int:
    """Characters at the end of a text that may be the beginning of a tag."""
    return next((size for size in range(len(_OPEN) - 1, 0, -1) if text.endswith(_OPEN[:size])), 0)


def _call(text: str) -> ToolCall | None:
    """The call that a text is; None for a name or arguments that no reply in JSON can hold."""
    try:
        said = json.loads(text)
        name, arguments = said["name"], said.get("arguments", said.get("parameters")) or {}
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + arguments).encode()  # half a surrogate pair is text to json, but no UTF-8
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    return ToolCall(f"call_{uuid.uuid4().hex[:24]}", FunctionCall(name, arguments)) if name else None
