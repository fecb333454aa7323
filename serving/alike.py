"""Whether ranks have one pipeline: by what its models contain, and not by where these lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..configs.schema import PipelineConfig
from ..distributed.log import digest_of
from ..models.contents import digest_of_contents
from ..models.source import EMBEDDED, EMBEDDED_HEADS, folder_of
from ..nodes.options import MODEL


def digest_of_rest(config: PipelineConfig) -> str:
    """That of all that a pipeline says, but for the names of its models, and its prompts."""
    model = config.model.model_copy(update={"name": ""})
    nodes = {
        name: node.model_copy(update=dict.fromkeys(_keys_of_models(node), ""))
        for name, node in config.nodes.items()
    }
    rest = config.model_copy(update={"model": model, "nodes": nodes, "prompts": ()})
    return digest_of(rest.model_dump_json())


def digest_of_models(config: PipelineConfig) -> dict[str, str]:
    """By the key that names it, that of each model: of its name, where no file of it is here yet.

    Raises `ModelNotFound`, and `OSError`.
    """
    return {
        key: digest_of(name) if (folder := _folder(name)) is None else digest_of_contents(folder)
        for key, name in _models(config)
    }


def models_are_here(config: PipelineConfig) -> bool:
    """Whether the files of all models are on this machine. Raises `ModelNotFound`."""
    return all(_folder(name) is not None for _, name in _models(config))


def _models(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    yield "model.name", config.model.name
    for name, node in config.nodes.items():
        for key in _keys_of_models(node):
            yield f"nodes.{name}.{key}", getattr(node, key)


def _keys_of_models(node: object) -> list[str]:
    """The options of a node that name a model."""
    fields = getattr(type(node), "model_fields", {})
    return [key for key, field in fields.items() if MODEL in field.metadata]


def _folder(name: str) -> Path | None:
    return folder_of(name, {**EMBEDDED, **EMBEDDED_HEADS})
