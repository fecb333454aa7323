"""What kind of step a step is, known from its rows."""

import pytest

from stepweave.requests.batch import RequestSpec, ScheduledRow
from stepweave.requests.params import SamplingParams
from stepweave.requests.step_counts import step_mode


def row(
    *, decodes: bool, window: int = 1, structured: bool = False, narrowed: int = 0
) -> ScheduledRow:
    spec = RequestSpec(0, "0", SamplingParams(), 4, window=window, structured=structured)
    start, tokens = (-1, ()) if decodes else (0, (5,))
    return ScheduledRow(spec, 0, 0, (1,), start=start, tokens=tokens, narrowed=narrowed)


@pytest.mark.parametrize(
    ("rows", "mode"),
    [
        ([row(decodes=True)], "decode"),
        ([row(decodes=False)], "prefill"),
        ([row(decodes=False, window=3)], "prefill"),  # its drafts are not there yet
        ([row(decodes=True), row(decodes=False)], "mixed"),
        ([row(decodes=True, window=3), row(decodes=True)], "decode, drafts"),
        ([row(decodes=True, window=3, narrowed=1)], "decode, drafts"),
        ([row(decodes=True, window=3, narrowed=2)], "decode"),  # by a plan without a drafter
        ([row(decodes=True, structured=True)], "decode, grammar"),
        ([row(decodes=False, structured=True), row(decodes=True, window=2)],
         "mixed, drafts, grammar"),
    ],
)  # fmt: skip
def test_a_step_is_named_by_what_its_rows_do(rows: list[ScheduledRow], mode: str) -> None:
    assert step_mode(rows) == mode
