"""Rows of several adapters share a step, each with the tokens of a model merged with its own."""

import json
import random
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from stepweave.executors import threads
from stepweave.models.errors import ModelError
from stepweave.requests.request import RequestOutput, SamplingParams
from stepweave.serving.llm import LLM
from stepweave.testing import save_adapter, save_tiny
from stepweave.testing.devices.recorded_calls import RecordedCalls
from stepweave.testing.models import tiny_tokenizer
from tests.models.families import built, tiny_config
from tests.shares import one_in

COUNT = 12
ADAPTERS: Mapping[str, dict[str, Any]] = {
    "one": {"rank": 4, "lora_alpha": 6},
    "two": {"rank": 3, "targets": ("k_proj", "o_proj", "up_proj"), "use_rslora": True},
    "three": {
        "rank": 4,
        "targets": ("q_proj", "gate_proj"),
        "alpha_pattern": {"layers.1.self_attn.q_proj": 9},
    },
}
KEYS = {
    "scheduler.num_blocks": "120",
    "scheduler.block_size": "4",
    "scheduler.max_rows": "5",
    "model.dtype": "float64",
    "model.invariant": "false",
    "torch_threads": "1",
}
GRAMMAR = {"structured_outputs": {"regex": "[a-d]{3,20}( [0-9]{1,9}){2}"}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("base"), "llama", 1, num_hidden_layers=2)


@pytest.fixture(scope="module")
def folders(base: Path) -> dict[str, Path]:
    return {
        name: save_adapter(base / "adapters" / name, base, seed, **how)
        for seed, (name, how) in enumerate(ADAPTERS.items())
    }


def merged(base: Path, adapter: Path) -> Any:
    """The model with W + scale · B · A in place of W, as the method's authors define it."""
    load: Any = AutoModelForCausalLM.from_pretrained
    model = load(base, dtype=torch.float64, attn_implementation="eager")
    said = json.loads((adapter / "adapter_config.json").read_text())
    with safe_open(adapter / "adapter_model.safetensors", framework="pt") as tensors:
        names = {key.rpartition(".lora_")[0] for key in tensors.keys()}  # noqa: SIM118
        for name in names:
            down, up = (tensors.get_tensor(f"{name}.lora_{each}.weight").double() for each in "AB")
            alphas = said.get("alpha_pattern", {}).items()
            alpha = next((n for end, n in alphas if name.endswith(end)), said["lora_alpha"])
            scale = alpha / said["r"] ** (0.5 if said.get("use_rslora") else 1)
            module = model.get_submodule(name.removeprefix("base_model.model."))
            module.weight.data += scale * up @ down
    return model


def prompts() -> list[list[int]]:
    draw = random.Random(3)
    return [[draw.randrange(2, 90) for _ in range(n)] for n in (3, 9, 14, 21)]


def asked() -> list[tuple[list[int], str | None]]:
    """Each prompt for the base and each adapter, so that one prefix comes with all of them."""
    return [(prompt, name) for prompt in prompts() for name in (None, *ADAPTERS)]


@pytest.fixture(scope="module")
def answers(base: Path, folders: dict[str, Path]) -> list[tuple[int, ...]]:
    load: Any = AutoModelForCausalLM.from_pretrained
    plain = load(base, dtype=torch.float64, attn_implementation="eager")
    models: dict[str | None, Any] = {
        None: plain,
        **{name: merged(base, each) for name, each in folders.items()},
    }
    found = []
    for prompt, name in asked():
        ids = torch.tensor([prompt])
        out = models[name].generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=COUNT,
            eos_token_id=None,
            pad_token_id=0,
        )
        found.append(tuple(out[0, len(prompt) :].tolist()))
    assert len(set(found)) == len(found), "each adapter changes what the model says"
    return found


