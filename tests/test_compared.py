"""The page that compares refusals says of this engine what it does, and counts what it lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.errors import GraphError
from stepweave.graph.verifier.verify import verify
from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import CompileFailed, NotInvariant, UnsupportedModel
from stepweave.models.pretrained import load_model
from stepweave.models.stage import Stage
from stepweave.models.stage_lm import StageLM
from stepweave.nodes.swap import HOST_KV, SwapOptions
from stepweave.requests.request import RequestError, SamplingParams
from stepweave.serving.engine import EngineError
from stepweave.serving.loading import load_engine
from stepweave.serving.pipeline import compiled
from stepweave.testing.vision import save_tiny_vision
from tests.models.families import built, tiny_config
from tests.serving.test_families_served import said as answered
from tests.serving.test_families_served import served

PAGE = (Path(__file__).parents[1] / "docs/reference/compared.md").read_text(encoding="utf-8")
LINES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
]
ENGINES = LINES[0][1:]
COUNTED = ("*no*", "*partly*", "every *no*", "every *?*", "*no* of Stepweave there")
TOLD = {cells[0]: [*map(int, cells[1:])] for cells in LINES if cells[0] in COUNTED}
OURS = "refused by Stepweave"
"""Heads the table of what else is refused here."""
ROWS = {cells[0]: cells[1:] for cells in LINES[1:] if cells[0] not in ("", OURS, *COUNTED)}
SECOND = [cells[0] for cells in LINES[1 + [cells[0] for cells in LINES].index(OURS) :]]
FIRST = {row: cells for row, cells in ROWS.items() if row not in SECOND}

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
    "a model in stages and draft trees": {
        **STAGES,
        **draft("eagle3", tree={"width": 3, "depth": 4}, tokens=10),
        "nodes.keep_path.after": "sample",
    },
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


ADAPTERS = {"model.adapters": {"fox": "path"}}
RANKS = {"model.parallel.tensor": 2, "model.invariant": False}
COMPILED = {"model.compile": "layer", "model.invariant": False}


def with_states() -> PreTrainedModel:
    """A model some of whose layers keep states."""
    config = tiny_config("lfm2")
    assert config is not None
    return built(config, torch.float32)


def states(**how: Any) -> CausalLM:
    return CausalLM.wrap(with_states(), **{"invariant": False, **how})


def states_on_ranks() -> CausalLM:
    """As a rank that has loaded its part of such a model."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("stepweave.models.causal_lm.load_model", lambda *_, **__: with_states())
        return CausalLM.load("path", dtype="float32", invariant=False, shards=2)


def host_blocks() -> object:
    make = HOST_KV.make
    assert make is not None
    return make(SwapOptions(), torch.device("cpu"), states())


def of_images(**how: Any) -> object:
    with TemporaryDirectory() as folder:
        return CausalLM.wrap(load_model(save_tiny_vision(folder), torch.float32), **how)


def images_divided(**how: Any) -> object:
    with TemporaryDirectory() as folder:
        return load_model(save_tiny_vision(folder), torch.float32, **how)


