"""Configuration, weights and tokenizer as transformers reads them, whole or not at all.

transformers fills a weight that a checkpoint lacks with random numbers and says so in a log. Here a
missing, unknown or misshapen weight is refused by name. What a family declares as an exception
(tied weights, `_keys_to_ignore_on_load_*`) transformers takes off the lists itself.

Every error is ours, in one sentence with the model's name: what libraries say of a broken file was
written for somebody who called them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)

from ..graph.errors import StepweaveError, did_you_mean, shortly
from .cutting import loading_only
from .errors import ModelError, ModelNotFound, UnsupportedModel
from .json_object import read_object
from .plausible import require_plausible
from .sharding import dividing, require_divided
from .source import (
    folder_of,
    from_local_then_hub,
    located,
    quiet,
    require_safetensors,
    stored_dtypes,
)
from .stage import Stage
from .vision import FAMILIES

_NAMED = 4
"""How many names of weights a message lists; more are counted."""

_LIBRARY = f"transformers {transformers.__version__}"


def load_config(name_or_path: str | Path) -> PreTrainedConfig:
    """The configuration of a causal language model of the installed transformers, or of a family
    that reads images beside text and is served (`vision.py`).

    Raises `ModelNotFound`, `UnsupportedModel` for any other kind of model, and `ModelError` for a
    file that is no configuration.
    """
    name = located(name_or_path)
    if Path(name).is_dir():
        _read_config(name)
    try:
        with quiet():
            config: Any = from_local_then_hub(AutoConfig, name)
    except StepweaveError:
        raise
    except Exception as error:  # each family checks its own fields, and raises what it likes
        stated = _stated(name)
        if (why := _unknown(stated)) is not None:
            raise UnsupportedModel(f"{name}: {why}") from error
        raise ModelError(
            f"{name}: config.json is no configuration of a {stated.get('model_type')!r} model: "
            f"{shortly(error)}"
        ) from error
    if _mapping(config) is None:
        raise UnsupportedModel(f"{name}: {_not_causal(config)}")
    assert isinstance(config, PreTrainedConfig)
    return config


def load_model(
    name_or_path: str | Path,
    dtype: torch.dtype | str,
    stage: Stage | None = None,
    *,
    shards: int = 1,
) -> PreTrainedModel:
    """The model with exactly the weights of its checkpoint. `dtype` "auto": as that says.

    With a `stage`, only that stage's weights are read, and the rest of the model is left out. With
    `shards` > 1 each rank has its part of them.

    Raises `ModelError` that names what is wrong, and where, or a kind of it: `UnsupportedModel`.
    """
    name = located(name_or_path)
    with quiet() as reports:
        config = load_config(name)
        if (folder := Path(name)).is_dir():
            require_safetensors(name, folder)
            require_plausible(name, folder, config)
        if config.model_type in FAMILIES and (stage is not None or shards > 1):
            raise UnsupportedModel(f"{name}: a model that reads images runs on one rank alone")
        divided = dividing(name, config, shards) if shards > 1 else {}
        try:
            model, loaded = from_local_then_hub(
                _auto(config) if stage is None else loading_only(_class_of(config), stage),
                name,
                dtype=dtype,
                use_safetensors=True,
                attn_implementation="eager",
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are in `loaded` then, and refused below
                **divided,
            )
        except StepweaveError:
            raise
        except Exception as error:  # of the model's own code, of several libraries
            raise _not_loaded(name, error, reports) from error
        model.__class__ = _class_of(config)
        _require_whole(name, type(model).__name__, loaded)
        if folder.is_dir():
            _require_numbers(name, folder, model)
        if divided:
            require_divided(name, model, shards)
    assert isinstance(model, PreTrainedModel)
    return model


def _mapping(config: PreTrainedConfig) -> Any:
    """Where its class is listed; None: nowhere that is served."""
    if config.model_type in FAMILIES:
        return MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    return MODEL_FOR_CAUSAL_LM_MAPPING if causal else None


def _auto(config: PreTrainedConfig) -> Any:
    reads_images = config.model_type in FAMILIES
    return AutoModelForImageTextToText if reads_images else AutoModelForCausalLM


def _class_of(config: PreTrainedConfig) -> type[PreTrainedModel]:
    found: Any = _mapping(config)[type(config)]
    made: type[PreTrainedModel] = found[0] if isinstance(found, tuple) else found
    return made


def _not_converted(reports: Iterable[str]) -> list[str]:
    """Weights that are put together from several of the file, and could not be."""
    lines = (line for report in reports for line in report.splitlines())
    cells = ([cell.strip() for cell in line.split("|")] for line in lines)
    return sorted({row[0] for row in cells if len(row) > 1 and row[1] == "CONVERSION"})


def _require_whole(name: str, kind: str, loaded: dict[str, Any]) -> None:
    if missing := sorted(loaded["missing_keys"]):
        raise ModelError(
            f"{name}: its weights lack {named(missing)}, which a {kind} of its config.json has; "
            "fetch the checkpoint again, or correct config.json"
        )
    if unknown := sorted(loaded["unexpected_keys"]):
        raise ModelError(
            f"{name}: its weights have {named(unknown)}, which a {kind} of its config.json does "
            "not have; the file belongs to another model, or config.json to another file"
        )
    if misshapen := sorted(loaded["mismatched_keys"], key=str):
        shapes = [f"{key} is {tuple(has)}, not {tuple(wants)}" for key, has, wants in misshapen]
        raise ModelError(
            f"{name}: its weights have other shapes than a {kind} of its config.json: "
            f"{named(shapes)}"
        )
    if said := loaded.get("error_msgs"):
        raise ModelError(f"{name}: its weights cannot be loaded: {said[0]}")


def _require_numbers(name: str, folder: Path, model: PreTrainedModel) -> None:
    """Refuse integers in place of floating-point weights: the library would convert them as is."""
    if getattr(model.config, "quantization_config", None) is not None:
        return  # such weights are another loader's to judge
    wanted = {key for key, each in model.named_parameters() if each.is_floating_point()}
    integers = [
        f"{key} ({dtype})"
        for file in sorted(folder.glob("*.safetensors"))
        for key, dtype in stored_dtypes(file)
        if key in wanted and dtype[0] in "IUB" and dtype != "BF16"
    ]
    if integers:
        raise ModelError(
            f"{name}: its weights are integers where a {type(model).__name__} has floating-point "
            f"numbers: {named(integers)}; take a checkpoint that is not quantized"
        )


def named(names: Iterable[str]) -> str:
    """The first few of `names`, and how many there are besides."""
    every = list(names)
    rest = len(every) - _NAMED
    return ", ".join(every[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _not_loaded(name: str, error: Exception, reports: Iterable[str]) -> ModelError:
    if parts := _not_converted(reports):
        return ModelError(
            f"{name}: the weights that {named(parts)} is put together from are "
            "missing, unexpected or misshapen; fetch the checkpoint again, or correct config.json"
        )
    if isinstance(error, MemoryError) or "allocate" in f"{error}":
        return ModelError(
            f"{name}: no memory for its weights ({shortly(error)}); take a smaller model, or "
            "model.dtype: bfloat16"
        )
    folder = folder_of(name)
    if isinstance(error, SafetensorError | OSError) and folder is not None:
        try:
            require_safetensors(name, folder)
        except ModelError as found:
            return found
        return ModelError(f"{name}: its weights cannot be read: {shortly(error)}")
    if isinstance(error, OSError):
        return ModelNotFound(f"{name}: its weights could not be had from the hub: {shortly(error)}")
    return ModelError(
        f"{name}: {_LIBRARY} cannot build a model of its config.json: {shortly(error)}"
    )


# --- what a config.json says


def _read_config(name: str) -> dict[str, Any]:
    """A directory's config.json. Raises `ModelNotFound` and `ModelError`."""
    file = Path(name) / "config.json"
    if not file.is_file():
        raise ModelNotFound(f"{name} has no config.json, so it is no model{_instead(Path(name))}")
    return read_object(file, name)


