"""`stepweave list`: what there is to choose from, each with a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..configs.costs import load_costs
from ..configs.errors import ConfigError, Mark
from ..configs.keys import keys
from ..configs.load import shipped, shipped_file
from ..configs.shipped_costs import shipped_costs
from ..graph.errors import StepweaveError, did_you_mean
from ..nodes import registry as nodes
from ..nodes.registry import kind, known_kinds
from ..policies import registry as policies
from ..policies.registry import DECISIONS, known, policy_class
from .wrapping import columns, paragraph

if TYPE_CHECKING:
    from .verbs import ListOptions

BESIDE = 24  # a longer name has a line of its own


def listing(asked: ListOptions) -> None:
    """Print all sections, or one. Raises `ConfigError` for a section that there is not."""
    only = asked.section
    if only is not None and only not in SECTIONS:
        raise ConfigError.at(
            Mark("list"), f"there is no section {only!r}{did_you_mean(only, SECTIONS)}"
        )
    found = {name: make() for name, make in SECTIONS.items() if only in (None, name)}
    print(json.dumps(found) if asked.json else _text(found))


def _text(found: Mapping[str, Mapping[str, str]]) -> str:
    parts: list[str] = []
    for section, entries in found.items():
        parts += ["", section]
        widest = max(map(len, entries))
        for name, about in entries.items():
            if widest <= BESIDE:
                parts += paragraph(about, columns(), 2, f"{name.ljust(widest)}  ")
            else:
                parts += [f"  {name}", *paragraph(about, columns(), 6)]
    return "\n".join(parts[1:])


def _pipelines() -> dict[str, str]:
    """By name the comment at the beginning of each file."""
    return {name: _heading(shipped_file(name).read_text(encoding="utf-8")) for name in shipped()}


def _heading(text: str) -> str:
    """The first sentence of the comment that a file begins with."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("# "):
            break
        lines.append(line.removeprefix("# "))
    return " ".join(lines).partition(". ")[0].rstrip(".")


def _kinds() -> dict[str, str]:
    unused = nodes.passed_over()
    return {name: _summary(name) + _unused(unused.get(name)) for name in known_kinds()}


def _summary(name: str) -> str:
    try:
        return kind(name).summary
    except StepweaveError as error:  # a package of somebody else's
        return f"cannot be used: {error.message}"


def _policies() -> dict[str, str]:
    """As they stand in a file, `decision: name`."""
    return {
        f"{decision}: {name}": _decides(decision, name) + _unused(unused.get(name))
        for decision in DECISIONS
        for unused in [policies.passed_over(decision)]
        for name in known(decision)
    }


def _decides(decision: str, name: str) -> str:
    try:
        said = policy_class(decision, name).__doc__ or ""
    except StepweaveError as error:  # a package of somebody else's
        return f"cannot be used: {error.message}"
    return said.strip().split("\n")[0].rstrip(".")


def _unused(packages: Sequence[str] | None) -> str:
    """What is said of packages that bring another of that name."""
    return (
        f". That of {' and '.join(packages)} has the same name: nobody finds it" if packages else ""
    )


def _choices() -> dict[str, str]:
    """The keys that take one of a few words, as `key=word|word`."""
    return {f"{key.name}={'|'.join(key.choices)}": key.description for key in keys() if key.choices}


def _costs() -> dict[str, str]:
    found = {}
    for name in shipped_costs():
        file = load_costs(name).file
        found[name] = f"{file.basis}: {file.describes}"
    return found


SECTIONS: Mapping[str, Callable[[], dict[str, str]]] = {
    "pipelines": _pipelines,
    "kinds": _kinds,
    "policies": _policies,
    "choices": _choices,
    "costs": _costs,
}
