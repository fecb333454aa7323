"""What a pipeline has chosen though nothing in it uses it: told, and not refused."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from stepweave.cli.main import app
from stepweave.configs.load import load_config, shipped
from stepweave.configs.schema import PipelineConfig
from stepweave.nodes.idle import idle
from stepweave.policies.registry import DECISIONS

CHEAPER = {"kind": "cheaper", "block_us": 1, "token_us": 1}


def said(config: PipelineConfig) -> list[str]:
    return idle(config.nodes, {name: getattr(config.policies, name).kind for name in DECISIONS})


@pytest.mark.parametrize(
    ("pipeline", "overrides", "told"),
    [
        (
            "async",
            {"policies.drafting": "by_rows"},
            ["drafting policy 'by_rows' has nothing to decide: no node drafts"],
        ),
        (
            "async",
            {"policies.acceptance": "typical"},
            ["acceptance policy 'typical' has nothing to decide: no node drafts"],
        ),
        (
            "async",
            {"policies.resumption": CHEAPER},
            [
                "resumption policy 'cheaper' has nothing to decide: no node, as one of kind "
                "'swap', keeps blocks on the host"
            ],
        ),
        (
            "async_tree",
            {"nodes.draft.tree": None},
            ["node 'keep_path' has nothing to do: no drafter offers trees"],
        ),
        ("async_ngram", {"policies.drafting": "by_rows"}, []),
        ("async_ngram", {"policies.acceptance": "typical"}, []),
        ("async_swap", {"policies.resumption": CHEAPER}, []),
    ],
)
def test_policies_and_nodes_without_anything_to_do_are_told(
    pipeline: str, overrides: dict[str, Any], told: list[str]
) -> None:
    config = load_config(pipeline, overrides)
    assert isinstance(config, PipelineConfig)
    assert said(config) == told


def test_shipped_pipelines_have_none() -> None:
    found = [load_config(name) for name in shipped()]
    pipelines = [config for config in found if isinstance(config, PipelineConfig)]
    assert len(pipelines) > 15
    assert [said(config) for config in pipelines] == [[]] * len(pipelines)


def test_check_has_a_note_of_it() -> None:
    asked = ["check", "async", "--set", "policies.drafting=by_rows"]
    shown = " ".join(CliRunner().invoke(app, asked).stdout.split())
    assert "async: sound" in shown
    assert "note drafting policy 'by_rows' has nothing to decide: no node drafts" in shown
