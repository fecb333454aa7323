"""How the policies of a file are laid over those of the file that it extends.

A name alone is short for a mapping with that `kind`. Options belong to a policy: where another one
is named, those of the one before are gone.
"""

from __future__ import annotations

from collections.abc import Callable

from .yaml_source import Located


def policies_over(
    before: Located | None, section: Located, over: Callable[[Located, Located], Located]
) -> Located:
    """The `policies` of a file, `section`, over those before; `over` lays mappings over each other.

    What is not as it should be stays as it is, for the schema to refuse.
    """
    if not isinstance(section.value, dict):
        return section
    known = before.value if before is not None and isinstance(before.value, dict) else {}
    merged = dict(known)
    for decision, part in section.value.items():
        chosen, there = by_kind(part), known.get(decision)
        if there is not None and _goes_on(by_kind(there), chosen):
            chosen = over(by_kind(there), chosen)
        merged[decision] = chosen
    return Located(merged, section.mark, section.key)


def by_kind(part: Located) -> Located:
    """A policy that is named alone as a mapping with its `kind`; any other as it is."""
    if not isinstance(part.value, str):
        return part
    return Located({"kind": Located(part.value, part.mark, part.mark)}, part.mark, part.key)


def _goes_on(there: Located, chosen: Located) -> bool:
    """Whether `chosen` gives options to the policy that is there already."""
    if not (isinstance(there.value, dict) and isinstance(chosen.value, dict)):
        return False
    if "kind" not in chosen.value:
        return True
    return "kind" in there.value and chosen.value["kind"].value == there.value["kind"].value
