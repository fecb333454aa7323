"""Load generators of others: how each is called, what is read, and which runs do not count."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from benchmarks import third_party
from benchmarks.third_party import OUTPUT, PROGRAMS, TRACE, Load, Program

STUB = """#!{python}
import json, pathlib, sys

given, here = sys.argv[1:], pathlib.Path.cwd()
assert (here / "tokenizer" / "tokenizer.json").exists()
outputs = {outputs}
if "mooncake.jsonl" in given or any("azure.jsonl" in each for each in given):
    lines = (here / ("mooncake.jsonl" if {aiperf} else "azure.jsonl")).read_text().splitlines()
    assert [json.loads(line)["output_length"] for line in lines] == outputs
else:
    (count,) = [
        int(value.rpartition("=")[2])
        for option, value in zip(given, given[1:])
        if option == "--request-count" or value.startswith("kind=max_requests")
    ]
    outputs = [{output}] * count
failed, tokens = {failed}, sum(outputs)
times = {{"p50": 2.0, "p99": 3.0}}
if {aiperf}:
    (here / "out").mkdir()
    (here / "out" / "profile_export_console.txt").write_text("a table of aiperf")
    said = {{
        "time_to_first_token": times,
        "inter_token_latency": times,
        "request_count": {{"avg": len(outputs) - failed}},
        "completed_request_count": {{"avg": len(outputs)}},
        "total_usage_completion_tokens": {{"avg": tokens}},
        "output_token_throughput": {{"avg": 7.5}},
    }}
    (here / "out" / "profile_export_aiperf.json").write_text(json.dumps(said))
else:
    metrics = {{
        "request_totals": {{
            "successful": len(outputs) - failed, "errored": failed, "incomplete": 0
        }},
        "time_to_first_token_ms": {{"successful": {{"percentiles": times}}}},
        "inter_token_latency_ms": {{"successful": {{"percentiles": times}}}},
        "output_token_count": {{"successful": {{"total_sum": tokens}}}},
        "output_tokens_per_second": {{"successful": {{"mean": 7.5}}}},
    }}
    (here / "out.json").write_text(json.dumps({{"benchmarks": [{{"metrics": metrics}}]}}))
    print("before ℹ Run Summary: a table of guidellm ✔ Benchmarking complete")
"""


def stub(program: Program, parent: Path, failed: int = 0) -> Path:
    """An environment whose program writes what the real one would, of requests that went well."""
    home = parent / f"{program.name}-{program.version}"
    (home / "bin").mkdir(parents=True)
    (home / "complete").touch()
    name, aiperf = program.name, program.name == "aiperf"
    outputs = [output for _, _, output in TRACE]
    text = STUB.format(
        python=sys.executable, outputs=outputs, output=OUTPUT, failed=failed, aiperf=aiperf
    )
    (home / "bin" / name).write_text(text, encoding="utf-8")
    (home / "bin" / name).chmod(0o755)
    return home / "bin"


@pytest.mark.parametrize("streams", [2, None])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_its_figures_and_tables_are_read(
    program: Program, streams: int | None, tmp_path: Path
) -> None:
    programs = stub(program, tmp_path)
    assert program.environment(tmp_path) == programs
    load = Load("http://127.0.0.1:1", 3, streams)
    figures, table = third_party.run(program, programs, load)
    count = 3 if streams else len(TRACE)
    tokens = 3 * OUTPUT if streams else sum(output for _, _, output in TRACE)
    assert figures == {
        "requests": count,
        "failed": 0,
        "output_tokens": tokens,
        "output_tokens_per_s": 7.5,
        "ttft_ms_p50": 2.0,
        "ttft_ms_p99": 3.0,
        "itl_ms_p50": 2.0,
        "itl_ms_p99": 3.0,
    }
    assert f"a table of {program.name}" in table


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_run_with_a_failed_request_does_not_count(program: Program, tmp_path: Path) -> None:
    programs = stub(program, tmp_path, failed=1)
    with pytest.raises(RuntimeError, match=f"{program.name}, 2 streams: requests, failed ones"):
        third_party.run(program, programs, Load("http://127.0.0.1:1", 3, 2))


@pytest.mark.nightly
def test_a_server_is_started_and_each_program_loads_it(tmp_path: Path) -> None:
    for program in PROGRAMS:
        stub(program, tmp_path)
    options = ["--requests", "2", "--environments", str(tmp_path), "--output", str(tmp_path)]
    asyncio.run(third_party.main(options))
    found = json.loads((tmp_path / "third_party.json").read_text())["programs"]
    assert {name: set(figures) for name, figures in found.items()} == {
        program.name: {"version", "1 stream", "4 streams", "16 streams", "trace"}
        for program in PROGRAMS
    }
    assert "a table of aiperf" in (tmp_path / "third_party_aiperf.txt").read_text()
