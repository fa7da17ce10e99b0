"""The one form of a load: written as YAML, recorded by the server, replayed by bench and simulation."""

from .content import Segment, WorkloadRequest, segment_tokens
from .load import Workload, load_workload, workload_names
from .schema import Trace, WorkloadShape
from .traces import RecordedTrace, TraceRow, read_trace

__all__ = [
    "RecordedTrace",
    "Segment",
    "Trace",
    "TraceRow",
    "Workload",
    "WorkloadRequest",
    "WorkloadShape",
    "load_workload",
    "read_trace",
    "segment_tokens",
    "workload_names",
]
