"""A program of this folder, run as several ranks by torch's launcher: what every rank wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIMIT_S = 600


def ranks(program: str, out: Path, *arguments: str, size: int = 2) -> list[Any]:
    """What `program` wrote on each rank. Raises `AssertionError` where a rank failed."""
    found = started(program, out, *arguments, size=size)
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-8000:]
    return written(out, size)


def written(out: Path, size: int = 2) -> list[Any]:
    """What each rank has written so far; None: nothing."""
    files = [out / f"{rank}.json" for rank in range(size)]
    return [json.loads(each.read_text()) if each.exists() else None for each in files]


def started(
    program: str, out: Path, *arguments: str, size: int = 2
) -> subprocess.CompletedProcess[str]:
    """The launcher's own end, with what was printed."""
    out.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", f"{size}", str(HERE / program), str(out), *arguments),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def environment() -> dict[str, str]:
    """That of a rank on a CPU."""
    root = HERE.parents[1]  # programs import what tests share
    more = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"{root}"}
    return {**os.environ, **more}


def write(out: str, found: Any) -> None:
    """Note what this rank has found, whole or not at all."""
    file = Path(out) / f"{os.environ['RANK']}.json"
    part = file.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.replace(file)
