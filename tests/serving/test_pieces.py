"""Steps with prompts on a CPU, in pieces: those of models whose operations are short."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest

from stepweave import LLM
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.executors import threads
from stepweave.models import attention
from stepweave.models.threads import SMALL_BYTES
from stepweave.serving.loading import PIECES, SMALL_PIECES, pieces_of
from tests.memory import staying_young

TEXT = "A fox named Ida went out in the morning, and what she saw there made her laugh: "


def config(changes: dict[str, str]) -> PipelineConfig:
    found = load_config("async", changes)
    assert isinstance(found, PipelineConfig)
    return found


@pytest.mark.parametrize(
    ("changes", "pieces"),
    [
        ({}, SMALL_PIECES),
        ({"pieces": "0"}, 0),
        ({"pieces": "48"}, 48),
        ({"executor": "cuda"}, PIECES),
        ({"executor": "cuda", "pieces": "0"}, 0),
    ],
    ids=str,
)
def test_how_large_a_step_may_be(changes: dict[str, str], pieces: int) -> None:
    assert pieces_of(config(changes)) == pieces


def test_steps_of_a_large_model_on_a_cpu_are_not_rounded_up(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(SMALL_BYTES)
    (tmp_path / "config.json").write_text("{}")
    assert pieces_of(config({"model.name": f"{tmp_path}"})) == 0


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_prompts_of_one_size_are_replayed_with_the_same_tokens(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "USUAL", 2)
    prompts = [{"prompt": TEXT[: 40 + count], "max_tokens": 4} for count in range(16)]

    def served(pieces: str) -> tuple[list[tuple[int, ...]], LLM]:
        overrides = {"executor": executor, "pieces": pieces, "scheduler.prefix_cache": "false"}
        llm = LLM(pipeline="async", overrides=overrides)
        return [llm.generate([each])[0].token_ids for each in prompts], llm

    expected, usual = served("0")
    found, llm = served("auto")
    assert found == expected
    assert usual.engine.captures is not None
    assert not usual.engine.captures.pieces
    assert llm.engine.captures is not None
    pieces = llm.engine.captures.pieces["forward.device"]
    assert pieces.captured > 0
    assert pieces.replayed > pieces.captured


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "pipeline",
    ["async_eagle", "async_eagle3_grammar", "async_mtp", "async_tree", "async_speculation"],
)
def test_drafters_have_their_passes_replayed_where_a_prompt_is_beside_them(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row decodes while prompts of one size come, one after the other."""
    monkeypatch.setattr(threads, "USUAL", 2)
    prompts = [{"prompt": TEXT[: 40 + count], "max_tokens": 9} for count in range(14)]

    def served(pieces: str) -> tuple[list[tuple[int, ...]], tuple[int, int], LLM]:
        rows = {"scheduler.max_rows": "2", "scheduler.prefix_cache": "false"}
        llm = LLM(pipeline=pipeline, overrides={"pieces": pieces, **rows})
        tokens = [each.token_ids for each in llm.generate(prompts)]
        totals = llm.engine.totals
        return tokens, (totals.drafted, totals.accepted), llm

    *expected, _ = served("0")
    *found, llm = served("auto")
    assert found == expected
    assert llm.engine.captures is not None
    (drafting,) = (
        counts
        for op, counts in llm.engine.captures.pieces.items()
        if op.startswith("draft") and counts.steps
    )
    assert drafting.captured > 0
    assert drafting.replayed > drafting.captured


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pipeline", ["async", "async_eagle3_grammar", "async_speculation"])
def test_attention_is_replayed_too_where_layouts_of_rows_come_up_often(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same prompts again and again, some of which come while others decode."""
    monkeypatch.setattr(threads, "USUAL", 1)
    anew: list[int] = []
    attend_again = attention._attend_again

    def counted(layer: int, *given: Any) -> None:
        anew[-1] += 1
        attend_again(layer, *given)

    monkeypatch.setattr(attention, "_attend_again", counted)
    prompts = [{"prompt": TEXT[: 20 + 7 * n], "max_tokens": 5 + n % 4} for n in range(9)]
    overrides = {"executor": "serial", "scheduler.max_rows": "4", "scheduler.prefix_cache": "false"}
    plain = LLM(pipeline=pipeline, overrides={**overrides, "pieces": "0"}).generate(prompts)
    llm = LLM(pipeline=pipeline, overrides=overrides)
    for _ in range(4):
        anew.append(0)
        outputs = llm.generate(prompts)
        assert [each.token_ids for each in outputs] == [each.token_ids for each in plain]
    assert anew[0] + anew[1] > 0, "sizes of tokens are fewer than layouts: these are recorded first"
    assert anew[-1] == 0
    assert llm.engine.captures is not None
    assert llm.engine.captures.pieces["forward.device"].replayed > 0


def test_a_cache_that_is_made_anew_takes_what_was_recorded_on_the_old_one_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "USUAL", 0)
    with staying_young() as collect:
        llm = LLM(pipeline="async", overrides={"scheduler.prefix_cache": "false"})
        prompts = [{"prompt": TEXT[:48], "max_tokens": 12}, {"prompt": TEXT[:60], "max_tokens": 3}]

        def served() -> list[tuple[int, ...]]:
            return [each.token_ids for each in llm.generate(prompts)]

        expected = served()
        kept = llm.engine.captures
        assert kept is not None
        captured = kept.pieces["forward.device"].captured
        assert captured > 0
        assert served() == expected
        assert kept.pieces["forward.device"].captured == captured, "it is known"
        old = [weakref.ref(state) for state in llm.engine._states.values()]
        llm.engine.reset()
        assert served() == expected
        assert kept.pieces["forward.device"].captured > captured, "anew"
        collect()
        assert [each() for each in old] == [None] * len(old)
