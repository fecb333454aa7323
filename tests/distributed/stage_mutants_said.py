"""What a group says of each thing that goes wrong on one stage: see `stage_mutants.py`."""

from __future__ import annotations

from collections.abc import Mapping

SAID: Mapping[str, str] = {
    "at_start_another_plan": "the plan of rank 1 is not the part of it in the plan that is proved",
    "skips_a_message": r"rank 1 failed where rank 0 did not: step \d+, .* op 'send0.device.leave' "
    r"failed in step (\d+): .* rank 1 is in step \1, and rank 0 sent what is of step ",
    "another_size": r"rank 0 failed where rank 1 did not: step \d+, .* op 'send0.device.leave' "
    r"failed in step \d+: .* the next stage expects \[\d+, \d+\] numbers, not ",
    "first_killed": r"rank 0 is gone: its connection .*; rank 1 was at step \d+",
    "last_killed": r"rank 1 is gone: its connection .*; rank 0 was at step \d+",
    "first_stopped": r"rank 0 is gone: it said nothing for \d\.\d s; rank 1 was at step \d+, "
    "receiving from rank 0",
    "last_stopped": r"rank 1 is gone: it said nothing for \d\.\d s; rank 0 was at step \d+, "
    "(hearing from|sending to) rank 1",
}
