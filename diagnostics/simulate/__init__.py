"""The virtual clock around core's scheduler: what a configuration would do to a load on a device."""

from .clients import Clients, Frontend
from .engines import EngineKind, vllm_defaults
from .executor import VirtualClock, VirtualExecutor
from .prepare import Prepared, prepare
from .recorder import PART_NAMES, PARTS, STEP_COLUMNS, StepLog
from .replay import Replay, Setup, replay

__all__ = [
    "PARTS",
    "PART_NAMES",
    "STEP_COLUMNS",
    "Clients",
    "EngineKind",
    "Frontend",
    "Prepared",
    "Replay",
    "Setup",
    "StepLog",
    "VirtualClock",
    "VirtualExecutor",
    "prepare",
    "replay",
    "vllm_defaults",
]
