"""`--set dotted.key=value` on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from ..configs.errors import ConfigError, Mark


def overrides(settings: Sequence[str] | None) -> dict[str, str]:
    """The settings by key; the last one wins."""
    found: dict[str, str] = {}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError.at(Mark(f"--set {setting}"), "write it as --set dotted.key=value")
        found[key.strip()] = value
    return found
