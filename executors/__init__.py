"""What runs a plan: serial, on threads, by chance, or simulated over a cost model."""

from .errors import NodeFailure, StuckWait, UndeclaredAccess
from .report import OpEvent, RunReport
from .run import run
from .simulated import Turn, simulate
from .timeline import Timeline
from .virtual import Virtual

__all__ = [
    "NodeFailure",
    "OpEvent",
    "RunReport",
    "StuckWait",
    "Timeline",
    "Turn",
    "UndeclaredAccess",
    "Virtual",
    "run",
    "simulate",
]
