"""Triton's interpreter in a process of its own, where kernels run on the CPU.

Triton decides at import whether kernels are compiled or interpreted, and transformers imports
Triton, so the process of the other tests cannot be the one that interprets.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]

PRODUCTS = {"OPENBLAS_CORETYPE": "Sandybridge"}
"""The interpreter multiplies matrices with NumPy. Of its library's kernels for various processors
some, like those for Haswell and Zen, round a row by where it stands in the matrix, which no GPU
does; this one does not. Elsewhere than on x86 the variable says nothing."""


class Interpreter:
    """Calls functions by name, over there."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """What `module:function` returns; `[result, *args]` if it returns None.

        Arguments are copied, so one that the function changes can be seen in the answer only.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((name, args, kwargs), self._process.stdin)
        self._process.stdin.flush()
        failed, answer = pickle.load(self._process.stdout)
        if failed:
            raise RuntimeError(f"in the interpreter: {answer}")
        return answer


def why_no_interpreter() -> str | None:
    """Why there is none in this installation; None if there is one."""
    try:
        triton = version("triton")
    except PackageNotFoundError:
        return "Triton is not installed; it has builds for Linux only"
    if tuple(map(int, triton.split(".")[:2])) < (3, 7):
        return f"the interpreter of Triton {triton} fails with NumPy 2.4"
    return None


@contextmanager
def interpreter(**environment: str) -> Iterator[Interpreter]:
    """A process with `TRITON_INTERPRET=1` and these variables."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **PRODUCTS, **environment, "TRITON_INTERPRET": "1"},
    )
    with process:
        try:
            yield Interpreter(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def _serve(calls: IO[bytes], answers: IO[bytes]) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            name, args, kwargs = pickle.load(calls)
        except EOFError:
            return
        try:
            module, function = name.split(":")
            result = getattr(importlib.import_module(module), function)(*args, **kwargs)
            answer = (False, [None, *args] if result is None else result)
        except Exception:
            answer = (True, traceback.format_exc())
        whole = io.BytesIO()  # half an answer would never end
        pickle.dump(answer, whole)
        answers.write(whole.getvalue())
        answers.flush()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints is no answer
    _serve(sys.stdin.buffer, answers)
