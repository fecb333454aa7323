"""A rank that follows, in a process of its own: `python -m stepweave.replicas.follower`.

The pipeline is its standard input. It ends with the process that started it.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Serve what rank 0 serves; 0 after an ordered end."""
    from ..configs.schema import PipelineConfig
    from ..distributed.meeting import end_with_starter
    from ..graph.errors import StepweaveError
    from ..serving.llm import LLM

    end_with_starter()  # an engine may be loading, or wait for a rank that is gone
    config = PipelineConfig.model_validate_json(sys.stdin.read())
    try:
        with LLM(pipeline=config) as llm:
            llm.follow()
    except StepweaveError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
