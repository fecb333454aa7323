"""log: rank 0 has scheduled a step, so another rank may.

What rank 0 took in is sent and read by the inboxes, inside `schedule`. The node is there so that
this message is part of the plan, as those between the stages are: it is proved with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.parameters import state
from .kind import NodeKind
from .values import REQUESTS

if TYPE_CHECKING:
    from ..requests.table import RequestTable


@op(cost_us=0.0)
def log(requests: RequestTable = state(REQUESTS)) -> None:
    """Nothing is left to do. It looks at the table, so it keeps its place beside `schedule`."""


KIND = NodeKind(
    "log", "let another rank schedule what rank 0 has", host=(log,), runs_ahead=True, stages="all"
)
