"""`stepweave bench compare`: two endpoints or two pipelines in turn."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..configs.errors import ConfigError, Mark
from ..loadgen.client import Target
from ..loadgen.compare import Comparison, Turn, compare, comparison_table
from ..loadgen.load import Load, Result
from ..loadgen.progress import progress_bar
from ..loadgen.runner import Seen
from ..loadgen.served import serve_bench
from ..loadgen.session import Session
from ..loadgen.started import started
from .bench_load import check_files, load_of, target_of
from .bench_offline import offline_turn
from .bench_serve import tell_errors, until_signal
from .output import save
from .planned import runnable
from .reporting import UNSOUND, say
from .settings import pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..configs.schema import PipelineConfig
    from .bench import CompareOptions

_KEYS = "STEPWEAVE_API_KEY"  # a server asks for what this variable says


def bench_compare(asked: CompareOptions) -> int:
    """1 if a request failed, 130 or 143 if Ctrl-C or TERM ended it early."""
    check_files(asked.output)
    load = load_of(asked)
    if asked.offline and not any(map(_is_url, (asked.a, asked.b))):
        _refuse_http_options(asked)
    with progress_bar(load.count * asked.rounds * 2) as bar:
        progress = _Progress(bar, load.count)
        session = Session(on_progress=progress.seen)
        a = _side(session, asked, asked.a, "--set-a", asked.set_a)
        b = _side(session, asked, asked.b, "--set-b", asked.set_b)
        names, turns = (a[0], b[0]), (a[1], b[1])
        found, interruption = until_signal(
            session, lambda: compare(names, turns, load, asked.rounds, progress.next_turn)
        )
    _report(found, asked)
    if interruption:
        done = f"{len(found.rounds)} of {asked.rounds} rounds were done"
        say(f"{interruption.word}: {done}")
        return interruption.code
    return UNSOUND if found.failed else 0


def _is_url(side: str) -> bool:
    return side.startswith(("http://", "https://"))


def _refuse_http_options(asked: CompareOptions) -> None:
    """Raises `ConfigError` for what nobody would heed; but a key may be in the environment."""
    for name in ("model", "header", "extra_body", "timeout"):
        if getattr(asked, name) != getattr(type(asked), name):
            said = "is for endpoints and servers, and with --offline there is none: drop one"
            raise ConfigError.at(Mark(f"--{name.replace('_', '-')}"), said)


def _side(
    session: Session, asked: CompareOptions, name: str, option: str, settings: list[str] | None
) -> tuple[str, Turn]:
    """What a side is called, and how it takes its turn. Raises `ConfigError` or `Refused`."""
    changes = pairs(option, settings, "dotted.key=value")
    if _is_url(name):
        if changes:
            raise ConfigError.at(Mark(option), f"is for pipelines, and {name} is an endpoint")
        target = target_of(asked, asked, name, "the endpoint")
        return name, partial(_endpoint_turn, session, target, asked.model)
    config = runnable(name, changes, option)  # refused before anything runs
    called = ", ".join([name, *(f"{key}={value}" for key, value in changes.items())])
    if asked.offline:
        return called, partial(_offline_turn, session, config, called, asked)
    return called, partial(_served_turn, session, asked, name, changes)


async def _endpoint_turn(session: Session, target: Target, model: str | None, load: Load) -> Result:
    return await serve_bench(session, target, model, load)


async def _offline_turn(
    session: Session, config: PipelineConfig, name: str, asked: CompareOptions, load: Load
) -> Result:
    return await offline_turn(session, config, name, load, asked)


async def _served_turn(
    session: Session, asked: CompareOptions, name: str, changes: Mapping[str, str], load: Load
) -> Result:
    """A server of its own for the turn, so that the sides do not share memory or caches.

    It asks for no key: the load may have none, or that of another endpoint.
    """
    settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "stepweave", "serve", name, "--port", "0", *settings]
    env = {key: value for key, value in os.environ.items() if key != _KEYS}
    async with started(command, name, env) as url:
        target = target_of(asked, asked, url, "the server")
        return await serve_bench(session, target, asked.model, load)


class _Progress:
    """One bar over all turns."""

    def __init__(self, bar: Callable[[Seen], None] | None, count: int) -> None:
        self._bar, self._count, self._turn = bar, count, -1

    def next_turn(self, number: int, name: str) -> None:
        self._turn += 1

    def seen(self, seen: Seen) -> None:
        if self._bar is not None:
            self._bar(replace(seen, ended=seen.ended + self._turn * self._count))


def _report(found: Comparison, asked: CompareOptions) -> None:
    if asked.output is not None:
        save(asked.output, json.dumps(found.to_json(requests=True), indent=2) + "\n")
        say(f"wrote {asked.output}")
    if asked.json:
        print(json.dumps(found.to_json(requests=False)))
    else:
        print(comparison_table(found))
    sys.stdout.flush()
    for both in found.rounds:
        for name, result in zip(found.names, both, strict=True):
            tell_errors(result, f"{name}: ")
