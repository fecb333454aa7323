"""What every request body has in common: known keys only, and refusals by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from pydantic import GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, from_json

from ...requests.keys import MAX_KEYS, Keys
from ..errors import ApiError

Refused = Mapping[str, tuple[str, tuple[object, ...]]]
"""By key: what to do instead, and the values with which it asks for nothing."""


class Body(Keys):
    """An object of a request. Keys that it does not know are refused, with the nearest right one.
    A key that may be left out may be null.

    `REFUSED` has the keys that other servers take and this one does not, with what to do instead.
    Where a value is that key's default, so that it asks for nothing, the key may be there.
    `UNREAD` has those that a client's own object carries beside what was sent to it: they say
    nothing, whatever they are.
    """

    REFUSED: ClassVar[Refused] = {}
    UNREAD: ClassVar[Collection[str]] = ()

    @model_validator(mode="before")
    @classmethod
    def _without_refused(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if len(given) > MAX_KEYS:
            raise ApiError(400, f"an object has {len(given)} keys, more than {MAX_KEYS}")
        named = cls.REFUSED.keys() & given.keys()
        for name in named:
            advice, harmless = cls.REFUSED[name]
            value = given[name]
            if isinstance(value, dict):
                value = {key: each for key, each in value.items() if each is not None}
            if value is not None and not any(_same(value, each) for each in harmless):
                said = f"{name} is not supported; {advice}"
                raise ApiError(400, said, param=name, code="unsupported_parameter")
        left_out = {key for key, value in given.items() if value is None and cls._optional(key)}
        without = named | left_out | {*cls.UNREAD}
        return {key: value for key, value in given.items() if key not in without}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """What may be left out may be null, in the document too."""
        schema = handler(core)
        told = handler.resolve_ref_schema(schema)
        properties, required = told.get("properties", {}), told.get("required", ())
        for name, each in properties.items():
            if name not in required and not _may_be_null(each):
                about = {key: value for key, value in each.items() if key in _ABOUT}
                kind = {key: value for key, value in each.items() if key not in _ABOUT}
                properties[name] = {"anyOf": [kind, {"type": "null"}], **about}
        return schema

    @classmethod
    def _optional(cls, key: str) -> bool:
        fields = cls.model_fields.items()
        return any(key in (name, of.alias) and not of.is_required() for name, of in fields)


_ABOUT = ("title", "description", "default")
"""What a JSON Schema says of a property beside what its values are."""


def _may_be_null(schema: Mapping[str, Any]) -> bool:
    return schema == {} or any(each == {"type": "null"} for each in schema.get("anyOf", ()))


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, an empty one being none; None: it is something else.

    As of a body: no depth that would exhaust the stack, and no half of a surrogate pair.
    """
    try:
        found = from_json(text or "{}", allow_inf_nan=False)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other
