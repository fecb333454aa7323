"""Rows of both rotary embeddings in one batch have the tokens of `generate`, each its own."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import AutoModelForCausalLM, PreTrainedModel

from stepweave.executors import threads
from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import ModelError
from stepweave.requests.request import RequestOutput, SamplingParams
from stepweave.serving.llm import LLM
from stepweave.testing.devices.recorded_calls import RecordedCalls
from stepweave.testing.models import longrope, save_tiny, tiny_model
from tests.models.paged_rows import own_greedy
from tests.shares import one_in

ORIGINAL = 24
COUNT = 20
RECOMPUTES = Version("5.23")
"""From here on, at the latest, `generate` of Phi-3 with a cache is what it is without one: 5.17
drops the cache where the original context ends, and goes on from the last token alone.
"""
PHI3: dict[str, Any] = {"max_position_embeddings": 80, **longrope(ORIGINAL, 12)}
KEYS = {
    "scheduler.num_blocks": "200",
    "scheduler.block_size": "4",
    "scheduler.max_rows": "4",
    "model.dtype": "float64",
    "model.invariant": "false",
    "torch_threads": "1",
}


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("phi3"), "phi3", 1, **PHI3)


def prompts() -> list[list[int]]:
    draw = random.Random(3)
    return [[draw.randrange(2, 300) for _ in range(n)] for n in (3, 20, 23, 24, 25, 26, 50)]


def own(model: PreTrainedModel, prompt: list[int], **how: Any) -> tuple[int, ...]:
    return tuple(own_greedy(model, prompt, COUNT, **how))


@pytest.fixture(scope="module")
def answers(phi3: Path) -> list[tuple[int, ...]]:
    load: Any = AutoModelForCausalLM.from_pretrained
    model = load(phi3, dtype=torch.float64, attn_implementation="eager")
    found = [own(model, prompt, use_cache=False) for prompt in prompts()]
    if Version(transformers.__version__) >= RECOMPUTES:
        assert found == [own(model, prompt) for prompt in prompts()]
    model.config.rope_parameters["long_factor"] = model.config.rope_parameters["short_factor"]
    build: Any = AutoModelForCausalLM.from_config
    changed = build(model.config, attn_implementation="eager")
    changed.to(torch.float64).load_state_dict(model.state_dict())
    others = [own(changed, prompt, use_cache=False) for prompt in prompts()]
    differ = [a != b for a, b in zip(found, others, strict=True)]
    assert differ == [False] + [True] * 6, "the first stays short; the others must show the change"
    return found


def served(model: Path, pipeline: str, **keys: str) -> LLM:
    if pipeline == "async_speculation":
        keys = {"nodes.draft.model": str(model), **keys}
    return LLM(pipeline=pipeline, overrides={**KEYS, "model.name": str(model), **keys})


def said(llm: LLM, many: list[list[int]]) -> list[RequestOutput]:
    outputs = llm.generate(many, SamplingParams(max_tokens=COUNT, ignore_eos=True))
    assert [output.error for output in outputs] == [None] * len(many)
    return outputs


ROOM: dict[str, dict[str, str]] = {
    "plenty": {},
    "few blocks": {"scheduler.num_blocks": "32"},  # so few that rows are preempted, too
    "invariant": {"model.invariant": "true", "model.dtype": "float32"},
    "small chunks": {"scheduler.token_budget": "9"},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("room", "pipeline"), one_in(3, ROOM, ("async", "async_speculation", "async_ngram"))
)
def test_tokens_are_those_of_generate_across_the_original_context(
    pipeline: str, room: str, phi3: Path, answers: list[tuple[int, ...]]
) -> None:
    counts, keys = [], ROOM[room]
    for depth in ("2",) if keys else ("1", "2", "3"):
        llm = served(phi3, pipeline, depth=depth, **keys)
        for _ in range(2):  # the second time with prefixes from the first
            outputs = said(llm, prompts())
            assert [output.token_ids for output in outputs] == answers
            counts.append([(output.drafted, output.accepted) for output in outputs])
    assert all(each == counts[0] for each in counts)
    if pipeline == "async_speculation":
        assert all(accepted > COUNT // 2 for _, accepted in counts[0])


@pytest.mark.parametrize(
    "seed", [10, *(pytest.param(each, marks=pytest.mark.nightly) for each in range(10))]
)
def test_what_was_swapped_out_while_a_text_was_short_is_computed_anew(
    seed: int, phi3: Path
) -> None:
    """Its steps in flight take a request that gives way past the original context."""
    draw = random.Random(seed)
    lengths = [draw.choice([5, 12, 16, 18, 20, 21, 22]) for _ in range(6)]
    asked = [[draw.randrange(2, 300) for _ in range(length)] for length in lengths]
    with served(phi3, "synchronous") as plain:
        expected = [output.token_ids for output in said(plain, asked)]
    few = {"scheduler.num_blocks": "22", "nodes.swap": "{after: schedule, blocks: 64}"}
    with served(phi3, "async", **few) as llm:
        assert [output.token_ids for output in said(llm, asked)] == expected
        assert llm.summary()["swapped_out"]


@pytest.mark.nightly
@pytest.mark.parametrize("on", ["graphs", "tapes"])
def test_steps_in_pieces_compute_each_row_with_its_own_speeds(
    on: str, phi3: Path, answers: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "USUAL", 1)
    llm = served(phi3, "async", pieces="64")
    if on == "graphs":
        llm.engine.executor = RecordedCalls(graphs=True, pieces=64)
    for _ in range(2):
        assert [output.token_ids for output in said(llm, prompts())] == answers
    captures = llm.engine.captures
    assert captures is not None
    assert captures.pieces["forward.device"].replayed > 0


def test_short_and_long_texts_share_no_blocks(phi3: Path) -> None:
    text = prompts()[-1]
    many = [text, text[:20], text[:40], text[:23], text[:32]]
    llm = served(phi3, "async", **{"scheduler.max_rows": "1"})
    plain = served(phi3, "async", **{"scheduler.prefix_cache": "false"})
    alone = [said(plain, [each])[0].token_ids for each in many]
    outputs = said(llm, many)
    assert [output.token_ids for output in outputs] == alone
    cached = [output.cached_tokens for output in outputs]
    # 20 tokens: nothing of the long text. 40: of the long one. 23: of the short one.
    assert (cached[0], cached[1]) == (0, 0)
    assert cached[2] > 20
    assert 0 < cached[3] <= 20
    assert cached[4] > 20


def test_seeded_texts_with_log_probabilities_are_equal_at_every_depth(phi3: Path) -> None:
    params = SamplingParams(
        max_tokens=COUNT, temperature=0.9, seed=5, logprobs=1, prompt_logprobs=0, ignore_eos=True
    )
    results = []
    for depth in ("1", "2"):
        outputs = served(phi3, "async_speculation", depth=depth).generate(prompts(), params)
        assert all(len(output.prompt_logprobs or ()) > 1 for output in outputs)
        results.append(
            [(o.token_ids, o.drafted, o.accepted, o.logprobs, o.prompt_logprobs) for o in outputs]
        )
    assert results[1] == results[0]


@pytest.mark.skipif(
    Version(transformers.__version__) < RECOMPUTES, reason="its code asks the device for lengths"
)
def test_checking_mode_finds_nothing(phi3: Path, answers: list[tuple[int, ...]]) -> None:
    llm = served(phi3, "async_speculation", check="strict", executor="serial")
    # One text that stays short, one that outgrows the context, and one that is long at once.
    assert [output.token_ids for output in said(llm, prompts()[::3])] == answers[::3]


def test_a_drafter_of_another_original_context_is_refused(phi3: Path, tmp_path: Path) -> None:
    plain = save_tiny(tmp_path / "plain", "llama", max_position_embeddings=80)
    with pytest.raises(ModelError, match=r"original context of 24 tokens .* or leave the"):
        served(plain, "async_speculation", **{"nodes.draft.model": str(phi3)})
    llm = served(phi3, "async_speculation", **{"nodes.draft.model": str(plain)})
    assert llm.engine.limits.rope_switch == ORIGINAL


def test_other_families_have_the_tokens_of_generate_without_a_cache(tmp_path: Path) -> None:
    """Their `generate` with a cache mixes keys of both embeddings."""
    path = save_tiny(
        tmp_path / "llama", "llama", 1, max_position_embeddings=80, **longrope(ORIGINAL, 16)
    )
    load: Any = AutoModelForCausalLM.from_pretrained
    model = load(path, dtype=torch.float64, attn_implementation="eager")
    expected = [own(model, prompt, use_cache=False) for prompt in prompts()]
    assert [output.token_ids for output in said(served(path, "async"), prompts())] == expected


def test_the_angles_by_row_are_those_of_the_model_itself() -> None:
    model = tiny_model("phi3", **PHI3)
    rotary: Any = model.base_model.rotary_emb
    x, at = torch.zeros(1, 1, dtype=torch.float64), torch.arange(ORIGINAL)[None]
    short, long = rotary(x, at), rotary(x, torch.arange(ORIGINAL + 1)[None])
    lm = CausalLM.wrap(model, invariant=False)
    assert lm.rope_switch == ORIGINAL
    assert lm._speeds is not None
    lm._speeds.long = torch.arange(ORIGINAL) % 3 == 0
    for mine, of_short, of_long in zip(rotary(x, at), short, long, strict=True):
        wanted = torch.where(lm._speeds.long[None, :, None], of_long[:, :ORIGINAL], of_short)
        assert torch.equal(mine, wanted)
    assert not torch.equal(short[0], long[0][:, :ORIGINAL])


def test_a_context_that_nothing_outgrows_has_one_embedding() -> None:
    assert CausalLM.wrap(tiny_model("phi3", max_position_embeddings=200)).rope_switch is None


def test_dynamic_scaling_is_served_up_to_the_context(tmp_path: Path) -> None:
    """There its speeds are those of the plain embedding: `generate` changes them only beyond."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    path = save_tiny(tmp_path / "m", "llama", 1, max_position_embeddings=80, rope_parameters=rope)
    load: Any = AutoModelForCausalLM.from_pretrained
    model = load(path, dtype=torch.float64, attn_implementation="eager")
    expected = [own(model, prompt) for prompt in prompts()[::3]]
    llm = served(path, "async", check="strict", executor="serial")  # nor is the device asked
    assert [output.token_ids for output in said(llm, prompts()[::3])] == expected
