"""The main job on real input: the embedded model, all three features at once, held-out prompts."""

import json
from itertools import islice
from pathlib import Path

import jsonschema
import pytest

from stepweave import LLM
from stepweave.configs.load import shipped
from stepweave.models.source import resolve
from tests.graph.shipped_plans import GRAPHS
from training.corpus import EXTRACTION, examples
from training.evaluate import schema_of

COUNT = 20


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
    # On 200 prompts nine in ten are right; twenty leave room for chance.
    assert right >= 0.8 * COUNT
    summary = llm.summary()
    assert summary["accepted"] >= 0.6 * summary["drafted"]
    assert summary["steps"] < summary["tokens"] / 4


PROMPTS = [
    "Write a short story about a fox named Ida.",
    "Extract name, age, job and city as JSON: Max Tanaka is a 61-year-old lawyer from Warsaw.",
    "Is this review positive or negative? What a wonderful lamp!",
]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "job": {"type": "string"},
        "city": {"type": "string"},
    },
    "required": ["name", "age", "job", "city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    plain = LLM(pipeline="synchronous", overrides={"graphs": False})
    return [output.token_ids for output in plain.generate(PROMPTS)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pipeline", [name for name in shipped() if name not in GRAPHS])
def test_every_shipped_pipeline_gives_the_same_text_in_float32(
    pipeline: str, expected: list[tuple[int, ...]]
) -> None:
    llm = LLM(pipeline=pipeline)
    found = llm.generate(PROMPTS)
    assert [output.token_ids for output in found] == expected
    assert len(set(expected[0])) > 20
    if llm.config.drafter is not None:
        assert llm.summary()["accepted"] > 0
    if llm.config.grammars is not None:
        line = {"prompt": PROMPTS[1], "structured_outputs": {"json": SCHEMA}}
        [bound] = llm.generate(line)
        jsonschema.validate(json.loads(bound.text), SCHEMA)
        assert bound.token_ids == expected[1], "it follows this schema of its own accord"
        llm.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("depth", ["1", "3"])
def test_all_three_features_at_other_depths(depth: str, expected: list[tuple[int, ...]]) -> None:
    executor = "serial" if depth == "1" else "threads"
    overrides = {"depth": depth, "executor": executor, "nodes.bitmask.compile_limit_s": "null"}
    llm = LLM(pipeline="async_eagle3_grammar", overrides=overrides)
    assert [output.token_ids for output in llm.generate(PROMPTS)] == expected


def test_the_embedded_models_are_small() -> None:
    folder = Path(resolve("embedded")).parent
    assert {path.name for path in folder.iterdir()} == {
        "target",
        "draft",
        "eagle",
        "eagle3",
        "medusa",
        "mtp",
    }
    size = sum(path.stat().st_size for path in folder.rglob("*"))
    assert size <= 16 * 2**20
