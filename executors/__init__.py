"""What runs a plan: serial, on threads, on a GPU."""

from .errors import NodeFailure, StuckWait, UndeclaredAccess
from .report import OpEvent, RunReport
from .run import run

__all__ = [
    "NodeFailure",
    "OpEvent",
    "RunReport",
    "StuckWait",
    "UndeclaredAccess",
    "run",
]
