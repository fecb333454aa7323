"""A library that is not installed is one sentence, with the command that installs it."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.auto_backend import AutoBackend
from stepweave.structured.grammar import GrammarError
from stepweave.structured.llguidance_backend import LLGuidanceBackend

from .conftest import STOPS, VOCAB


@pytest.mark.parametrize("kind", [AutoBackend, LLGuidanceBackend])
def test_a_missing_library_is_said_with_the_command_that_installs_what_the_package_needs(
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[AutoBackend | LLGuidanceBackend],
) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    [needed] = [
        each for each in project["project"]["dependencies"] if each.startswith("llguidance")
    ]
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(GrammarError) as error:
        kind(tokenizer, VOCAB, STOPS)
    assert str(error.value).endswith(f"install it: pip install '{needed}'")