Refusal = tuple[Callable[[], object], type[Exception], str]
ALONE = "runs? on one rank alone"
REFUSED: Mapping[str, Refusal] = {
    "layers and stages divided at once": (
        lambda: loaded({**STAGES, "model.parallel.tensor": 2, "model.invariant": False}),
        ConfigError,
        "not yet by both",
    ),
    "beam search": (lambda: SamplingParams.of({"num_beams": 4}), RequestError, "beam search"),
    "a model in stages, on GPUs": (
        lambda: load_engine(loaded({**STAGES, "executor": "cuda"})),
        EngineError,
        "pipeline is for CPUs so far",
    ),
    "draft trees and block verification": (
        lambda: compiled(loaded({**PIPELINES["draft trees"], "policies.acceptance": "block"})),
        GraphError,
        "'block' judges no draft trees",
    ),
    "layers that keep states and swapping to the host": (
        host_blocks,
        UnsupportedModel,
        "only blocks are copied",
    ),
    "layers that keep states, divided among ranks": (states_on_ranks, UnsupportedModel, ALONE),
    "layers that keep states, in stages": (
        lambda: StageLM(with_states(), Stage(0, 2), invariant=False),
        UnsupportedModel,
        ALONE,
    ),
    "layers that keep states, compiled": (
        lambda: states(compile="layer"),
        CompileFailed,
        "are not compiled",
    ),
    "images and layers divided among ranks": (
        lambda: images_divided(shards=2),
        UnsupportedModel,
        ALONE,
    ),
    "images and a model in stages": (
        lambda: images_divided(stage=Stage(0, 2)),
        UnsupportedModel,
        ALONE,
    ),
    "images and compiled layers": (
        lambda: of_images(invariant=False, compile="layer"),
        CompileFailed,
        "are not compiled",
    ),
    "adapters and layers divided among ranks": (
        lambda: loaded({**ADAPTERS, **RANKS}),
        ConfigError,
        "2 ranks` changes the layers",
    ),
    "adapters and a model in stages": (
        lambda: loaded({**ADAPTERS, **STAGES}),
        ConfigError,
        "2 ranks` changes the layers",
    ),
    "adapters and compiled layers": (
        lambda: loaded({**ADAPTERS, **COMPILED}),
        ConfigError,
        "compile: layer` changes the layers",
    ),
    "invariant arithmetic and layers divided among ranks": (
        lambda: loaded({**RANKS, "model.invariant": True}),
        ConfigError,
        "that 2 ranks share",
    ),
    "invariant arithmetic and layers that keep states": (
        lambda: states(invariant=True),
        NotInvariant,
        "its layers keep states",
    ),
}
BY_OTHERS = "draft lengths by load or by time, with rejection sampling or block verification"
LEFT_OUT = "layers that keep states and shared prefixes"


def test_every_row_is_held_by_a_pipeline_a_request_or_a_refusal() -> None:
    assert ENGINES[0] == "Stepweave"
    ours = {row: cells[0] for row, cells in ROWS.items()}
    assert {row for row, said in ours.items() if said == "yes"} == {*PIPELINES, *REQUESTS}
    no = {row for row, said in ours.items() if said == "no"}
    assert no == {*REFUSED, BY_OTHERS, LEFT_OUT}
    assert set(ours.values()) == {"yes", "no"}
    assert {cells[0] for row, cells in ROWS.items() if row in SECOND} == {"no"}


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


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("drafting", ["by_rows", "fastest"])
def test_draft_lengths_by_other_rows_are_refused_where_tokens_would_depend_on_them(
    drafting: str, rule: str
) -> None:
    with pytest.raises(ConfigError, match="by what other rows do"):
        loaded({**draft("eagle"), "policies.drafting": drafting, "policies.acceptance": rule})


def test_prefixes_of_layers_that_keep_states_are_computed_again() -> None:
    with served("lfm2", "async", **{"scheduler.prefix_cache": "true"}) as llm:
        assert {output.cached_tokens for _ in range(2) for output in answered(llm)} == {0}


def counted(word: str, rows: Mapping[str, Sequence[str]]) -> list[int]:
    return [
        sum(cells[engine].split()[0] == word for cells in rows.values())
        for engine in range(len(ENGINES))
    ]


def test_counts_are_those_of_the_rows() -> None:
    assert TOLD["*no*"] == counted("no", FIRST)
    assert TOLD["*partly*"] == counted("partly", FIRST)
    assert TOLD["every *no*"] == counted("no", ROWS)
    assert TOLD["every *?*"] == counted("?", ROWS)
    assert TOLD["*no* of Stepweave there"] == [
        sum(cells[0] == "no" and cells[engine] != "?" for cells in ROWS.values())
        for engine in range(len(ENGINES))
    ]


def test_where_an_engine_was_read_it_refuses_more() -> None:
    ours, *others = TOLD["*no*"]
    assert ours < min(others)
    read = zip(TOLD["every *no*"], TOLD["*no* of Stepweave there"], strict=True)
    assert all(ours < theirs for theirs, ours in [*read][1:])


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
