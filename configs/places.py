"""Where a pipeline runs, as a file says it: devices and executors, by the names of backends."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from ..backends.errors import NoDevice
from ..backends.executor_names import executor_names, streams_behind
from ..backends.registry import backend_of_name, known_backends, nearest_device
from ..graph.errors import StepweaveError


def _a_device(name: str) -> str:
    if name != "auto":
        try:
            backend_of_name(name)
        except NoDevice as error:
            kinds = known_backends()
            raise ValueError(
                f"{name[:60]!r} is not a device{nearest_device(name, kinds)}: use auto, "
                f"{', '.join(kinds)}, or one by its number, such as {kinds[-1]}:1"
            ) from error
    return name


def _an_executor(name: str) -> str:
    try:
        streams_behind(name)
    except StepweaveError as error:
        raise ValueError(f"{error}") from error
    return name


def _pattern(schema: dict[str, Any]) -> None:
    schema["pattern"] = f"^(auto|({'|'.join(known_backends())})(:[0-9]{{1,3}})?)$"


def _names(schema: dict[str, Any]) -> None:
    """Editors get the names that this installation has."""
    schema["enum"] = [*executor_names()]


Device = Annotated[str, AfterValidator(_a_device), Field(json_schema_extra=_pattern)]
Executor = Annotated[str, AfterValidator(_an_executor), Field(json_schema_extra=_names)]
