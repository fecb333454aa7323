"""The page that compares refusals says of this engine what it does, and counts what it lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.verifier.verify import verify
from stepweave.requests.request import RequestError, SamplingParams
from stepweave.serving.pipeline import compiled

PAGE = (Path(__file__).parents[1] / "docs/reference/compared.md").read_text(encoding="utf-8")
LINES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
]
ENGINES = LINES[0][1:]
COUNTED = ("*no*", "*partly*")
ROWS = {cells[0]: cells[1:] for cells in LINES[1:] if cells[0] not in ("", *COUNTED)}

MASKS = {"nodes.bitmask.after": "forward"}
STAGES = {
    "model.parallel.pipeline": 2,
    "policies.scheduling": {"kind": "groups", "groups": 2},
}


def draft(kind: str, **options: Any) -> dict[str, Any]:
    return {"nodes.draft": {"kind": kind, "after": "sample", **options}}


PIPELINES: Mapping[str, Mapping[str, Any]] = {
    "speculation, of any kind": draft("draft_model"),
    "grammars": MASKS,
    "speculation and grammars": {**draft("eagle3"), **MASKS},
    "n-gram drafts": draft("ngram"),
    "n-gram drafts and grammars": {**draft("ngram"), **MASKS},
    "suffix decoding": draft("suffix"),
    "Medusa heads": draft("medusa"),
    "draft trees": {
        **draft("eagle3", tree={"width": 3, "depth": 4}, tokens=10),
        "nodes.keep_path.after": "sample",
    },
    "a drafter with another vocabulary": draft("draft_model", vocabulary="common"),
    "drafters whose batches are not padded": {
        "nodes.d2h_counts.after": "sample",
        "nodes.draft": {"kind": "eagle3", "after": "d2h_counts"},
    },
    "draft lengths that adapt, with any drafter": {
        **draft("mtp"),
        "policies.drafting": "by_acceptance",
    },
    "rejection sampling of drafts": {**draft("eagle"), "policies.acceptance": "rejection"},
    "a model in stages": STAGES,
    "a model in stages and speculation": {**STAGES, **draft("ngram")},
    "a CPU": {"executor": "threads", **draft("eagle"), **MASKS},
    "two grammar libraries in one engine": {**MASKS, "nodes.bitmask.backend": "auto"},
    "keys and values in 8 bits, on a CPU too": {"model.kv_cache_dtype": "int8"},
    "images in prompts": {"nodes.encode.after": "schedule", "nodes.encode.allow_sync": True},
}
REQUESTS: Mapping[str, SamplingParams] = {
    "speculation with `min_p` and `logit_bias`": SamplingParams(
        min_p=0.1, logit_bias=((1, 2.0),), draft_tokens=2
    ),
    "speculation with penalties as without it": SamplingParams(
        repetition_penalty=1.2, presence_penalty=0.5, draft_tokens=2
    ),
    "speculation with processors of scores": SamplingParams(
        node_settings=(("top_n_sigma", 1.0),), draft_tokens=2
    ),
}


def loaded(changes: Mapping[str, Any]) -> PipelineConfig:
    config = load_config("base", dict(changes))
    assert isinstance(config, PipelineConfig)
    return config


REFUSED: Mapping[str, tuple[Callable[[], object], type[Exception], str]] = {
    "layers and stages divided at once": (
        lambda: loaded({**STAGES, "model.parallel.tensor": 2, "model.invariant": False}),
        ConfigError,
        "not yet by both",
    ),
    "beam search": (lambda: SamplingParams.of({"num_beams": 4}), RequestError, "beam search"),
}


def test_every_row_is_held_by_a_pipeline_a_request_or_a_refusal() -> None:
    assert ENGINES[0] == "Stepweave"
    ours = {row: cells[0] for row, cells in ROWS.items()}
    assert {row for row, said in ours.items() if said == "yes"} == {*PIPELINES, *REQUESTS}
    assert {row for row, said in ours.items() if said == "no"} == set(REFUSED)
    assert set(ours.values()) == {"yes", "no"}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("row", PIPELINES)
def test_what_is_said_to_run_compiles_and_is_proved(row: str) -> None:
    config = loaded(PIPELINES[row])
    assert config.depth == 2
    verify(compiled(config))


@pytest.mark.parametrize("row", REFUSED)
def test_what_is_said_to_be_refused_is(row: str) -> None:
    call, error, said = REFUSED[row]
    with pytest.raises(error, match=said):
        call()


def test_counts_are_those_of_the_rows() -> None:
    told = {cells[0]: cells[1:] for cells in LINES if cells[0] in COUNTED}
    for name in COUNTED:
        word = name.strip("*")
        found = [
            sum(cells[engine].split()[0] == word for cells in ROWS.values())
            for engine in range(len(ENGINES))
        ]
        assert told[name] == [str(count) for count in found]
    no = [int(count) for count in told["*no*"]]
    assert no[0] < min(no[1:]), "fewer than that of any other"


def test_every_other_refusal_has_a_note_and_every_note_is_used() -> None:
    notes = set(re.findall(r"(?m)^(\d+)\. ", PAGE))
    used = set()
    for row, (_, *others) in ROWS.items():
        for said in others:
            word, _, note = said.partition(" ")
            assert word in ("yes", "no", "partly", "?"), row
            assert bool(note) == (word in ("no", "partly")), row
            used |= set(re.findall(r"\d+", note))
    assert used == notes
