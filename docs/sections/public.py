"""public.md: every public name, what it promises and what it raises."""

from __future__ import annotations

import re
from importlib import import_module

from sections.markdown import code, first_sentence, table

from stepweave.graph.public import PACKAGES, doc


def packages() -> str:
    """A section for each public package."""
    return "\n\n".join(_package(name) for name in PACKAGES)


def _package(package: str) -> str:
    module = import_module(package)
    rows = [
        (f"`{name}`", first_sentence(said), code(*raised(said)))
        for name in module.__all__
        for said in [doc(package, name)]
    ]
    heading = f"## {package}\n\n{PACKAGES[package]}"
    return f"{heading}\n\n{table(('name', 'what it promises', 'raises'), rows)}"


def raised(said: str) -> list[str]:
    """The errors that a docstring says are raised, in the order of the docstring."""
    listed = re.findall(r"(?m)^    (\w+): ", said.partition("Raises:\n")[2])
    sentences = re.findall(r"[Rr]aises?\s[^.]*(?:\.\w[^.]*)*", said)
    named = [name for each in sentences for name in re.findall(r"`([A-Z]\w+)`", each)]
    return list(dict.fromkeys([*listed, *named]))
