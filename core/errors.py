"""Every error a user can meet. The message says what was given, what is allowed and what to do.

A command ends with status 2 for what was given wrongly (*), and with 1 for what cannot be done.

CamshaftError
├── ConfigError          a configuration file, key or value (*)
├── ModelError           weights, tokenizer or architecture cannot be used (*)
├── CapacityError        it does not fit: memory, cache or context
├── RequestError         one client's request is wrong (HTTP 400)
│   └── QueueFull        no room for the request now (HTTP 503)
├── EvidenceError        a log, metric, trace or table cannot be read (*)
└── EngineError          the engine itself
    ├── StateError       an illegal transition of a request
    ├── IntegrityError   an invariant of the cache or the rows is broken
    ├── Stall            nothing can progress, and why
    ├── OutOfMemory      the device has no memory left for a step
    └── EngineDead       the engine process has gone
"""

from __future__ import annotations


class CamshaftError(Exception):
    """Root of the hierarchy; `str(error)` is fit for a user."""


class ConfigError(CamshaftError):
    """A configuration file, key or value is wrong; `knob` is the key where the message does not say its place."""

    def __init__(self, message: str, knob: str | None = None) -> None:
        super().__init__(message)
        self.knob = knob


class ModelError(CamshaftError):
    """Weights, tokenizer or architecture cannot be used."""


class CapacityError(CamshaftError):
    """Something does not fit the memory, the cache or the context length."""


class RequestError(CamshaftError):
    """One client's request is wrong; `param` names the offending field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFull(RequestError):
    """There is no room for the request now; the client should retry later."""


class EvidenceError(CamshaftError):
    """A log, metric, trace, table or other evidence cannot be read."""


class EngineError(CamshaftError):
    """The engine itself failed."""


class StateError(EngineError):
    """An illegal transition of a request's state."""


class IntegrityError(EngineError):
    """An invariant of the block pool, the block tables or the rows is broken."""


class Stall(EngineError):
    """Nothing can progress; the message says what every candidate is missing."""


class OutOfMemory(EngineError):
    """The device has no memory left for a step; a smaller one may run."""


class EngineDead(EngineError):
    """The engine process has gone."""
