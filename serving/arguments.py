"""What callers of `LLM` hand in, brought into one form; a wrong type is told by its argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, cast

from ..configs.errors import Mark
from ..configs.load import WRITTEN_HERE, load_config, shipped
from ..configs.plain import located
from ..configs.prompts import PromptLine
from ..configs.schema import PipelineConfig
from ..configs.stages import for_stages
from ..requests.complaints import shown
from ..requests.request import SamplingParams
from .engine import EngineError
from .prompts import Prompt

Params = (
    SamplingParams | Mapping[str, Any] | Sequence[SamplingParams | Mapping[str, Any] | None] | None
)
Messages = Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]]

FOR_A_MODEL = "async_grammar"
FOR_THE_EMBEDDED_MODEL = "quickstart"


def chosen(
    model: str | Path | None,
    pipeline: PipelineConfig | str | Path | Mapping[str, Any] | None,
    overrides: Mapping[str, Any] | None,
    tp: int | None = None,
    pp: int | None = None,
) -> PipelineConfig:
    """The pipeline that `LLM` is to load. Raises `TypeError`, `ConfigError` or `EngineError`."""
    if not isinstance(model, str | os.PathLike | None):
        raise TypeError(f"model must be a directory or a hub name, not {shown(model)}")
    if not isinstance(pipeline, PipelineConfig | str | os.PathLike | Mapping | None):
        raise TypeError(
            "pipeline must be a name, a path, the keys of a file, or a config, not "
            f"{shown(pipeline)}"
        )
    if not isinstance(overrides, Mapping | None):
        raise TypeError(f"overrides must be a mapping of keys to values, not {shown(overrides)}")
    changes = dict(overrides or {})
    if model is not None:
        if not str(model):
            raise EngineError("model is empty: give a directory or a hub name")
        if str(model) in shipped() and not Path(model).exists():
            raise EngineError(
                f"{str(model)!r} is a shipped pipeline and no model: say pipeline={str(model)!r}"
            )
        changes["model.name"] = located(os.fspath(model), Mark("model"))  # not read as YAML
    if tp is not None:
        changes["model.parallel.tensor"] = tp
    if pp is not None:
        changes |= for_stages(pp, changes)
    if isinstance(pipeline, PipelineConfig):
        if tp is not None or pp is not None:
            raise EngineError(
                f"{'tp' if pp is None else 'pp'} changes a pipeline's file, but pipeline is an "
                "object: say model.parallel in it"
            )
        return _changed(pipeline, model, overrides)
    usual = FOR_THE_EMBEDDED_MODEL if model is None else FOR_A_MODEL
    name = pipeline if isinstance(pipeline, Mapping) else pipeline or usual
    loaded = load_config(name, changes)
    if not isinstance(loaded, PipelineConfig):
        called = WRITTEN_HERE if isinstance(name, Mapping) else name
        raise EngineError(f"{called} is an abstract graph: there is nothing to run in it")
    return loaded


def _changed(
    pipeline: PipelineConfig, model: str | Path | None, overrides: Mapping[str, Any] | None
) -> PipelineConfig:
    if overrides:
        raise EngineError(
            "overrides change a pipeline's file, but pipeline is a config: give its name, path or "
            "keys, or change the config by model_copy(update=…)"
        )
    if model is None:
        return pipeline
    renamed = pipeline.model.model_copy(update={"name": str(model)})
    changed = pipeline.model_copy(update={"model": renamed})
    if (foreign := changed.foreign_drafter) is not None:
        raise EngineError(foreign)
    return changed


def each_prompt(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as many. A sequence of numbers is one prompt of token ids.

    Raises `TypeError` for what is neither.
    """
    if isinstance(prompts, str | Mapping | PromptLine):
        return [prompts]
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | bytearray):
        raise TypeError(
            "prompts must be a text, a mapping, a list of token ids, or a list of those, not "
            f"{shown(prompts)}"
        )
    found = list(prompts.tolist() if hasattr(prompts, "tolist") else prompts)
    if found and all(isinstance(each, Integral) for each in found):
        return [cast(Sequence[int], found)]
    return cast(list[Prompt], found)


def params_for_each(params: Params, count: int) -> list[SamplingParams | None]:
    """One set of parameters per prompt.

    Raises `TypeError`, `RequestError` for a parameter, `ValueError` if there are more or fewer.
    """
    if params is None or isinstance(params, SamplingParams | Mapping):
        return [_one(params, "params")] * count
    if not isinstance(params, Iterable) or isinstance(params, str | bytes):
        raise TypeError(
            "params must be SamplingParams, a mapping of its arguments, or a list of those, not "
            f"{shown(params)}"
        )
    each = [_one(one, f"params[{index}]") for index, one in enumerate(params)]
    if len(each) != count:
        raise ValueError(f"{count} prompts, but {len(each)} sets of sampling parameters in params")
    return each


def _one(params: object, name: str) -> SamplingParams | None:
    if params is None or isinstance(params, SamplingParams):
        return params
    if isinstance(params, Mapping):
        return SamplingParams.of(params)
    raise TypeError(
        f"{name} must be SamplingParams, or a mapping of its arguments, not {shown(params)}"
    )


def conversations(messages: Messages) -> list[Prompt]:
    """One conversation or many, as prompts. Whether a message is one is found out by request.

    Raises `TypeError` for what is no list of messages or conversations.
    """
    if not isinstance(messages, Iterable) or isinstance(messages, str | bytes | Mapping):
        raise TypeError(
            'messages must be a list of messages such as {"role": "user", "content": "…"}, or a '
            f"list of such lists, not {shown(messages)}"
        )
    found = list(messages)
    many = bool(found) and all(isinstance(each, list | tuple) for each in found)
    return [{"messages": list(each)} for each in (found if many else [found])]