def _stated(name: str) -> dict[str, Any]:
    folder = folder_of(name)
    try:
        return {} if folder is None else _read_config(str(folder))
    except ModelError:
        return {}


def _instead(folder: Path) -> str:
    names = {each.name for each in folder.iterdir()}
    if "adapter_config.json" in names:
        return "; it is an adapter: merge it into its base model first"
    if any(each.endswith(".gguf") for each in names):
        return "; it has GGUF files, and only safetensors are read"
    inside = [each for each in sorted(names) if (folder / each / "config.json").is_file()]
    return f"; its folder {inside[0]!r} is one: {folder / inside[0]}" if inside else ""


def _unknown(stated: dict[str, Any]) -> str | None:
    """Why no configuration class takes this, if that is why."""
    kind = stated.get("model_type")
    if isinstance(kind, str) and kind in CONFIG_MAPPING:
        return None
    ours = "; code that comes with a model is never run" if "auto_map" in stated else ""
    if not isinstance(kind, str):
        return f"its config.json names no model_type, so the kind of model is unknown{ours}"
    near = did_you_mean(kind, CONFIG_MAPPING)
    near = near if "mean" in near else ""
    return f"{_LIBRARY} has no model_type {kind!r}{near}; a newer one may have it{ours}"


def _not_causal(config: Any) -> str:
    if getattr(config, "is_encoder_decoder", False):
        what = ", which is an encoder-decoder"
    elif any(hasattr(config, part) for part in ("vision_config", "audio_config")):
        what = ", which reads other media beside text"
    elif hasattr(config, "image_size"):
        what = ", which reads images"
    else:
        what = ""
    return (
        f"{_LIBRARY} has no causal language model of model_type {config.model_type!r}{what}; "
        f"of models that read images Stepweave serves {' and '.join(FAMILIES)} "
        "(docs/reference/models-tested.md lists families)"
    )
