"""What a pipeline leaves open, by the kind of device that its model lies on, and by its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..backends.executor_names import streams_behind
from ..backends.registry import HOST, backend_of_name
from ..graph.errors import StepweaveError
from .yaml_source import Located, read_yaml

GPU = Path(__file__).parent / "presets" / "gpu.yaml"
RANKS = Path(__file__).parent / "presets" / "ranks.yaml"


def presets_below(source: Located) -> Iterator[Located]:
    """The keys that the merged file `source` is laid over, those that go before others last."""
    if not _on_host(source):
        yield _read(GPU)
    if _on_ranks(source):
        yield _read(RANKS)


@cache
def _read(path: Path) -> Located:
    return read_yaml(path, f"configs/presets/{path.name}")


def _on_ranks(source: Located) -> bool:
    """Whether several ranks share each layer. A wrong number is told where it is read."""
    count = source.at(("model", "parallel", "tensor")).value
    return type(count) is int and count > 1


def _on_host(source: Located) -> bool:
    """Whether the model lies on the CPU. What is wrong with a name is told where it is read."""
    device = _text(source, "auto", "model", "device")
    try:
        if device == "auto":
            streams = streams_behind(_text(source, "threads", "executor"))
            device = HOST if streams is None else streams.name
        return backend_of_name(device).on_host
    except StepweaveError:
        return True


def _text(source: Located, default: str, *keys: str) -> str:
    """What stands below `keys`, if that is a text."""
    part: Located | None = source
    for key in keys:
        part = part.value.get(key) if part is not None and isinstance(part.value, dict) else None
    return part.value if part is not None and isinstance(part.value, str) else default
