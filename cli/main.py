"""The console script, and every verb together."""

from __future__ import annotations

import sys
from io import TextIOWrapper

from .bench import bench_app
from .graph import graph_app
from .importing import own_process
from .reporting import open_closed_streams
from .signals import raise_on_term
from .verbs import app as app

app.add_typer(graph_app, name="graph", help="Draw, explain and compare plans.")
app.add_typer(bench_app, name="bench", help="Measure throughput and latencies under load.")


def main() -> None:
    """The console script."""
    own_process()
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a letter shows its number
            stream.reconfigure(errors="backslashreplace")
    raise_on_term()
    app()
