"""A line on stderr while libraries and models load, for whoever looks at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from ..configs.place import Line
from ..graph.errors import StepweaveError
from .importing import importing
from .planned import Refused

if TYPE_CHECKING:
    from ..configs.schema import PipelineConfig
    from ..serving.async_llm import AsyncLLM
    from ..serving.llm import LLM

Front = TypeVar("Front", "LLM", "AsyncLLM")


def loaded(config: PipelineConfig) -> LLM:
    """The engine of a config. Raises what `LLM` raises, and `Refused` with a node's place."""
    with _said("importing torch and transformers"), importing():
        from ..serving.llm import LLM
    return _made(LLM, config)


def loaded_async(config: PipelineConfig) -> AsyncLLM:
    """The same, for an event loop."""
    with _said("importing torch and transformers"), importing():
        from ..serving.async_llm import AsyncLLM
    return _made(AsyncLLM, config)


def _made(front: type[Front], config: PipelineConfig) -> Front:
    drafter = getattr(config.drafter, "model", None)
    with _said(f"loading {config.model.name}" + (f" and {drafter}" if drafter else "")):
        try:
            return front(pipeline=config)
        except StepweaveError as error:
            if isinstance(error.line, Line):
                raise Refused(error, error.line.mark) from error
            raise


@contextmanager
def _said(what: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    line = f"{what} …"[:79]
    sys.stderr.write(f"\r{line}")
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write(f"\r{' ' * len(line)}\r")
        sys.stderr.flush()


@contextmanager
def warming_up() -> Iterator[Callable[[int, int, str], None] | None]:
    """Graphs are captured before the clock starts; a bar says how far that is."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("capturing graphs"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, of, what: bar.update(task, completed=done, total=of, description=what)
