"""The runtimes that are no part of ours: environments of their own, and the weights in their form.

llama-cpp-python is built from source (five minutes on two cores; CMake and a C++ compiler are
needed). OpenVINO's has torch too, which its converter reads models with.

    python -m benchmarks.peers.environments [--environments build/peers]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKERS = Path(__file__).parent / "workers"
HERE = ROOT / "build" / "peers"
PINNED = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
TORCH = next(line for line in PINNED if line.startswith("torch=="))
"""Ours. Of transformers OpenVINO wants an older one than we pin."""


@dataclass(frozen=True)
class Environment:
    """What is installed, and what is taken out again; `weights` says what a model becomes."""

    name: str
    installs: tuple[str, ...]
    removes: tuple[str, ...] = ()

    def python(self, parent: Path) -> Path:
        """Its Python, which is there if `complete` was written."""
        return parent / self.name / "bin" / "python"

    def made(self, parent: Path) -> bool:
        """Whether it was installed to the end."""
        return (parent / self.name / "complete").exists()

    def make(self, parent: Path) -> None:
        """Install it. Raises `CalledProcessError`, after pip has said why."""
        folder = parent / self.name
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [str(self.python(parent)), "-m", "pip"]
        subprocess.run([*pip, "install", "-q", *self.installs], check=True)
        if self.removes:
            subprocess.run([*pip, "uninstall", "-q", "-y", *self.removes], check=True)
        (folder / "complete").touch()


LLAMA_CPP = Environment("llama_cpp", ("llama-cpp-python==0.3.36", "gguf==0.19.0", "numpy"))
# torchvision of the package index does not fit a CPU build of torch, and models of text need none.
OPENVINO = Environment(
    "openvino",
    ("openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", TORCH),
    ("torchvision",),
)
ENVIRONMENTS = {each.name: each for each in (LLAMA_CPP, OPENVINO)}


def gguf(model: Path, dtype: str, parent: Path) -> Path:
    """The model as llama.cpp reads it, made if it is not there."""
    target = model / f"{dtype}.gguf"
    if not target.exists():
        _convert(LLAMA_CPP, parent, "to_gguf.py", model / "target", target, dtype)
    return target


def openvino(model: Path, parent: Path) -> Path:
    """The model as OpenVINO reads it, made if it is not there."""
    target = model / "openvino"
    if not target.exists():
        _convert(OPENVINO, parent, "to_openvino.py", model / "target", target)
    return target


def _convert(environment: Environment, parent: Path, script: str, *arguments: object) -> None:
    line = [str(environment.python(parent)), str(WORKERS / script), *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{script} failed: {done.stderr.strip().splitlines()[-1:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--environments", type=Path, default=HERE, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", choices=sorted(ENVIRONMENTS), metavar="NAME")
    given = parser.parse_args()
    given.environments.mkdir(parents=True, exist_ok=True)
    for name in given.only or ENVIRONMENTS:
        if not ENVIRONMENTS[name].made(given.environments):
            print(f"installing {name} into {given.environments / name}", flush=True)
            ENVIRONMENTS[name].make(given.environments)
        print(f"{name}: {ENVIRONMENTS[name].python(given.environments)}")


if __name__ == "__main__":
    main()
