"""Every causal family of transformers is served with its own tokens, or refused by a ModelError."""

import random
import runpy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from stepweave.models.recurrent import Mixers
from tests.models.families import families, outline

MAKER = Path(__file__).parents[2] / "docs" / "make_models.py"
ALWAYS = (
    *("bloom", "deepseek_v3", "gemma4_text", "jetmoe"),
    *("llama4_text", "modernbert-decoder", "phi3"),
)

WITH_STATES = (
    *("bailing_hybrid", "bamba", "falcon_h1", "granitemoehybrid", "kimi_linear", "lfm2"),
    *("lfm2_moe", "lfm3", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text"),
    *("qwen3_5_text", "qwen3_next"),
)
"""Families that are served and have layers that keep states."""


@pytest.fixture(scope="module")
def maker() -> dict[str, Any]:
    return runpy.run_path(str(MAKER))


@pytest.fixture(autouse=True)
def quiet_library() -> Iterator[None]:
    """Building models of sizes that nobody has makes transformers warn."""
    logging: Any = transformers.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.set_verbosity(before)


def test_a_sample_of_the_families_is_served_or_refused_as_the_page_says(
    maker: dict[str, Any],
) -> None:
    chosen = {*random.Random(11).sample(families(), 3), *ALWAYS} & set(families())
    outcomes = maker["tried"](sorted(chosen))
    served = {one.family for one in outcomes if one.served}
    assert served >= {"jetmoe", "modernbert-decoder", "phi3"}
    page = maker["PAGE"].read_text(encoding="utf-8")
    if maker["VERSION"] in page:  # with another version, no raw error is what there is to see
        lines = page.splitlines()
        assert [maker["row"](one) for one in outcomes if maker["row"](one) not in lines] == []


@pytest.mark.parametrize("family", WITH_STATES)
def test_layers_with_states_are_found_in_every_family_that_has_them(family: str) -> None:
    """By the name of a parameter, which a release of transformers may change."""
    if family not in families():
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    config, model = outline(family)
    config = config.get_text_config(decoder=True)
    every = [*range(config.num_hidden_layers)]
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", every)
    assert Mixers(model).layers == {
        layer for layer in every if types[layer] not in ("full_attention", "attention")
    }


def test_families_with_states_are_those_that_the_page_has(maker: dict[str, Any]) -> None:
    served = maker["PAGE"].read_text(encoding="utf-8").partition("## Refused")[0]
    assert [family for family in WITH_STATES if f"| `{family}` |" not in served] == []


@pytest.mark.nightly
def test_the_list_of_models_is_what_is_tested(maker: dict[str, Any]) -> None:
    outcomes = maker["tried"](families())
    page = maker["PAGE"].read_text(encoding="utf-8")
    if maker["VERSION"] in page:
        assert maker["page"](outcomes) == page
    assert sum(one.served for one in outcomes) > 60
