"""`KEY=VALUE` of an option that may be repeated, such as `--set dotted.key=value`."""

from __future__ import annotations

from collections.abc import Iterable

from ..configs.errors import ConfigError, Mark


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
