"""http.md: the bodies and answers of the service, from the models that check them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from sections.keys import kind_of
from sections.markdown import table

from stepweave.server import documents
from stepweave.server.protocol.base import Body, Refused
from stepweave.server.protocol.sampling import REFUSED
from stepweave.server.settings import Limits

_BODIES = {model.__name__: model for model in documents.BODIES}


@cache
def _definitions() -> Mapping[str, Any]:
    models: Any = [(model, "validation") for model in (*documents.BODIES, *documents.ANSWERED)]
    _, schema = models_json_schema(models)
    found: Mapping[str, Any] = schema["$defs"]
    return found


def keys(model: str) -> str:
    """The keys of a body or an answer: what each may be, and its meaning."""
    definition = _definitions()[model]
    required = definition.get("required", ())
    rows = [
        (
            f"`{key}`" + (", required" if key in required and model in _BODIES else ""),
            kind_of(said).removesuffix(" or `null`"),
            said.get("description", ""),
        )
        for key, said in definition["properties"].items()
    ]
    return table(("key", "what", "meaning"), rows)


def refused(which: str) -> str:
    """The keys that are refused by name, and what to do instead: of every body, or of one only."""
    found = REFUSED if which == "everywhere" else _own(_BODIES[which])
    rows = [
        (f"`{name}`", advice, " or ".join(f"`{json.dumps(each)}`" for each in harmless))
        for name, (advice, harmless) in sorted(found.items())
    ]
    return table(("key", "instead", "asks for nothing, and so is taken"), rows)


def _own(model: type[BaseModel]) -> Refused:
    assert issubclass(model, Body), "every body refuses some keys by name"
    return {name: said for name, said in model.REFUSED.items() if name not in REFUSED}


def statuses() -> str:
    """Each status of an error."""
    return table(("status", "type", "when"), _statuses())


def _statuses() -> Iterator[tuple[str, str, str]]:
    of_any_path = {405: "The path does not take this method."}
    for status, said in sorted({**documents.SAID, **of_any_path}.items()):
        yield f"{status}", f"`{documents.type_of(status)}`", said


def limits() -> str:
    """The limits of the service, with their values."""
    rows = [(f"`{each.name}`", f"{each.default:,}") for each in fields(Limits)]
    return table(("limit", "value"), rows)
