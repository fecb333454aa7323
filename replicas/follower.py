"""A rank that follows, in a process of its own: `python -m stepweave.replicas.follower`.

The pipeline is the first line of its standard input, which stays open for as long as the process
lives that has started it.
"""

from __future__ import annotations

import os
import sys
import threading
from io import FileIO


def main() -> int:
    """Serve what rank 0 serves; 0 after an ordered end."""
    from ..configs.schema import PipelineConfig
    from ..graph.errors import StepweaveError
    from ..serving.llm import LLM

    told = FileIO(0)
    config = PipelineConfig.model_validate_json(told.readline())
    threading.Thread(target=_end_with, args=(told,), daemon=True).start()
    try:
        with LLM(pipeline=config) as llm:
            llm.follow()
    except StepweaveError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _end_with(told: FileIO) -> None:
    """With whoever has its other end: an engine may be loading, or wait for a rank that is gone."""
    while told.read(1):
        pass
    os._exit(1)


if __name__ == "__main__":
    raise SystemExit(main())
