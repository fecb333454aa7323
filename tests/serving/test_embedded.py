"""The main job on real input: the embedded model, all three features at once, held-out prompts."""

import json
from itertools import islice
from pathlib import Path

import jsonschema
import pytest

from stepweave import LLM
from stepweave.models.causal_lm import resolve
from training.corpus import EXTRACTION, examples
from training.evaluate import schema_of

COUNT = 30


@pytest.fixture(scope="module")
def lines() -> list[dict[str, object]]:
    asked = islice(examples(7, EXTRACTION, held_out=True), COUNT)
    return [
        {
            "id": example.answer,
            "prompt": example.prompt,
            "max_tokens": 160,
            "structured_outputs": {"json": schema_of(json.loads(example.answer))},
        }
        for example in asked
    ]


def test_fields_of_sentences_it_has_not_seen_are_copied_into_json(
    lines: list[dict[str, object]],
) -> None:
    llm = LLM(pipeline="quickstart")
    outputs = llm.generate(lines)
    for line, output in zip(lines, outputs, strict=True):
        asked = line["structured_outputs"]
        assert isinstance(asked, dict)
        jsonschema.validate(json.loads(output.text), asked["json"])
    right = sum(output.text == output.id for output in outputs)
    # On 200 prompts nine in ten are right; thirty leave room for chance.
    assert right >= 0.8 * COUNT
    summary = llm.summary()
    assert summary["accepted"] >= 0.6 * summary["drafted"]
    assert summary["steps"] < summary["tokens"] / 4


@pytest.mark.parametrize(
    ("pipeline", "depth", "executor"),
    [
        ("synchronous", "1", "serial"),
        ("async", "2", "threads"),
        ("async_speculation", "3", "threads"),
    ],
)
def test_in_float32_every_pipeline_gives_the_same_text(
    pipeline: str, depth: str, executor: str
) -> None:
    prompts = [
        "Write a short story about a fox named Ida.",
        "Extract name, age, job and city as JSON: Max Tanaka is a 61-year-old lawyer from Warsaw.",
        "Is this review positive or negative? What a wonderful lamp!",
    ]
    expected = LLM(pipeline="quickstart").generate(prompts)
    overrides = {"depth": depth, "executor": executor}
    found = LLM(pipeline=pipeline, overrides=overrides).generate(prompts)
    assert [o.token_ids for o in found] == [o.token_ids for o in expected]
    assert any(len(set(o.token_ids)) > 20 for o in found)


def test_the_embedded_models_are_small() -> None:
    folders = [Path(resolve("embedded")), Path(resolve("embedded-draft"))]
    size = sum(path.stat().st_size for folder in folders for path in folder.rglob("*"))
    assert size <= 16 * 2**20
