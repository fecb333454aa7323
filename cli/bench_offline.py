"""`stepweave bench offline`: the engine of a pipeline under load, without HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..loadgen.load import Load, Result
from ..loadgen.offline import offline_bench
from ..loadgen.progress import progress_bar
from ..loadgen.session import Session
from .bench_load import check_files, load_of, parameters_of
from .bench_serve import report, status, until_signal
from .loading import loaded_async
from .planned import runnable
from .settings import of_model

if TYPE_CHECKING:
    from ..configs.schema import PipelineConfig
    from .bench import LoadOptions, OfflineBenchOptions


def bench_offline(asked: OfflineBenchOptions) -> int:
    """1 if a request failed, 130 or 143 if Ctrl-C or TERM ended it early."""
    check_files(asked.output, asked.plot)
    load = load_of(asked)
    config = runnable(asked.config, of_model(asked.settings, asked.model))
    with progress_bar(load.count) as on_progress:
        session = Session(on_progress=on_progress)
        result, interruption = until_signal(
            session, lambda: offline_turn(session, config, asked.config, load, asked)
        )
    report(result, asked, "Offline Benchmark Result", asked.plot)
    return status(result, interruption)


async def offline_turn(
    session: Session, config: PipelineConfig, name: str, load: Load, asked: LoadOptions
) -> Result:
    """Load the engine, run, and close it."""
    async with loaded_async(config) as llm:
        return await offline_bench(session, llm, load, asked.endpoint, parameters_of(asked), name)
