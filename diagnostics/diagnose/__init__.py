"""The verdict: which knob holds a configuration back, proved by replays of the engine's own scheduler."""

from .model import DEFAULT_AT_FAULT, Change, Limit, Proof, Proposal, Report, Verdict
from .run import diagnose
from .situation import Situation
from .subject import Subject, judged_as_own, named_config, read_subject

__all__ = [
    "DEFAULT_AT_FAULT",
    "Change",
    "Limit",
    "Proof",
    "Proposal",
    "Report",
    "Situation",
    "Subject",
    "Verdict",
    "diagnose",
    "judged_as_own",
    "named_config",
    "read_subject",
]
