"""A normal form as a JSON Schema again, in the forms that one library serves exactly.

What both libraries do alike is here; where they differ a subclass says how. Whatever cannot be
served exactly is written in the nearest way, and noted with its place in the schema as it was
written by the user.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from .formats import format_pattern
from .number_limits import numbers_in
from .regex_language import (
    LONGEST_EXCLUDED,
    alternatives,
    nothing,
    other_than,
    search_language,
    with_lengths,
)
from .regex_syntax import ANY, Regex, RegexError, Repeat, literal
from .regex_text import regex_text
from .schema_case import Case
from .schema_document import Schema, refuse
from .schema_endless import Endings
from .schema_names import other_names
from .schema_normal import Key, Normaliser
from .schema_objects import with_listed_names
from .schema_terms import COUNTS, NOTHING, Layer, Literal, Node, Slots
from .schema_values import both

LARGEST_COUNT: Final = 2**31 - 1
"""The largest number of characters, items or properties that is written: XGrammar 0.2.8 counts no
further, and no text holds as many."""

DEEPEST_INLINE: Final = 24
"""How deep a schema that is used once may be written in place. Below, it is referred to, so that
what is written does not nest deeper than a request may."""

_ALL_TYPES = ("null", "boolean", "number", "string", "array", "object")


@dataclass(eq=False)
class _Written:
    """The schema of one node, and how often it is referred to."""

    schema: Schema
    uses: int = 0


class SchemaWriter(ABC):
    """Writes the nodes of one document for one library.

    Args:
        normaliser: of the document.
    """

    most_named: ClassVar[int]
    """Most characters of the names beside which all others are a pattern, those that several names
    begin with counted once. The pattern has 40 for each."""

    def __init__(self, normaliser: Normaliser) -> None:
        self._nodes = normaliser
        self._endings = Endings(normaliser)
        self._written: dict[Key, _Written] = {}
        self._left: list[tuple[_Written, list[Case]]] = []
        self._noted: dict[tuple[str, str], None] = {}

    def document(self) -> tuple[Schema | bool, tuple[str, ...]]:
        """The whole schema, and what is not enforced, by place."""
        if (place := self._endings.place((Literal(True, "#"),))) is not None:
            refuse(
                place,
                "each value of it has another one in it, so no text comes to its end; let one be "
                "left out ('required'), be null, or an array be empty",
            )
        root = self._schema((Literal(True, "#"),))
        while self._left:
            # One by one and not inside of each other: schemas may lead from one to the next more
            # often than calls may nest.
            written, union = self._left.pop()
            first = len(self._left)
            written.schema.update(self._union(union))
            self._left[first:] = reversed(self._left[first:])
        apart: dict[_Written, str] = {}

        def finished(value: Any, depth: int) -> Any:
            if isinstance(value, _Reference):
                to = value.to
                if _small(to.schema) or (to.uses == 1 and depth < DEEPEST_INLINE):
                    return finished(to.schema, depth)
                return {"$ref": f"#/$defs/{apart.setdefault(to, f's{len(apart)}')}"}
            if isinstance(value, dict):
                return {key: finished(each, depth + 1) for key, each in value.items()}
            if isinstance(value, list):
                return [finished(each, depth + 1) for each in value]
            return value.values if isinstance(value, _Constants) else value

        schema = finished(root, 0)
        if schema is False:
            refuse(self._nodes.to_blame("#"), "no value can satisfy it")
        definitions: dict[str, object] = {}
        while waiting := list(apart.items())[len(definitions) :]:
            for written, name in waiting:
                definitions[name] = finished(written.schema, 2)
        if definitions:
            schema["$defs"] = definitions
        notes = {**self._nodes.flaws, **self._noted}
        return schema, tuple(f"json: at {place}: {what}" for place, what in notes)

    def note(self, case: Case, keyword: str, what: str) -> None:
        """Remember that a keyword of a case is not enforced."""
        self._noted[case.places.get(keyword, "#"), what] = None

    def _schema(self, node: Node) -> Any:
        """The schema of a node, or a `_Reference` to it."""
        node = self._nodes.canonical(node)
        if not node:
            return {}
        if node == NOTHING:
            return False
        key = self._nodes.key(node)
        written = self._written.get(key)
        if written is None:
            union = [case for case in self._nodes.cases(node) if self._endings.of(case)]
            if not union:
                return False
            written = self._written[key] = _Written({})
            self._left.append((written, union))
        written.uses += 1
        return _Reference(written)

    def has_values(self, node: Node) -> bool:
        """Whether there is a value of a node that can be written to its end."""
        return self._endings.has(node)

    def _union(self, union: list[Case]) -> Schema:
        plain = [case.type for case in union if not case.parts]
        if sorted(plain) == sorted(_ALL_TYPES):
            return {}
        schemas: list[Schema] = []
        for case in union:
            if case.parts:
                schemas.append(self._case(case))
            elif case.type == plain[0]:
                schemas.append({"type": plain[0] if len(plain) == 1 else plain})
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def _case(self, case: Case) -> Schema:
        case = self._countable(case)
        match case.type:
            case "values":
                return self.values(case)
            case "integer" | "number":
                return self.number(case)
            case "string":
                return self._string(case)
            case "array":
                return self._array(case)
            case _:
                return self._object(case)

    def _countable(self, case: Case) -> Case:
        """The case without bounds that are too large to count to."""
        parts = dict(case.parts)
        for keyword in COUNTS:
            if parts.get(keyword, 0) > LARGEST_COUNT:
                if keyword.startswith("min"):
                    what = f"{keyword!r} above {LARGEST_COUNT} cannot be enforced"
                    self.note(case, keyword, what)
                del parts[keyword]
        return replace(case, parts=parts)

    def values(self, case: Case) -> Schema:
        """One of the values that are listed."""
        wrong = [each for each in numbers_in(case.parts["values"]) if not self.writes(each)]
        if wrong:
            what = f"the number {wrong[0]!r} has more digits than can be enforced"
            self.note(case, "enum", what)
        return {"enum": _Constants(case.parts["values"])}

    @abstractmethod
    def writes(self, number: int | float) -> bool:
        """Whether the library writes this number as it is, where a value is listed."""

    @abstractmethod
    def number(self, case: Case) -> Schema:
        """A number with bounds."""

    def number_without(self, case: Case, noted: Collection[str]) -> Schema:
        """A number without the keywords that are noted, which a library may refuse or misread."""
        parts = {key: value for key, value in case.parts.items() if key not in noted}
        return {"type": case.type, **parts}

    def _string(self, case: Case) -> Schema:
        trees: list[Regex] = []
        for keyword, part in (("pattern", "patterns"), ("format", "formats")):
            for text in case.parts.get(part, ()):
                pattern = format_pattern(text) if keyword == "format" else text
                if pattern is None:
                    continue
                try:
                    trees.append(search_language(pattern))
                except RegexError as error:
                    self.note(case, keyword, f"{keyword!r}: {error}")
        if "differs" in case.parts:
            self.note(case, "differs", "'not' around 'pattern' cannot be enforced")
        if "excluded" in case.parts:
            excluded = case.parts["excluded"]
            if max(map(len, excluded)) > LONGEST_EXCLUDED:
                what = f"'not' around a text of more than {LONGEST_EXCLUDED} characters"
                self.note(case, "not", f"{what} cannot be enforced")
            else:
                trees.append(other_than(excluded))
        low, high = case.parts.get("minLength", 0), case.parts.get("maxLength")
        fitted = [with_lengths(tree, low, high) for tree in trees]
        for index, tree in enumerate(fitted):
            if tree is not None:  # one pattern says the lengths, too
                trees[index] = tree
                return self.string(case, list(dict.fromkeys(trees)), 0, None)
        return self.string(case, list(dict.fromkeys(trees)), low, high)

    @abstractmethod
    def string(self, case: Case, trees: list[Regex], low: int, high: int | None) -> Schema:
        """A string that all of the trees match, of `low` to `high` characters."""

    def _array(self, case: Case) -> Schema:
        schema: Schema = {"type": "array"}
        slots: Slots = case.parts.get("slots", Slots((), None))
        prefix = [self._schema(node) for node in slots.prefix]
        if False in prefix:  # its values do not end, so arrays are shorter
            slots = Slots(slots.prefix[: prefix.index(False)], NOTHING)
            prefix = prefix[: prefix.index(False)]
        if prefix:
            schema["prefixItems"] = prefix
        if slots.rest is not None:
            schema["items"] = self._schema(slots.rest)
        elif case.parts.get("minItems", 0) > len(slots.prefix):
            schema["items"] = {}
        for keyword in ("minItems", "maxItems"):
            if keyword in case.parts:
                schema[keyword] = case.parts[keyword]
        if "uniqueItems" in case.parts:
            self.note(case, "uniqueItems", "'uniqueItems' cannot be enforced")
        return schema

    def _object(self, case: Case) -> Schema:
        layer = self._with_named_patterns(case, case.parts.get("members", Layer({})))
        layer = self.members(case, layer)
        schema: Schema = {"type": "object"}
        if names := self.names(case, layer):
            schema["properties"] = {name: self._schema(node) for name, node in names.items()}
        patterns: dict[str, Node] = {}
        for pattern, node in layer.patterns.items():
            if (text := self._key_pattern(case, pattern)) is not None:
                patterns[text] = both(patterns.get(text, ()), node)
        found = {text: self._schema(node) for text, node in patterns.items()}
        if layer.rest in (None, NOTHING) and all(each is False for each in found.values()):
            found = {}  # the rest says the same, and a library may refuse a schema that is `false`
        if found:
            schema["patternProperties"] = found
        if layer.rest is not None:
            schema["additionalProperties"] = self._rest(layer.rest)
        elif patterns or any(map(self.has_values, names.values())):
            # One reading with every library: what is named, unless more is asked for.
            schema["additionalProperties"] = False
        if "required" in case.parts:
            schema["required"] = case.parts["required"]
        self.counts(case, layer, schema)
        return schema

    def _rest(self, node: Node) -> Any:
        found = self._schema(node)
        return True if found == {} else found

    def _key_pattern(self, case: Case, pattern: str) -> str | None:
        try:
            tree = search_language(pattern)
        except RegexError as error:
            self.note(case, "patternProperties", f"'patternProperties': {error}")
            return None
        return None if nothing(tree) else self.key_pattern(case, tree)

    def key_pattern(self, case: Case, tree: Regex) -> str:
        """The pattern for names that a tree matches."""
        return whole(tree)

    def members(self, case: Case, layer: Layer) -> Layer:
        """The rest as a pattern for all other names: what a library leaves out of the rest by
        itself may still be written with escapes."""
        rest = layer.rest
        if rest is None and not layer.patterns:
            rest = None if any(map(self.has_values, layer.names.values())) else ()
        if rest in (None, NOTHING) or not (layer.names or layer.patterns):
            return layer
        others = other_names(self.mistaken(layer.names), [*layer.patterns], self.most_named)
        if others is None:
            what = "'additionalProperties' beside a pattern that may begin with any character"
            self.note(case, "patternProperties", f"{what} cannot be enforced")
            return layer
        more = {} if nothing(others) else {whole(others): rest}
        return Layer(layer.names, {**layer.patterns, **more}, NOTHING)

    def mistaken(self, names: Iterable[str]) -> list[str]:
        """Those of the named properties that a pattern for other names could be of as well."""
        return list(names)

    @abstractmethod
    def names(self, case: Case, layer: Layer) -> dict[str, Node]:
        """The properties to write by name; notes what the library does wrong with them."""

    @abstractmethod
    def counts(self, case: Case, layer: Layer, schema: Schema) -> None:
        """Write how many properties there may be."""

    def _with_named_patterns(self, case: Case, layer: Layer) -> Layer:
        """`propertyNames` as the one pattern that names must have."""
        if "propertyNames" not in case.parts:
            return layer
        tree = self._names_tree(case.parts["propertyNames"])
        # Named properties would have to be under the pattern as well, which says more.
        named = layer.rest and any(map(self._nodes.possible, layer.names.values()))
        if tree is None or nothing(tree) or layer.patterns or named:
            self.note(case, "propertyNames", "'propertyNames' cannot be enforced here")
            return layer
        rest = layer.rest or ()
        return with_listed_names(Layer(layer.names, {whole(tree): rest}, NOTHING))

    def _names_tree(self, node: Node) -> Regex | None:
        """The names that a schema of names allows; None if no pattern says it."""
        options: list[Regex] = []
        for case in self._nodes.cases(self._nodes.canonical(node)):
            if case.type == "values":
                options += [literal(each) for each in case.parts["values"] if isinstance(each, str)]
            if case.type != "string":
                continue
            if set(case.parts) - {"minLength", "maxLength", "patterns", "formats"}:
                return None
            texts = [*case.parts.get("patterns", ()), *case.parts.get("formats", ())]
            tree: Regex = Repeat(ANY, 0, None)
            if len(texts) == 1:
                known = format_pattern(texts[0]) if "formats" in case.parts else texts[0]
                try:
                    tree = search_language(known) if known is not None else tree
                except RegexError:
                    return None
            elif texts:
                return None
            low, high = case.parts.get("minLength", 0), case.parts.get("maxLength")
            fitted = with_lengths(tree, low, high)
            if fitted is None:
                return None
            options.append(fitted)
        return alternatives(*options)


@dataclass(frozen=True)
class _Reference:
    """Stands for a schema that may be written in place, or referred to."""

    to: _Written


@dataclass(frozen=True)
class _Constants:
    """Values of the user's, in which nothing is a schema."""

    values: list[object]


def whole(tree: Regex) -> str:
    """A pattern that matches exactly what a tree does."""
    return f"^({regex_text(tree)})$"


def _small(schema: Schema) -> bool:
    """Whether a schema is about as short as a reference to it."""
    if list(schema) == ["type"]:
        return True
    return not any(
        isinstance(value, dict | list | _Reference | _Constants)
        or (isinstance(value, str) and len(value) > 64)
        for value in schema.values()
    )
