"""Plans without the drafter, and grammars that go on when the engine comes back to it."""

from __future__ import annotations

import pytest

from stepweave import LLM, SamplingParams
from stepweave.executors.course import Course, Goal
from stepweave.serving.plans import USUAL, Load

ASKED = SamplingParams(max_tokens=40, structured_outputs={"regex": "[a-z ]{30,40}"})
STORIES = ["Write a short story about a fox.", "Write a short story about a dog."]


def there_and_back(course: Course, step: int, load: Load) -> Goal:
    want = "bare" if 4 <= step < 10 else USUAL
    return Goal(course.at) if want == course.at else Goal(want, reason="drawn")


@pytest.mark.parametrize("pipeline", ["async_eagle3_grammar", "async_jump_forward"])
def test_a_drafter_that_comes_back_has_no_drafts_yet(pipeline: str) -> None:
    # No process that tries the grammar: it takes longer to start than to serve.
    here = {"nodes.bitmask.compile_limit_s": None}
    with LLM(pipeline=pipeline, overrides={**here, "graphs": False}) as llm:
        plain = llm.generate(STORIES, [ASKED, SamplingParams(max_tokens=40)])
    without = {**here, "plans": {"bare": {"without": ["draft"]}}}
    with LLM(pipeline=pipeline, overrides=without) as llm:
        llm.engine.steer = there_and_back
        found = llm.generate(STORIES, [ASKED, SamplingParams(max_tokens=40)])
        assert [(turn.before, turn.after) for turn in llm.engine.turned] == [
            (USUAL, "bare"),
            ("bare", USUAL),
        ]
    assert [each.error for each in found] == [None, None]
    assert [each.token_ids for each in found] == [each.token_ids for each in plain]
