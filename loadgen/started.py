"""A server that runs for as long as a block does."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from ..configs.errors import ConfigError, Mark

ENDING_S = 60.0  # that a server may take to end
_READY = re.compile(rb"\bat (https?://\S+)")  # what it prints when it takes requests


@asynccontextmanager
async def started(
    command: Sequence[str], name: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[str]:
    """The URL of a server that this command starts; it ends with the block.

    `env`: its environment, if not that of this process. Raises `ConfigError` with the last line
    that it wrote if it ends before it is ready.
    """
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=said,
            env=env,
        )
        try:
            assert process.stdout is not None, "it was made a pipe"
            async for line in process.stdout:
                if ready := _READY.search(line):
                    yield ready[1].decode()
                    return
            said.seek(0)
            lines = said.read().decode("utf-8", errors="replace").strip().splitlines() or [""]
            raise ConfigError.at(Mark(name), f"the server did not start: {lines[-1]}")
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask it to end, and end it if it does not."""
    with suppress(ProcessLookupError):
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), ENDING_S)
        except TimeoutError:
            process.kill()
    await process.wait()
