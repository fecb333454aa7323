"""public.md: every public name, what it promises and what it raises."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

from sections.markdown import code, first_sentence, table

from stepweave.graph.public import PACKAGES


def packages() -> str:
    """A section for each public package."""
    return "\n\n".join(_package(name) for name in PACKAGES)


def _package(package: str) -> str:
    module = import_module(package)
    rows = [
        (f"`{name}`", first_sentence(inspect.getdoc(thing)), code(*raised(thing)))
        for name in module.__all__
        for thing in [getattr(module, name)]
    ]
    heading = f"## {package}\n\n{PACKAGES[package]}"
    return f"{heading}\n\n{table(('name', 'what it promises', 'raises'), rows)}"


def raised(thing: Any) -> list[str]:
    """The errors that its docstring says it raises, in the order of the docstring."""
    doc = inspect.getdoc(thing) or ""
    listed = re.findall(r"(?m)^    (\w+): ", doc.partition("Raises:\n")[2])
    sentences = re.findall(r"[Rr]aises?\s[^.]*(?:\.\w[^.]*)*", doc)
    named = [name for each in sentences for name in re.findall(r"`([A-Z]\w+)`", each)]
    return list(dict.fromkeys([*listed, *named]))