def served(base: Path, folders: Mapping[str, Path], pipeline: str, **keys: str) -> LLM:
    named = {f"model.adapters.{name}": str(folder) for name, folder in folders.items()}
    if pipeline == "async_speculation":
        keys = {"nodes.draft.model": str(base), **keys}
    overrides = {**KEYS, "model.name": str(base), **named, **keys}
    return LLM(pipeline=pipeline, overrides=overrides)


def said(llm: LLM, **params: Any) -> list[RequestOutput]:
    outputs = llm.generate(
        [prompt for prompt, _ in asked()],
        [
            SamplingParams(max_tokens=COUNT, ignore_eos=True, adapter=name, **params)
            for _, name in asked()
        ],
    )
    assert [output.error for output in outputs] == [None] * len(outputs)
    return outputs


@pytest.mark.nightly
@pytest.mark.parametrize("on", ["graphs", "tapes"])
def test_steps_in_pieces_compute_each_token_with_its_own_adapter(
    on: str,
    base: Path,
    folders: dict[str, Path],
    answers: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "USUAL", 1)
    llm = served(base, folders, "async", pieces="64")
    if on == "graphs":
        llm.engine.executor = RecordedCalls(graphs=True, pieces=64)
    for _ in range(2):
        assert [output.token_ids for output in said(llm)] == answers
    captures = llm.engine.captures
    assert captures is not None
    assert captures.pieces["forward.device"].replayed > 0


ROOM: dict[str, dict[str, str]] = {
    "plenty": {},
    "few blocks": {"scheduler.num_blocks": "24"},  # rows are preempted
    "invariant": {"model.invariant": "true", "model.dtype": "float32"},
    "small chunks": {"scheduler.token_budget": "9"},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("room", "pipeline"), one_in(4, ROOM, ("async", "async_speculation", "async_ngram"))
)
def test_tokens_are_those_of_the_merged_models(
    room: str,
    pipeline: str,
    base: Path,
    folders: dict[str, Path],
    answers: list[tuple[int, ...]],
) -> None:
    counts, keys = [], ROOM[room]
    for depth in ("2",) if keys else ("1", "2", "3"):
        with served(base, folders, pipeline, depth=depth, **keys) as llm:
            for _ in range(2):  # the second time with prefixes from the first
                outputs = said(llm)
                assert [output.token_ids for output in outputs] == answers
            counts.append([(output.drafted, output.accepted) for output in outputs])
            if not keys:
                assert sum(output.cached_tokens for output in outputs) > 0
    assert all(each == counts[0] for each in counts)
    if pipeline == "async_speculation":
        accepted, drafted = (sum(each[at] for each in counts[0]) for at in (1, 0))
        assert 0 < accepted < drafted, "the base drafts, and some of its drafts are refused"


def test_grammars_and_seeds_hold_for_adapted_rows(base: Path, folders: dict[str, Path]) -> None:
    params = {"temperature": 0.8, "seed": 4, "logprobs": 1, **GRAMMAR}
    results = []
    for pipeline, depth in (("async_grammar", "1"), ("async_grammar", "3")):
        with served(base, folders, pipeline, depth=depth) as llm:
            results.append(
                [(output.token_ids, output.text, output.logprobs) for output in said(llm, **params)]
            )
    assert results[1] == results[0]
    texts = [text for _, text, _ in results[0]]
    allowed = re.compile("[a-d]{1,20}( [0-9]{0,9}){0,2}")
    assert [text for text in texts if not allowed.fullmatch(text)] == []
    assert len(set(texts)) > len(texts) // 2


def test_a_row_of_the_base_has_the_bits_of_a_model_without_adapters(
    base: Path, folders: dict[str, Path]
) -> None:
    def logprobs(llm: LLM) -> list[Any]:
        outputs = [
            each
            for each, (_, name) in zip(said(llm, logprobs=3), asked(), strict=True)
            if name is None
        ]
        return [(each.token_ids, each.logprobs) for each in outputs]

    keys = {"model.invariant": "true", "model.dtype": "float32"}
    with served(base, folders, "async", **keys) as llm:
        beside = logprobs(llm)
    with LLM(pipeline="async", overrides={**KEYS, "model.name": str(base), **keys}) as llm:
        params = SamplingParams(max_tokens=COUNT, ignore_eos=True, logprobs=3)
        alone = [(each.token_ids, each.logprobs) for each in llm.generate(prompts(), params)]
    assert beside == alone


