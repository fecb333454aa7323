"""A signal handler may cancel a request wherever it interrupts the thread that serves."""

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from stepweave.policies.admission import Eager, JustInTime
from stepweave.policies.chosen import Policies
from stepweave.requests import table as tables
from stepweave.requests.table import RequestTable
from tests.requests.memory_model import limits, request

FILES = ("inbox.py", "wake.py", "pacer.py", "threading.py", "table.py")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("paced", [False, True])
def test_a_handler_may_cancel_at_every_line(paced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a handler would do is done once before each line that runs here, in the same thread."""
    monkeypatch.setattr(tables, "IDLE_WAIT_S", 0.0)
    table = RequestTable(limits(), policies=Policies(admission=JustInTime() if paced else Eager()))
    handled: set[tuple[str, int]] = set()

    def handle(frame: FrameType, event: str, _: Any) -> Any:
        line = (frame.f_code.co_filename, frame.f_lineno)
        if line[0].endswith(FILES) and event == "line" and line not in handled:
            handled.add(line)
            sys.settrace(None)
            table.open()
            table.cancel(7)
            table.close()
            sys.settrace(handle)
        return handle

    assert threading.current_thread() is threading.main_thread()
    table.open()
    before = sys.gettrace()
    sys.settrace(handle)
    try:
        table.submit(request(0))
        batch = table.schedule(0)
        table.close()
        table.cancel(0)
        table.schedule(1)
    finally:
        sys.settrace(before)
    assert [row.request.uid for row in batch.rows] == [0]
    assert len(handled) > 50
    assert table.idle
