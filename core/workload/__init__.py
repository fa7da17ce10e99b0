"""The one form of a load: written as YAML, recorded by the server, replayed by bench and simulation."""

from .content import RESERVED_TOKENS, Segment, WorkloadRequest, segment_tokens
from .lengths import Length
from .load import Workload, WorkloadSummary, load_workload, workload_names
from .schema import Arrival, Bursts, Class, Closed, Poisson, Sessions, Trace, WorkloadShape
from .traces import RecordedTrace, TraceRow, read_trace

__all__ = [
    "RESERVED_TOKENS",
    "Arrival",
    "Bursts",
    "Class",
    "Closed",
    "Length",
    "Poisson",
    "RecordedTrace",
    "Segment",
    "Sessions",
    "Trace",
    "TraceRow",
    "Workload",
    "WorkloadRequest",
    "WorkloadShape",
    "WorkloadSummary",
    "load_workload",
    "read_trace",
    "segment_tokens",
    "workload_names",
]
