"""A pipeline as one file: merged, every key with its value, and what each key means.

What is written loads again to the same config. Texts are written as JSON has them, which is YAML
too; only plain words go without quotes.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ..nodes.node_config import NodeConfig
from ..nodes.registry import kind
from .schema import PipelineConfig, PolicyConfig

WIDTH = 100
BESIDE = 36  # the column of a comment that fits beside its key
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_EACH_VALUE = re.compile("[a-z_]+: ")
_NO_WORDS = frozenset(("null", "true", "false"))


def pipeline_yaml(config: PipelineConfig, heading: str, streams: Mapping[str, str | None]) -> str:
    """The file. `heading` is its first comment; `streams` says where each node's device op runs."""
    lines = [f"# {line}" for line in textwrap.wrap(heading, WIDTH - 2)]
    for key, field in PipelineConfig.model_fields.items():
        value = getattr(config, key)
        if key == "nodes":
            lines += _commented(f"{key}:", field.description)
            for name, node in config.nodes.items():
                lines += _node(name, node, streams.get(name))
        else:
            lines += _entry(key, value, field.description or _said_of(value), "")
    return "\n".join(lines) + "\n"


def plain_yaml(data: Mapping[str, Any]) -> str:
    """Plain data as YAML, without comments."""
    return "\n".join(line for key, value in data.items() for line in _block(key, value, "")) + "\n"


def _node(name: str, node: NodeConfig, stream: str | None) -> Iterator[str]:
    """A node with its kind, where it runs, its options, and what else the file gives it."""
    assert node.kind is not None, "nodes are read by the model of their kind"
    yield from _commented(f"  {name}:", kind(node.kind).summary, "  ")
    options = kind(node.kind).options.model_fields
    given = {**dict(node), "stream": node.stream or stream}
    placed = [key for key in NodeConfig.model_fields if given[key] or key == "kind"]
    for key in placed:
        yield from _entry(key, given[key], None, "    ")
    for key, field in options.items():
        yield from _entry(key, given[key], field.description, "    ")


def _entry(key: str, value: Any, description: str | None, indent: str) -> Iterator[str]:
    if isinstance(value, PolicyConfig):
        options = value.model_dump(mode="json", exclude_defaults=True)
        value = {"kind": value.kind, **options} if options.keys() > {"kind"} else value.kind
    if isinstance(value, BaseModel):
        yield from _commented(f"{indent}{key}:", description, indent)
        for name, field in type(value).model_fields.items():
            yield from _entry(name, getattr(value, name), field.description, f"{indent}  ")
        return
    if isinstance(value, tuple | list) and value and isinstance(value[0], BaseModel):
        value = [part.model_dump(mode="json", by_alias=True, exclude_unset=True) for part in value]
        yield from _commented(f"{indent}{key}:", description, indent)
        yield from _items(value, f"{indent}  ")
        return
    if isinstance(value, Mapping) and any(isinstance(each, BaseModel) for each in value.values()):
        yield from _commented(f"{indent}{key}:", description, indent)
        for name, each in value.items():
            yield from _entry(name, each, None, f"{indent}  ")
        return
    yield from _commented(f"{indent}{key}: {_flow(value)}", _of_value(description, value), indent)


def _of_value(description: str | None, value: Any) -> str | None:
    """What a description says of this value, where it says what each value means."""
    sentences = (description or "").split(". ")
    if _EACH_VALUE.match(sentences[0]) is None:
        return description
    return next((s for s in sentences if s.startswith(f"{_flow(value)}: ")), description)


def _said_of(value: Any) -> str | None:
    return type(value).__doc__ if isinstance(value, BaseModel) else None


def _commented(text: str, description: str | None, indent: str = "") -> list[str]:
    """A line with the first sentence of what it means beside it, or above where it is long."""
    if not description:
        return [text]
    sentence = " ".join(description.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    beside = f"{text:<{BESIDE}}  # {sentence}"
    if len(beside) <= WIDTH:
        return [beside]
    lead = f"{indent}# "
    return [*textwrap.wrap(sentence, WIDTH, initial_indent=lead, subsequent_indent=lead), text]


def _block(key: str, value: Any, indent: str) -> Iterator[str]:
    """A key of plain data, its mappings and lists opened up."""
    if isinstance(value, dict) and value:
        yield f"{indent}{_flow(key)}:"
        for name, part in value.items():
            yield from _block(name, part, f"{indent}  ")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield f"{indent}{_flow(key)}:"
        yield from _items(value, f"{indent}  ")
    else:
        yield f"{indent}{_flow(key)}: {_flow(value)}"


def _items(parts: list[Any], indent: str) -> Iterator[str]:
    for part in parts:
        if not isinstance(part, dict):
            yield f"{indent}- {_flow(part)}"
            continue
        lines = [line for key, value in part.items() for line in _block(key, value, f"{indent}  ")]
        yield f"{indent}- {lines[0].lstrip()}"
        yield from lines[1:]


def _flow(value: Any) -> str:
    """Plain data in one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_flow(key)}: {_flow(part)}' for key, part in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str) and _WORD.fullmatch(value) and value.lower() not in _NO_WORDS:
        return value
    # YAML has no letters such as DEL, and reads some that JSON leaves as they are as line breaks.
    return json.dumps(value, ensure_ascii=not f"{value}".isprintable())
