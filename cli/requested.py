"""Which requests a `run` is for: the command line's prompts, a file's, else the config's own."""

from __future__ import annotations

import sys
from pathlib import Path

from ..configs.errors import ConfigError, Mark
from ..configs.prompts import (
    MAX_FILE_BYTES,
    PromptLine,
    prompt_of,
    prompts_of,
    read_prompts,
)
from ..configs.schema import PipelineConfig
from ..configs.schema_file import read_schema_file
from .options import OfPrompts

STDIN = "standard input"


def requested(
    config: PipelineConfig, asked: OfPrompts, schema: Path | None = None
) -> tuple[PromptLine, ...]:
    """The requests in order. `schema` binds the prompts of the command line only."""
    if schema is not None and not asked.prompt:
        raise ConfigError.at(Mark("--schema"), "needs a --prompt to apply to")
    grammar = {"structured_outputs": {"json": read_schema_file(schema)}} if schema else {}
    found = [prompt_of({"prompt": text, **grammar}, "--prompt") for text in asked.prompt or ()]
    if asked.prompts is not None:
        found += lines_of(asked.prompts)
    if not found:
        found = list(config.prompts)
    if not found:
        raise ConfigError.at(Mark("prompts"), "none given: add --prompt TEXT or --prompts FILE")
    if asked.max_tokens is not None:
        found = [line.model_copy(update={"max_tokens": asked.max_tokens}) for line in found]
    return tuple(found)


def lines_of(file: Path) -> tuple[PromptLine, ...]:
    """The requests of a prompts file; - is standard input. Raises `ConfigError`."""
    return prompts_of(_read_stdin(), STDIN) if str(file) == "-" else read_prompts(file)


def _read_stdin() -> bytes:
    try:
        if sys.stdin is None:
            raise ConfigError.at(Mark(STDIN), "cannot be read: it is closed")
        return sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError.at(Mark(STDIN), f"cannot be read: {error.strerror}") from error
