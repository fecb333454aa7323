"""Starting a command once for each rank, by torch's own launcher."""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Sequence


def launch(size: int, arguments: Sequence[str]) -> int:
    """Run `python -m stepweave ARGUMENTS` as `size` ranks on this machine; the exit status.

    It is that of the rank that failed first, 0 if none did. Signals are passed on to the ranks.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # What a rank has to say of its failure it has said itself.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
    )
    command = ("-u", "-m", "stepweave", *arguments)
    try:
        elastic_launch(config, sys.executable)(*command)
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        status = first.exitcode
        return 128 - status if status < 0 else status
    except SignalException as error:
        return 128 + error.sigval
    return 0
