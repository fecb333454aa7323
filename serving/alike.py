"""Whether two processes have one pipeline: by what its models contain, not by where these lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo

from ..configs.schema import PipelineConfig
from ..distributed.log import digest_of
from ..models.contents import digest_of_contents
from ..models.errors import ModelNotFound
from ..models.source import EMBEDDED, EMBEDDED_HEADS, folder_of
from ..nodes.options import MODEL


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that a pipeline names, or an adapter of one.

    `contents` is a digest of its files, None: they are not here. `name` is what the pipeline calls
    it, a directory or a hub name.
    """

    name: str
    contents: str | None

    def may_be(self, other: NamedModel) -> bool:
        """Whether both are one model: by its contents, or by name where one side has no files."""
        if self.contents is None or other.contents is None:
            return self.name == other.name
        return self.contents == other.contents


@dataclass(frozen=True, slots=True)
class Likeness:
    """What a pipeline is compared by: its models, by the key that names each, and all the rest."""

    rest: str
    models: Mapping[str, NamedModel]

    @classmethod
    def of(cls, config: PipelineConfig) -> Likeness:
        """That of a pipeline on this machine. Raises `OSError`."""
        return cls(digest_of_rest(config), {key: _named(name) for key, name in _models(config)})

    def difference(self, other: Likeness) -> str | None:
        """What `other` has otherwise, in words; None where both are one pipeline."""
        if self.rest != other.rest or self.models.keys() != other.models.keys():
            return "another pipeline"
        unlike = (key for key, each in self.models.items() if not each.may_be(other.models[key]))
        return next((f"another model ({key})" for key in unlike), None)

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        models = {key: [each.name, each.contents] for key, each in self.models.items()}
        return {"rest": self.rest, "models": models}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Likeness:
        """From what travelled."""
        return cls(told["rest"], {key: NamedModel(*each) for key, each in told["models"].items()})


def digest_of_rest(config: PipelineConfig) -> str:
    """That of all that a pipeline says, but for its prompts, and for where its models and adapters
    are.
    """
    adapters = dict.fromkeys(config.model.adapters, "")
    model = config.model.model_copy(update={"name": "", "adapters": adapters})
    nodes = {
        name: node.model_copy(update=dict.fromkeys(_named_by(node), ""))
        for name, node in config.nodes.items()
    }
    rest = config.model_copy(update={"model": model, "nodes": nodes, "prompts": ()})
    return digest_of(rest.model_dump_json())


def digest_of_models(config: PipelineConfig) -> dict[str, str]:
    """By the key that names it, that of each model and adapter: of its name, where no file of it is
    here yet.

    Raises `OSError`.
    """
    models = Likeness.of(config).models
    return {key: each.contents or digest_of(each.name) for key, each in models.items()}


def models_are_here(config: PipelineConfig) -> bool:
    """Whether the files of all models are on this machine. Raises `ModelNotFound`."""
    return all(_folder(name) is not None for _, name in _models(config))


def _models(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    yield "model.name", config.model.name
    for name, folder in config.model.adapters.items():
        yield f"model.adapters.{name}", folder
    for name, node in config.nodes.items():
        for key, model in _named_by(node).items():
            yield f"nodes.{name}.{key}", model


def _named_by(node: object) -> dict[str, str]:
    """The options of a node that name a model, with the names. One left open names none."""
    fields: Mapping[str, FieldInfo] = getattr(type(node), "model_fields", {})
    keys = [key for key, field in fields.items() if _names_a_model(field)]
    return {key: name for key in keys if (name := getattr(node, key)) is not None}


def _names_a_model(field: FieldInfo) -> bool:
    """Also one that may be left open: then the mark is within the union."""
    within = (getattr(each, "__metadata__", ()) for each in get_args(field.annotation))
    return any(MODEL in each for each in (field.metadata, *within))


def _named(name: str) -> NamedModel:
    try:
        folder = _folder(name)
    except ModelNotFound:  # a directory of another machine
        folder = None
    return NamedModel(name, None if folder is None else digest_of_contents(folder))


def _folder(name: str) -> Path | None:
    """The folder of a model's files; None where not more is here than its tokenizer, say."""
    folder = folder_of(name, {**EMBEDDED, **EMBEDDED_HEADS})
    return folder if folder is not None and any(folder.glob("*.safetensors")) else None
