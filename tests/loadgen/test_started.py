"""A server that is started for a block, and ends with it."""

from __future__ import annotations

import asyncio
import sys

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.loadgen import started as module
from stepweave.loadgen.started import started

SERVES = """
import signal, sys
print("one moment", flush=True)
print("serving it at http://127.0.0.1:7", flush=True)
signal.signal(signal.SIGTERM, {handler})
signal.pause()
sys.exit(0)
"""


def test_it_gives_the_url_that_the_server_prints_and_ends_it() -> None:
    async def main() -> str:
        code = SERVES.replace("{handler}", "lambda number, frame: sys.exit(0)")
        async with started([sys.executable, "-c", code], "it") as url:
            return url

    assert asyncio.run(main()) == "http://127.0.0.1:7"


def test_it_may_have_another_environment() -> None:
    async def main() -> str:
        code = "import os; print('at http://' + '+'.join(sorted({'ONLY', 'PATH'} & {*os.environ})))"
        async with started([sys.executable, "-c", code], "it", {"ONLY": "this"}) as url:
            return url

    assert asyncio.run(main()) == "http://ONLY"


def test_one_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDING_S", 0.01)

    async def main() -> None:
        code = SERVES.replace("{handler}", "signal.SIG_IGN")
        async with started([sys.executable, "-c", code], "it"):
            pass

    asyncio.run(main())


def test_one_that_ends_before_it_is_ready_says_why() -> None:
    async def main() -> None:
        command = [sys.executable, "-c", "import sys; sys.exit('first\\nthe port is taken')"]
        async with started(command, "a.yaml"):
            pass

    with pytest.raises(ConfigError, match=r"a\.yaml: the server did not start: the port is taken"):
        asyncio.run(main())
