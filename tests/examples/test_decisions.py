"""Policies from another package, found through their entry points, in real pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config, shipped
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.errors import GraphError
from stepweave.policies.preemption import FewestTokens, LastCome
from stepweave.policies.registry import known, policy
from stepweave.policies.scheduling import RowView
from stepweave.requests.request import RequestOutput, SamplingParams
from stepweave.sampling.windows import Windows
from stepweave.serving.llm import LLM
from stepweave.serving.pipeline import compiled, policies_of
from stepweave.testing.models import save_tiny
from tests.installed import ROOT, installed
from tests.policies import test_contracts as contracts

DECISIONS = ROOT / "examples" / "decisions"
CHANGES = [{"policies.acceptance": "near_best"}, {"policies.scheduling": "short_first"}]
PROMPTS = ["to be or", "the quick brown fox jumps over the lazy dog", "hello", "a"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def _decisions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed(DECISIONS, tmp_path_factory.mktemp("site")):
        yield


def generated(model: Path, **changed: Any) -> list[RequestOutput]:
    """What a drafting pipeline says; its drafter is the model itself."""
    settings = {"scheduler.num_blocks": "40", "scheduler.token_budget": "24", **changed}
    overrides = {"nodes.draft.model": str(model), "nodes.draft.tokens": "2", **settings}
    llm = LLM(model, pipeline="async_speculation", overrides=overrides)
    sampled = SamplingParams(max_tokens=8, temperature=1.0, seed=5, ignore_eos=True)
    return llm.generate(PROMPTS, sampled)


def tokens(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    assert not any(output.failed for output in outputs)
    return [output.token_ids for output in outputs]


def test_without_the_package_the_names_are_unknown_and_the_line_is_named() -> None:
    with pytest.raises(ConfigError, match=r"decided\.yaml:5.*no acceptance policy 'near_best'"):
        load_config(DECISIONS / "decided.yaml")


@pytest.mark.usefixtures("_decisions")
def test_an_installed_package_adds_its_policies() -> None:
    assert "near_best" in known("acceptance")
    assert "short_first" in known("scheduling")
    config = load_config(DECISIONS / "decided.yaml")
    assert isinstance(config, PipelineConfig)
    chosen = policies_of(config)
    assert repr(chosen.acceptance) == "NearBest(share=0.2)"
    assert repr(chosen.scheduling) == "ShortFirst(prompt_tokens=None, short=32, patience=16)"


@pytest.mark.usefixtures("_decisions")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("{kind: near_best, shere: 0.1}", r"unknown key 'shere' \(did you mean 'share'\?\)"),
        ("{kind: near_best, share: 2}", r"policies\.acceptance\.share must be at most 1, not 2"),
        ("{kind: near_bast}", r"no acceptance policy 'near_bast' \(did you mean 'near_best'\?\)"),
    ],
)
def test_wrong_options_are_refused_by_name(options: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config("async_speculation", {"policies.acceptance": options})


@pytest.mark.usefixtures("_decisions")
def test_every_shipped_pipeline_plans_the_same_with_them() -> None:
    chosen = {"policies.acceptance": "near_best", "policies.scheduling": "short_first"}
    for name in shipped():
        config = load_config(name)
        if isinstance(config, PipelineConfig):
            if name == "drafts_by_load":
                with pytest.raises(ConfigError, match="'near_best' tokens depend on how many"):
                    load_config(name, chosen)
                continue
            changed = load_config(name, chosen)
            assert isinstance(changed, PipelineConfig)
            if name == "async_tree":
                with pytest.raises(GraphError, match=r"'near_best' .* judges no draft trees"):
                    compiled(changed)
            else:
                assert compiled(changed).digest == compiled(config).digest


@pytest.mark.usefixtures("_decisions")
@pytest.mark.parametrize("changed", CHANGES, ids=str)
def test_tokens_are_equal_at_every_depth_and_on_both_executors(
    model: Path, changed: dict[str, str]
) -> None:
    said = {
        depth: tokens(generated(model, **changed, depth=str(depth), executor=executor))
        for depth, executor in ((1, "serial"), (2, "threads"), (3, "threads"))
    }
    assert said[1] == said[2] == said[3]
    if "policies.scheduling" in changed:
        assert said[1] == tokens(generated(model)), "who runs when changes no request's tokens"


@pytest.mark.usefixtures("_decisions")
def test_the_rule_keeps_the_best_token_and_what_is_nearly_as_likely() -> None:
    chances = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    drafts = torch.arange(4)[:, None]
    each = torch.ones(4, dtype=torch.int64)
    windows = Windows(chances.expand(4, 2, -1), drafts, each, each, each, each == 0)

    def kept(**options: float) -> list[int]:
        rule = policy("acceptance", "near_best", **options)
        return [token for token in range(4) if rule.verify(windows).counts[token] == 2]

    assert kept(share=1.0) == [0]
    assert kept(share=0.5) == [0, 1]
    assert kept(share=0.25) == [0, 1, 2]
    assert kept(share=0.05) == [0, 1, 2, 3]


@pytest.mark.usefixtures("_decisions")
def test_they_keep_to_the_contracts_of_their_decisions() -> None:
    rule = policy("acceptance", "near_best")
    contracts.test_a_row_comes_to_the_same_in_any_company(rule)
    contracts.test_a_window_comes_to_some_drafts_and_one_possible_token(rule)
    contracts.test_of_a_greedy_row_only_the_best_token_counts(rule)
    for preemption in (LastCome(), FewestTokens()):
        scheduling = policy("scheduling", "short_first", short=4, patience=3)
        contracts.test_everybody_ends_although_others_keep_arriving_and_nothing_is_lost(
            scheduling, preemption, seed=1
        )


@pytest.mark.usefixtures("_decisions")
def test_short_prompts_pass_a_long_one_but_not_for_ever() -> None:
    scheduling = policy("scheduling", "short_first", short=8, patience=2)
    rows = [RowView(0, uid, 0, 50 if uid == 1 else 5, False, False) for uid in range(6)]
    assert [row.uid for row in scheduling.order(rows)] == [0, 2, 1, 3, 4, 5]
