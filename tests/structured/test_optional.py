"""llguidance is optional: nothing needs it before it is chosen; then it is asked for by name."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured import backend
from stepweave.structured.grammar import GrammarError
from stepweave.structured.llguidance_backend import LLGuidanceBackend

from .conftest import STOPS, VOCAB


def test_choosing_it_without_having_it_says_what_to_install(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(GrammarError, match=r"pip install 'stepweave\[llguidance\]'"):
        LLGuidanceBackend(tokenizer, VOCAB, STOPS)


def test_no_module_imports_it_when_it_is_imported() -> None:
    package = Path(backend.__file__).parent
    modules = sorted(package.glob("*.py"))
    assert len(modules) > 5
    for module in modules:
        for node in ast.parse(module.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert "llguidance" not in ast.unparse(node).split("import")[0].split(".")[0]
                assert not any(each.name.startswith("llguidance") for each in node.names), module
