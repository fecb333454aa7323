"""`stepweave bench`: what it prints, what it writes, its exit status, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stepweave.cli import bench_compare
from stepweave.cli.main import app
from tests.loadgen.stub import Stub, served

SMALL = ["--num-prompts", "3", "--output-len", "4", "--input-len", "30"]


@pytest.fixture
def server() -> Iterator[Stub]:
    with served() as stub:
        yield stub


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def serve(server: Stub, *arguments: str | Path) -> Result:
    return bench("serve", "--base-url", server.url, *arguments)


def test_it_prints_the_table_and_writes_the_files(server: Stub, tmp_path: Path) -> None:
    result, plot = tmp_path / "result.json", tmp_path / "plot.svg"
    done = serve(server, *SMALL, "--max-concurrency", "2", "-o", result, "--plot", plot)
    assert done.exit_code == 0, done.output
    assert " Serving Benchmark Result " in done.stdout
    assert "Successful requests:                     3\n" in done.stdout
    assert "Total generated tokens:                  12\n" in done.stdout
    assert "Speculative Decoding" in done.stdout
    assert done.stderr.startswith(f"wrote {result}\nwrote {plot}\n")
    found = json.loads(result.read_text())
    assert (found["completed"], found["model_id"], len(found["requests"])) == (3, "good", 3)
    assert len(found["requests"][0]["itl_s"]) == 3
    assert plot.read_text().startswith("<svg")


def test_as_json_it_prints_one_object(server: Stub) -> None:
    done = serve(server, *SMALL, "--json", "--percentiles", "75", "--seed", "3")
    found = json.loads(done.stdout)
    assert (found["total_output_tokens"], found["seed"], found["request_rate"]) == (12, 3, "inf")
    assert "p75_ttft_ms" in found
    assert "requests" not in found


def test_what_is_asked_is_what_the_options_say(server: Stub, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"type": "array"}')
    options: list[str | Path] = [
        "--ignore-eos",
        "--temperature",
        "0.5",
        "--schemas",
        tmp_path,
        "--api-key",
        "k",
    ]
    more = ["--extra-body", '{"top_k": 3}', "--header", "X-A=b", "--model", "good"]
    assert serve(server, *SMALL, *options, *more).exit_code == 0
    body, headers = server.bodies[-1], server.headers[-1]
    assert body["response_format"]["json_schema"]["schema"] == {"type": "array"}
    assert (body["ignore_eos"], body["temperature"], body["top_k"]) == (True, 0.5, 3)
    assert (headers["Authorization"], headers["X-A"]) == ("Bearer k", "b")


def test_prompts_of_a_file_are_asked_again_until_there_are_enough(
    server: Stub, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one", "max_tokens": 2}\n{"prompt": "two", "temperature": 1}\n')
    done = serve(server, "--prompts", file, "--num-prompts", "5", "--max-concurrency", "1")
    assert done.exit_code == 0, done.output
    asked = [body["messages"][0]["content"] for body in server.bodies[2:]]
    assert asked == ["one", "two", "one", "two", "one"]
    assert [body["temperature"] for body in server.bodies[2:4]] == [0.0, 1.0]


def test_prompts_come_from_standard_input_too(server: Stub) -> None:
    command = ["bench", "serve", "--base-url", server.url, "--prompts", "-", "--json"]
    done = CliRunner().invoke(app, command, input='{"prompt": "one", "max_tokens": 2}\n')
    assert json.loads(done.stdout)["total_output_tokens"] == 2


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    done = bench("serve", *SMALL)
    assert done.exit_code == 2
    assert "stepweave bench: needs aiohttp: pip install 'stepweave[bench]'" in done.output


def test_a_trace_is_replayed(server: Stub, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(
        '{"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}\n'
        '{"timestamp": 9, "input_length": 600, "output_length": 2, "hash_ids": [1, 3]}\n'
    )
    done = serve(server, "--trace", file, "--speed-up", "4", "--json")
    found = json.loads(done.stdout)
    assert found["total_output_tokens"] == 5
    assert (found["workload"], found["request_rate"], found["speed_up"]) == ("trace", None, 4.0)
    assert [body["max_tokens"] for body in server.bodies[2:]] == [3, 2]


def test_a_request_that_failed_is_counted_told_and_the_exit_status(
    server: Stub, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n')
    done = serve(server, "--prompts", file, "--num-prompts", "3", "--model", "good-then-busy")
    assert done.exit_code == 1
    assert "Failed requests:                         3\n" in done.stdout
    assert done.stderr.endswith("failed, 3 of 3: HTTP 429: the queue is full\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--base-url", "localhost:8000"], "--base-url localhost:8000: write it as http://"),
        (["--trace", "none.jsonl"], "none.jsonl: cannot be read: No such file"),
        (["--prompts", "none.jsonl"], "none.jsonl: cannot be read: No such file"),
        (["--schemas", "none"], "none: cannot be read: No such file"),
        (["--trace", "t", "--prompts", "p"], "--trace: has prompts of its own"),
        (["--trace", "t", "--input-len", "3"], "--input-len: contradicts --trace"),
        (["--trace", "t", "--output-len", "3"], "--output-len: contradicts --trace"),
        (["--trace", "t", "--request-rate", "3"], "use --speed-up in place of a rate"),
        (["--trace", "t", "--burstiness", "3"], "use --speed-up in place of a rate"),
        (["--burst", "3"], "--burst: needs a rate: add --request-rate"),
        (["--burstiness", "3"], "--burstiness: needs a rate: add --request-rate"),
        (["--prompts", "p", "--prefix-len", "3"], "--prefix-len: is for random prompts"),
        (["--speed-up", "2"], "--speed-up: is for a trace: add --trace FILE"),
        (["--length-scale", "2"], "--length-scale: is for a trace"),
        (["--num-prefixes", "2"], "--num-prefixes: needs the length of a prefix: --prefix-len"),
        (["--request-rate", "0"], "--request-rate 0: must be above 0"),
        (["--request-rate", "nan"], "--request-rate nan: must be above 0"),
        (["--ramp-up-end-rps", "3"], "needs --ramp-up-strategy"),
        (["--ramp-up-strategy", "linear"], "needs --ramp-up-start-rps and --ramp-up-end-rps"),
        (
            ["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--request-rate", "3"],
            "--request-rate: contradicts --ramp-up-strategy",
        ),
        (["--percentiles", "90,x"], "--percentiles 90,x: write numbers from 0 to 100"),
        (["--percentiles", "101"], "write numbers from 0 to 100"),
        (["--percentiles", "nan"], "write numbers from 0 to 100"),
        (["--extra-body", "{"], "--extra-body: is not JSON"),
        (["--extra-body", "3"], "--extra-body: must be an object"),
        (["--extra-body", '{"max_tokens": 3}'], "cannot have 'max_tokens': use --output-len"),
        (["--extra-body", '{"model": "m"}'], "cannot have 'model': use --model"),
        (["--header", "X"], "write it as --header NAME=VALUE"),
        (["--header", "X=a\nb"], "headers are printable ASCII"),
        (["--header", "Trace Id=1"], "--header Trace Id: a name has no space, and none of"),
        (["--header", "X:=1"], "--header X:: a name has no space, and none of"),
        (["--plot", "plot.png"], "--plot plot.png: the ending must be .svg"),
        (["-o", "."], ".: is a directory"),
        (["--request-rat", "3"], "--request-rate"),
        (["--endpoint", "chta"], "'chat', 'completions'"),
    ],
)
def test_what_contradicts_itself_is_refused_before_anything_is_sent(
    arguments: list[str], said: str
) -> None:
    done = bench("serve", *arguments)
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.output.split())


def test_conversations_do_not_go_to_completions_nor_token_ids_to_chats(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"messages": [{"role": "user", "content": "Hi"}]}\n')
    done = bench("serve", "--prompts", file, "--endpoint", "completions")
    assert done.exit_code == 2
    assert "request 2 is a conversation: use --endpoint chat" in done.output
    file.write_text('{"prompt": "a"}\n{"prompt_token_ids": [3, 0]}\n')
    done = bench("serve", "--prompts", file, "--endpoint", "chat")
    assert done.exit_code == 2
    assert "request 2 has token ids: use --endpoint completions" in done.output


def test_a_line_with_a_grammar_of_its_own_takes_no_schema(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b", "structured_outputs": {"choice": ["c"]}}\n')
    for verb in (["serve"], ["offline", "async"]):
        done = bench(*verb, "--prompts", file, "--schemas", tmp_path)
        assert done.exit_code == 2
        assert "request 2 has structured_outputs of its own: drop them or --schemas" in done.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], {"workload": "random", "request_rate": "inf", "input_len": 30, "output_len": 4}),
        (
            [
                *("--ramp-up-strategy", "linear"),
                *("--ramp-up-start-rps", "40", "--ramp-up-end-rps", "50"),
            ],
            {
                "request_rate": None,
                "ramp_up_strategy": "linear",
                "ramp_up_start_rps": 40.0,
                "ramp_up_end_rps": 50.0,
            },
        ),
        (["--prefix-len", "9", "--range-ratio", "0.5"], {"prefix_len": 9, "range_ratio": 0.5}),
    ],
)
def test_the_json_says_which_load_it_was(
    options: list[str], said: dict[str, object], server: Stub
) -> None:
    found = json.loads(serve(server, *SMALL, *options, "--json").stdout)
    assert {**found, **said} == found


def test_a_broken_line_of_a_trace_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 5, "input_length": 6, "output_length": 3}\n{"timestamp": 5}\n')
    done = bench("serve", "--trace", file)
    assert (done.exit_code, done.output) == (1, f"error: {file}:2: has no 'input_length'\n")
    file.write_text('{"timestamp": 5, "input_length": 6, "output_length": 3}\n')
    done = bench("serve", "--trace", file, "--num-prompts", "2")
    assert done.exit_code == 2
    assert "the trace has 1 requests only" in done.output


def test_two_endpoints_are_compared(server: Stub, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    options = ["--rounds", "2", "--warmup", "1", "-o", str(file)]
    done = bench("compare", server.url, f"{server.url}/v1", *SMALL, *options)
    assert done.exit_code == 0, done.output
    assert " Comparison over 2 rounds " in done.stdout
    assert done.stderr == f"wrote {file}\n"
    assert len(server.bodies) == 2 * 2 * (2 + 1 + 3)
    found = json.loads(file.read_text())
    assert len(found["ratios"]["output_throughput"]["ratio"]["rounds"]) == 2
    again = bench("compare", server.url, server.url, *SMALL, "--rounds", "1", "--json")
    assert json.loads(again.stdout)["ratios"].keys() == found["ratios"].keys()


def test_a_side_that_fails_its_first_request_ends_the_comparison(server: Stub) -> None:
    done = bench("compare", server.url, server.url, *SMALL, "--rounds", "1", "--model", "breaks")
    assert done.exit_code == 2
    assert "the first request failed: the engine failed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["asinc", "async"], "did you mean 'async'"),
        (["async", "async", "--set-b", "dpth=3"], "did you mean 'depth'"),
        (["async", "http://127.0.0.1:9", "--set-b", "depth=3"], "is for pipelines"),
        (["async", "abstract_decode"], "abstract graph, with no code to run"),
        (["async", "async", "--set-a", "depth"], "write it as --set-a dotted.key=value"),
        (["async", "async", "--offline", "--model", "m"], "--model: is for endpoints and servers"),
        (["async", "async", "--offline", "--extra-body", "{}"], "--extra-body: is for endpoints"),
        (["async", "async", "--offline", "--header", "a=b"], "--header: is for endpoints"),
        (["async", "async", "--offline", "--timeout", "9"], "--timeout: is for endpoints"),
        (["http://", "async"], "the endpoint http://: write it as http://HOST:PORT"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    arguments: list[str], said: str
) -> None:
    done = bench("compare", *arguments)
    assert done.exit_code == 2
    assert said in done.output


def test_servers_that_a_comparison_starts_ask_for_no_key(
    server: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Mapping[str, str]] = []

    @asynccontextmanager
    async def started(command: object, name: str, env: Mapping[str, str]) -> AsyncIterator[str]:
        given.append(env)
        yield server.url

    monkeypatch.setattr(bench_compare, "started", started)
    monkeypatch.setenv("STEPWEAVE_API_KEY", "secret")
    done = bench("compare", "async", "async", *SMALL, "--rounds", "1")
    assert done.exit_code == 0, done.output
    assert ["STEPWEAVE_API_KEY" in env for env in given] == [False, False]
    assert all(env["PATH"] == os.environ["PATH"] for env in given)


def test_pipelines_are_loaded_and_compared_in_this_process() -> None:
    small = ["--num-prompts", "2", "--output-len", "4", "--input-len", "20", "--json"]
    done = bench("offline", "async", *small, "--set", "depth=1")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["pipeline"] == "async"
    done = bench("compare", "async", "async", "--offline", "--rounds", "1", *small)
    assert done.exit_code == 0, done.output
    [[a, b]] = json.loads(done.stdout)["rounds"]
    assert a["total_input_tokens"] == b["total_input_tokens"] > 0


def test_a_missing_verb_gets_the_nearest_one() -> None:
    done = bench("serv")
    assert done.exit_code == 2
    assert "Did you mean 'serve'?" in done.output


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (15, "terminated")])
def test_a_signal_ends_the_load_and_what_was_done_is_printed(
    server: Stub, number: int, word: str
) -> None:
    """Requests of one prompt are never answered: the program waits for them until the signal."""
    command = [sys.executable, "-m", "stepweave", "bench", "serve", "--base-url", server.url]
    options = ["--model", "good-then-silent", "--num-prompts", "4", "--max-concurrency", "2"]
    running = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    server.wait_for(4)  # two first requests, and two of the load
    os.kill(running.pid, number)
    said, told = running.communicate(timeout=300)
    assert running.returncode == 128 + number
    assert "Failed requests:                         2\n" in said
    assert "failed, 2 of 2: cancelled\n" in told
    assert f"{word}: 2 of 4 requests were sent\n" in told


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_figures_are_printed_where_their_file_cannot_be_written(
    server: Stub, tmp_path: Path
) -> None:
    done = serve(server, "-o", "/dev/full")
    assert done.exit_code == 2
    assert "Successful requests:" in done.stdout
    assert "/dev/full: cannot be written: No space left" in done.stderr