def test_adapters_share_no_blocks(base: Path, folders: dict[str, Path]) -> None:
    text = prompts()[-1]
    with served(base, folders, "async", **{"scheduler.max_rows": "1"}) as llm:
        outputs = llm.generate(
            [text] * 5,
            [
                SamplingParams(max_tokens=2, adapter=name)
                for name in (None, "one", "one", "two", None)
            ],
        )
    assert [output.cached_tokens for output in outputs] == [0, 0, 20, 0, 20]


def test_an_unknown_adapter_is_refused_with_the_nearest_name(
    base: Path, folders: dict[str, Path]
) -> None:
    said = r"no adapter 'tow' \(did you mean 'two'\?\): there are one, two, three"
    with served(base, folders, "async") as llm:
        (output,) = llm.generate("to be", SamplingParams(adapter="tow"))
    assert output.error is not None
    assert re.search(said, output.error)


@pytest.mark.parametrize("key", ["model.merge", "model.parallel.tensor", "model.compile"])
def test_what_changes_the_adapted_layers_is_refused(
    key: str, base: Path, folders: dict[str, Path]
) -> None:
    value = {"model.merge": "true", "model.parallel.tensor": "2", "model.compile": "layer"}[key]
    with pytest.raises(Exception, match="layers that `adapters` add to"):
        served(base, folders, "async", **{key: value})


def test_a_pipeline_with_a_broken_adapter_does_not_load(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"adapter 'one' .* has no adapter_config.json"):
        served(base, {"one": tmp_path}, "async")


@pytest.mark.parametrize("drafter", [None, "ngram"])
def test_layers_that_keep_states_are_adapted_in_rows_of_any_length(
    drafter: str | None, tmp_path: Path
) -> None:
    """They are handed some tokens of a pass at a time: runs of rows, and windows token by token."""
    base = tmp_path / "base"
    tokenizer, config = tiny_tokenizer(), tiny_config("lfm2")
    assert config is not None
    config = deepcopy(config)  # there is one for all tests
    config.vocab_size, config.eos_token_id = len(tokenizer), 0
    built(config, torch.float32).save_pretrained(base)
    tokenizer.save_pretrained(base)
    ways = {"one": ("in_proj", "out_proj"), "two": ("out_proj", "q_proj")}
    folders = {
        name: save_adapter(tmp_path / name, base, seed, targets=targets)
        for seed, (name, targets) in enumerate(ways.items())
    }
    keys = {"nodes.draft.kind": "ngram", "nodes.draft.after": "sample"} if drafter else {}
    params = SamplingParams(max_tokens=COUNT, ignore_eos=True)
    texts = [[*each, *each] for each in prompts()]  # so that there is something to draft
    names = (None, *folders)
    with served(base, folders, "async", **keys) as llm:
        outputs = llm.generate(
            [text for text in texts for _ in names],
            [replace(params, adapter=name) for _ in texts for name in names],
        )
    assert [each.error for each in outputs] == [None] * len(outputs)
    assert [each.token_ids for each in outputs] == [
        merged_tokens(base, None if name is None else folders[name], text)
        for text in texts
        for name in names
    ]
    assert (sum(each.drafted for each in outputs) > 0) == (drafter is not None)


def merged_tokens(base: Path, adapter: Path | None, prompt: list[int]) -> tuple[int, ...]:
    """What the model says with the adapter in its weights, each token by a pass over all before."""
    load: Any = AutoModelForCausalLM.from_pretrained
    model = load(base, dtype=torch.float64) if adapter is None else merged(base, adapter)
    ids = list(prompt)
    for _ in range(COUNT):
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
    return tuple(ids[len(prompt) :])
