"""Every causal family of transformers is served with its own tokens, or refused by a ModelError."""

import random
import runpy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.models.families import families

MAKER = Path(__file__).parents[2] / "docs" / "make_models.py"
ALWAYS = (
    *("bloom", "deepseek_v3", "gemma4_text", "jetmoe"),
    *("llama4_text", "modernbert-decoder", "phi3"),
)


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
    chosen = {*random.Random(11).sample(families(), 8), *ALWAYS} & set(families())
    outcomes = maker["tried"](sorted(chosen))
    served = {one.family for one in outcomes if one.served}
    assert served >= {"jetmoe", "modernbert-decoder", "phi3"}
    page = maker["PAGE"].read_text(encoding="utf-8")
    if maker["VERSION"] in page:  # with another version, no raw error is what there is to see
        lines = page.splitlines()
        assert [maker["row"](one) for one in outcomes if maker["row"](one) not in lines] == []


@pytest.mark.nightly
def test_the_list_of_models_is_what_is_tested(maker: dict[str, Any]) -> None:
    outcomes = maker["tried"](families())
    page = maker["PAGE"].read_text(encoding="utf-8")
    if maker["VERSION"] in page:
        assert maker["page"](outcomes) == page
    assert sum(one.served for one in outcomes) > 60
