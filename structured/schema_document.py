"""A JSON Schema document: its subschemas by place, and where its references lead.

A place is a JSON pointer as the user would write it after `$ref`, "#/properties/a". Every subschema
has one place, however it is reached, so places can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final, NoReturn
from urllib.parse import unquote, urljoin

from .source import GrammarError

Schema = dict[str, object]

NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values are schemas by name."""

LISTED: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
"""Keywords whose values are lists of schemas."""

SINGLE: Final = (
    *("additionalProperties", "propertyNames", "unevaluatedProperties"),
    *("items", "additionalItems", "contains", "unevaluatedItems"),
    *("not", "if", "then", "else"),
)
"""Keywords whose values are schemas (`items` may be a list of them, in older drafts)."""


def refuse(place: str, what: str) -> NoReturn:
    """Raise a `GrammarError` about one place of a schema."""
    raise GrammarError(f"json: at {place}: {what}")


def _joined(place: str, base: str, name: str) -> str:
    """An identifier of a schema in full, resolved against the one around it."""
    try:
        return urljoin(base, name)
    except ValueError as error:
        refuse(place, f"no name of a schema can be made of {base!r} and {name!r}: {error}")


def pointer(place: str, *keys: str | int) -> str:
    """The place below a place: "~" and "/" in keys are written "~0" and "~1"."""
    return "/".join(
        [place, *(str(key).replace("~", "~0").replace("/", "~1") for key in keys)],
    )


class Document:
    """One schema with all that it contains.

    Args:
        root: parsed JSON. A reference is resolved against it alone; nothing is fetched.
    """

    def __init__(self, root: object) -> None:
        self.root = root
        self._ids: dict[str, list[str]] | None = None

    def at(self, place: str) -> object:
        """The value at a place that this class made."""
        value = self.root
        for key in _keys(place):
            value = value[int(key)] if isinstance(value, list) else value[key]  # type: ignore[index]
        return value

    def target(self, place: str, reference: str) -> str:
        """The place to which the `$ref` of the schema at `place` leads.

        Raises:
            GrammarError: it leads out of the document, or nowhere.
        """
        base, _, fragment = reference.partition("#")
        start = self._by_id(place, base, reference) if base else self._resource(place)[0]
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._by_id(place, f"#{fragment}", reference)
        if not base and not self._leads(start, fragment):
            start = "#"  # many give parts an `$id` and mean the whole document all the same
        return self._walk(place, reference, start, fragment)

    def _resource(self, place: str) -> tuple[str, str]:
        """The schema with an `$id` that is nearest around a place, and that `$id` in full."""
        found, full = "#", ""
        value, here = self.root, "#"
        for key in [None, *_keys(place)]:
            if key is not None:
                value = value[int(key)] if isinstance(value, list) else value[key]  # type: ignore[index]
                here = pointer(here, key)
            name = value.get("$id") if isinstance(value, dict) else None
            if isinstance(name, str) and not name.startswith("#"):
                found, full = here, _joined(here, full, name)
        return found, full

    def _leads(self, start: str, fragment: str) -> bool:
        """Whether there is something at a JSON pointer from a place."""
        try:
            self.at(start + fragment)
        except (LookupError, TypeError, ValueError):
            return False
        return True

    def _walk(self, place: str, reference: str, start: str, fragment: str) -> str:
        """Follow a JSON pointer from a place, by the names of members and the indices of lists."""
        value, here = self.at(start), start
        for key in _keys("#" + fragment):
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                near = get_close_matches(key, value, n=1) if isinstance(value, dict) else []
                guess = f" (did you mean {pointer(here, near[0])!r}?)" if near else ""
                refuse(
                    place, f"'$ref': {reference!r} leads nowhere: {here!r} has no {key!r}{guess}"
                )
            here = pointer(here, key)
        return here

    def _by_id(self, place: str, name: str, reference: str) -> str:
        """The place of the schema that names itself, by `$id`, `id` or `$anchor`."""
        if self._ids is None:
            self._ids = {}
            for known, where in _identifiers(self.root):
                self._ids.setdefault(known, []).append(where)
        root = self.root if isinstance(self.root, dict) else {}
        full = self._resource(place)[1] or root.get("id")
        names = [_joined(place, full, name), name] if isinstance(full, str) else [name]
        for each in names:
            places = dict.fromkeys(self._ids.get(each.rstrip("#"), ()))
            if len(places) > 1:
                several = ", ".join(sorted(places))
                refuse(place, f"'$ref': {reference!r} names several schemas: {several}")
            if places:
                return next(iter(places))
        refuse(
            place,
            f"'$ref': {reference!r} leads out of the schema, and nothing is fetched; put what it "
            "names under '$defs' and write '#/$defs/…'",
        )


def _keys(place: str) -> list[str]:
    return [key.replace("~1", "/").replace("~0", "~") for key in place.split("/")[1:]]


def _identifiers(root: object) -> Iterator[tuple[str, str]]:
    """What every subschema is called, as written and as resolved against the schemas around it."""
    rest: list[tuple[str, object, str]] = [("#", root, "")]
    while rest:
        place, schema, base = rest.pop()
        if not isinstance(schema, dict):
            continue
        for keyword in ("$id", "id"):
            if isinstance(name := schema.get(keyword), str):
                yield name.rstrip("#"), place
                yield (full := _joined(place, base, name)).rstrip("#"), place
                base = base if name.startswith("#") else full
        if isinstance(anchor := schema.get("$anchor"), str):
            yield f"#{anchor}", place
            yield f"{base}#{anchor}", place
        rest.extend((*each, base) for each in subschemas(place, schema))


def subschemas(place: str, schema: Schema) -> Iterator[tuple[str, object]]:
    """Every schema directly inside of a schema, with its place."""
    for keyword in NAMED:
        children = schema.get(keyword)
        if isinstance(children, dict):
            for name, child in children.items():
                yield pointer(place, keyword, name), child
    for keyword in (*LISTED, "items"):
        children = schema.get(keyword)
        if isinstance(children, list):
            for index, child in enumerate(children):
                yield pointer(place, keyword, index), child
    for keyword in SINGLE:
        if isinstance(child := schema.get(keyword), dict):
            yield pointer(place, keyword), child
    dependencies = schema.get("dependencies")
    if isinstance(dependencies, dict):
        for name, child in dependencies.items():
            if isinstance(child, dict):
                yield pointer(place, "dependencies", name), child


def every_schema(root: object) -> Iterator[Schema]:
    """Every schema of a document, from the outside in; may be changed on the way."""
    rest = [root]
    while rest:
        schema = rest.pop()
        if isinstance(schema, dict):
            yield schema
            rest.extend(child for _, child in subschemas("", schema))
