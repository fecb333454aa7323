"""`stepweave profile`: time the ops of a pipeline, and write them down as a costs file."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..configs.costs import CostsFile, costs_text
from ..configs.errors import ConfigError, Mark
from .output import check_writable, save
from .planned import runnable
from .reporting import say
from .requested import requested
from .settings import of_model

if TYPE_CHECKING:
    from ..configs.schema import PipelineConfig
    from ..serving.profiling import Profile, Profiled
    from ..serving.resumption_costs import ResumptionCosts
    from ..timelines.profile import Spread
    from .verbs import ProfileOptions

MAX_SIZES = 64


def profile(asked: ProfileOptions) -> None:
    """Time it, write the file, print what was found."""
    rows, path = _batch_sizes(asked.rows), _output_path(asked)
    config = runnable(asked.config, of_model(asked.settings, asked.model))
    lines = requested(config, asked)
    from ..serving.profiling import profile as profiled  # only now: it takes seconds

    def on_round(count: int, drafts: int | None, number: int, steps: int) -> None:
        what = f"round {number} of {asked.rounds}, {steps} steps timed" if number else "warmed up"
        of = "" if drafts is None else f", {drafts} draft{'s' * (drafts != 1)}"
        say(f"{count} row{'s' * (count != 1)}{of}: {what}")

    found = profiled(
        config, lines, rows=rows, rounds=asked.rounds, drafts=asked.drafts, on_round=on_round
    )
    name = asked.config
    save(
        path,
        costs_text(_file(config, name, found.sizes), f"Written by `stepweave profile {name}`."),
    )
    print(json.dumps(_json(name, path, found)) if asked.json else _text(path, found), end="\n")


def _batch_sizes(text: str) -> tuple[int, ...]:
    """`1,4,8`, in ascending order. Raises `ConfigError`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(
        part.isascii() and part.isdecimal() and 1 <= int(part[:9]) <= 1024 for part in parts
    ):
        raise ConfigError.at(Mark(f"--rows {text}"), "write batch sizes from 1 to 1024, as 1,4,8")
    if len(parts) > MAX_SIZES:
        raise ConfigError.at(Mark("--rows"), f"has more than {MAX_SIZES} batch sizes")
    return tuple(sorted({int(part) for part in parts}))


def _output_path(asked: ProfileOptions) -> Path:
    """Where the file goes. Raises `ConfigError` if it would replace something unasked."""
    path = asked.output or Path(f"{Path(asked.config).name.removesuffix('.yaml')}.costs.yaml")
    check_writable(path)
    if path.is_file() and not asked.force:
        raise ConfigError.at(
            Mark(str(path)), "exists: add --force to replace it, or choose --output"
        )
    return path


def _file(config: PipelineConfig, name: str, found: Sequence[Profiled]) -> CostsFile:
    from ..serving.loading import threads_of

    ops = dict.fromkeys(op for each in found for op in each.ops)
    return CostsFile.model_validate(
        {
            "version": 1,
            "basis": "measured",
            "describes": f"{name}: model {config.model.name}, {config.model.dtype}",
            "device": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "executor": f"{config.executor}, depth {config.depth}, "
            f"torch threads {threads_of(config) or 'by default'}",
            "versions": {
                "python": platform.python_version(),
                **{each: version(each) for each in ("torch", "transformers")},
            },
            "date": date.today().isoformat(),
            "notes": ["decode steps with all rows busy; steps with prefill do not count"],
            "batch": max(each.rows for each in found),
            "period_us": {str(each.rows): _point(each.period) for each in found},
            "ops": {
                op: {
                    "rows": {
                        str(each.rows): _point(each.ops[op]) for each in found if op in each.ops
                    }
                }
                for op in ops
            },
        }
    )


def _point(spread: Spread) -> dict[str, float]:
    """To a tenth of a µs: no clock says more."""
    p10, p50, p90, mean = (round(figure, 1) for figure in spread[:4])
    return {"p50": p50, "p10": p10, "p90": p90, "mean": mean, "samples": spread.samples}


def _json(name: str, path: Path, found: Profile) -> dict[str, Any]:
    return {
        "config": name,
        "file": str(path),
        "profiles": [
            {
                "rows": each.rows,
                "ops_us": {op: spread._asdict() for op, spread in each.ops.items()},
                "period_us": each.period._asdict(),
                "predicted_period_us": each.predicted_us,
                "error": each.error,
                "predicted_mean_us": each.predicted_mean_us,
                "mean_error": each.mean_error,
                "tokens_per_step": each.tokens_per_step,
            }
            for each in found.sizes
        ],
        **({"resumption": _resumption(costs)} if (costs := found.resumption) else {}),
        **({"drafting": vars(periods)} if (periods := found.drafting) else {}),
    }


def _resumption(found: ResumptionCosts) -> dict[str, Any]:
    return {f"{name}_us": spread._asdict() for name, spread in vars(found).items()}


def _text(path: Path, found: Profile) -> str:
    """A table of ops for each batch size, and how well the plan foretells the time per step."""
    lines = [line for each in found.sizes for line in _table(each)]
    if found.resumption is not None:
        lines.append(f"policies: {{resumption: {found.resumption}}}")
    if found.drafting is not None:
        lines.append(f"policies: {{drafting: {found.drafting}}}")
    return "\n".join([*lines, f"written to {path}"])


def _table(found: Profiled) -> list[str]:
    one = "1 row" if found.rows == 1 else f"{found.rows} rows"
    width = max(len(op) for op in found.ops)
    return [
        f"{one}: {found.period.samples} step times, {found.tokens_per_step:.2f} tokens per row and "
        "step",
        f"  {'µs':{width}} {'p10':>9} {'p50':>9} {'p90':>9} {'mean':>9}",
        *(_line(op, spread, width) for op, spread in _by_time(found.ops)),
        _line("time per step", found.period, width),
        f"  {'predicted':{width}} {'':9} {found.predicted_us:9,.0f} {'':9} "
        f"{found.predicted_mean_us:9,.0f}   error {found.error:+.1%}, of means "
        f"{found.mean_error:+.1%}",
        "",
    ]


def _line(name: str, spread: Spread, width: int) -> str:
    figures = " ".join(f"{figure:9,.0f}" for figure in spread[:4])
    return f"  {name:{width}} {figures}"


def _by_time(ops: Mapping[str, Spread]) -> list[tuple[str, Spread]]:
    return sorted(ops.items(), key=lambda item: -item[1].p50)
