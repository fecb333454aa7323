"""`KEY=VALUE` of an option that may be repeated, such as `--set dotted.key=value`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..configs.errors import ConfigError, Mark
from ..configs.plain import located
from ..configs.stages import for_stages
from ..configs.yaml_source import Located, parse_yaml


def overrides(settings: Iterable[str] | None) -> dict[str, str]:
    """The settings by key; the last one wins. Raises `ConfigError`."""
    return pairs("--set", settings, "dotted.key=value")


def pairs(option: str, texts: Iterable[str] | None, form: str = "KEY=VALUE") -> dict[str, str]:
    """The same of any option; `form` is what a message says to write."""
    found: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError.at(Mark(f"{option} {text}"), f"write it as {option} {form}")
        found[key.strip()] = value
    return found


def told_at(option: str, settings: Mapping[str, str]) -> dict[str, Located]:
    """Settings that another option than `--set` gave: what is wrong with one is told there."""
    return {key: _read(text, Mark(f"{option} {key}={text}")) for key, text in settings.items()}


def _read(text: str, mark: Mark) -> Located:
    if not text.strip():
        return Located("", mark)
    try:
        return replace(parse_yaml(text, mark.file), mark=mark)
    except ConfigError as error:
        raise ConfigError.at(mark, error.problems[0].message) from error


def of_model(settings: Iterable[str] | None, model: str | None) -> dict[str, Any]:
    """The settings by key, and what `--model` says. Raises `ConfigError` where both say it."""
    found: dict[str, Any] = dict(overrides(settings))
    if model is not None:
        _said_once(found, "--model", "model.name")
        found["model.name"] = Located(model, Mark(f"--model {model}"))
    return found


def with_ranks(settings: Mapping[str, Any], tp: int | None, pp: int | None) -> dict[str, Any]:
    """The settings, and what `--tp` and `--pp` say. Raises `ConfigError` where both say it."""
    found: dict[str, Any] = dict(settings)
    for option, key, count in (("--tp", "tensor", tp), ("--pp", "pipeline", pp)):
        if count is not None:
            _said_once(found, option, f"model.parallel.{key}")
    if tp is not None:
        found["model.parallel.tensor"] = f"{tp}"
    if pp is None:
        return found
    mark = Mark(f"--pp {pp}")
    return found | {key: located(value, mark) for key, value in for_stages(pp, found).items()}


def _said_once(settings: Mapping[str, Any], option: str, key: str) -> None:
    if key in settings:
        raise ConfigError.at(Mark(option), f"and --set {key}: give one of them")


def in_stages(settings: Iterable[str] | None, pp: int | None) -> dict[str, Any]:
    """The settings by key, and what `--pp` says. Raises `ConfigError` where both say it."""
    return with_ranks(overrides(settings), None, pp)
