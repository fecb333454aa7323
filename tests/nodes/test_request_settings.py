"""Numbers that requests give to nodes: declared, checked, staged for each row."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from stepweave.graph.errors import GraphError
from stepweave.nodes.data import SampleRows
from stepweave.nodes.ops.staging import Staging
from stepweave.nodes.prepare_inputs import prepare_inputs, stage
from stepweave.nodes.request_settings import RequestSetting, check_given, joined
from stepweave.requests.batch import ScheduledRow, StepBatch
from tests.nodes.steps import LIMITS, VOCAB, block_tables, decoding, history, progress_of

STRENGTH = RequestSetting("strength", "How much.", default=0.5, least=0, most=2)
OTHER = RequestSetting("other", "What else.")


def asking(row: ScheduledRow, **given: float) -> ScheduledRow:
    return row._replace(request=replace(row.request, settings=tuple(given.items())))


def rows_of(batch: StepBatch) -> SampleRows:
    inputs = prepare_inputs(
        staging=stage(batch=batch, staging=Staging(LIMITS, settings=(STRENGTH, OTHER))),
        progress=progress_of({0: (9, 6), 1: (8, 6)}),
        history=history(),
        tables=block_tables(),
        drafts=None,
        limits=LIMITS,
        vocab_size=VOCAB,
    )
    assert inputs is not None
    assert inputs.sample is not None
    return inputs.sample


@pytest.mark.parametrize("padding", [None, 1])
def test_each_row_has_what_its_request_gives_and_the_default_otherwise(
    padding: int | None,
) -> None:
    rows = (asking(decoding(1, window=1), strength=1.5), decoding(0, window=1))
    sample = rows_of(StepBatch(7, rows, padding=padding))
    nobody = [] if padding is None else [0.0]
    strength, other = sample.setting(STRENGTH), sample.setting(OTHER)
    assert strength is not None
    assert other is not None
    assert strength.tolist() == [1.5, 0.5, *([0.5] * len(nobody))]
    assert other.tolist() == [0.0, 0.0, *nobody]
    with pytest.raises(KeyError, match="'third' is not in `asks`"):
        sample.setting(RequestSetting("third", "Not listed."))


def test_where_nobody_gives_any_nothing_is_staged() -> None:
    batch = StepBatch(7, (decoding(1, window=1),))
    assert rows_of(batch).setting(STRENGTH) is None
    with_it = StepBatch(7, (asking(decoding(1, window=1), other=1.0),))
    plain, more = (
        stage(batch=each, staging=Staging(LIMITS, settings=(STRENGTH, OTHER)))
        for each in (batch, with_it)
    )
    assert plain is not None
    assert more is not None
    assert (plain.settings, more.settings) == ((), ("strength", "other"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"strenght": 1.0}, "takes 'strenght' (did you mean 'strength'?): they take strength"),
        ({"strength": 3.0}, "strength must be from 0 to 2, not 3"),
        ({"strength": math.nan}, "strength must be from 0 to 2, not nan"),
    ],
)
def test_what_is_given_is_checked_by_name_and_bounds(given: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        check_given((STRENGTH,), given)
    check_given((STRENGTH,), {"strength": 2.0})
    with pytest.raises(ValueError, match="none of them takes any"):
        check_given((), {"strength": 1.0})


def test_one_name_means_one_thing_in_a_pipeline() -> None:
    assert joined([(STRENGTH,), (OTHER, STRENGTH)]) == (STRENGTH, OTHER)
    with pytest.raises(GraphError, match="two nodes take the setting 'strength'"):
        joined([(STRENGTH,), (replace(STRENGTH, most=3),)])


@pytest.mark.parametrize("wrong", [{"name": "a b"}, {"default": 7.0}, {"most": math.inf}])
def test_a_setting_has_a_name_and_bounds(wrong: dict[str, object]) -> None:
    with pytest.raises(GraphError, match="setting"):
        replace(STRENGTH, **wrong)  # type: ignore[arg-type]
