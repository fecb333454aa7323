"""Commands that start ranks: what they say when one of them is killed or stopped, and leave."""

import json
import signal
from pathlib import Path

import httpx
import pytest

from tests.distributed.commands import Command, command

SILENCE_S = 3


def generating(folder: Path, *options: str) -> tuple[str, ...]:
    """A command whose first request ends soon, and the others long after."""
    lengths = [1, 900, 900, 900]
    lines = [{"prompt": "Write.", "max_tokens": n, "ignore_eos": True} for n in lengths]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    silence = f"model.parallel.silence_s={SILENCE_S}"
    return ("run", "async", "--json", "--prompts", "prompts.jsonl", "--set", silence, *options)


@pytest.mark.nightly
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "rank {rank} is gone: its connection "),
        (signal.SIGSTOP, "rank {rank} is gone: it said nothing for 3."),
    ],
)
def test_a_rank_that_is_killed_or_stopped_is_named_and_nothing_is_left(
    rank: int, number: signal.Signals, said: str, tmp_path: Path
) -> None:
    with command(tmp_path, *generating(tmp_path, "--tp", "2")) as started:
        assert json.loads(started.line())["finish_reason"] == "length"
        started.signal(rank, number)
        status, errors = started.ended()
        assert status != 0
        assert said.format(rank=rank) in errors, errors
        assert "Traceback" not in errors
        assert started.left() == []


@pytest.mark.nightly
def test_what_no_rank_can_load_is_said_once(tmp_path: Path) -> None:
    asked = ("run", "async", "--tp", "2", "--prompt", "a", "--set", "model.name=/no/such/model")
    with command(tmp_path, *asked) as started:
        status, errors = started.ended()
    assert status == 2
    assert errors.count("there is no directory '/no/such/model'") == 1, errors
    assert len(errors.splitlines()) == 1, errors


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_ranks_in_order_with_what_was_done(
    number: signal.Signals, tmp_path: Path
) -> None:
    with command(tmp_path, *generating(tmp_path, "--tp", "2")) as started:
        started.line()
        started.child.send_signal(number)
        lines = interrupted(started)
        assert [each["finish_reason"] for each in lines[:-1]] == ["cancelled"] * 3
        status, errors = started.ended()
        assert status == 128 + number
        assert "1 of 4 requests were done" in errors, errors
        assert started.left() == []


def interrupted(started: Command) -> list[dict[str, object]]:
    """The three outputs and the summary that are still to come."""
    return [json.loads(started.line()) for _ in range(4)]


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_service_whose_rank_is_killed_or_stopped_tells_its_clients_and_ends(
    number: signal.Signals, tmp_path: Path
) -> None:
    silence = f"model.parallel.silence_s={SILENCE_S}"
    asked = ("serve", "async_eagle3_grammar", "--tp", "2", "--port", "0", "--set", silence)
    body = {"prompt": "Write.", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with command(tmp_path, *asked) as started:
        client = httpx.Client(base_url=started.line().split()[-1], timeout=300, trust_env=False)
        with client, client.stream("POST", "/v1/completions", json=body) as answer:
            lines = (line for line in answer.iter_lines() if line)
            next(lines)
            started.signal(1, number)
            *_, told, done = lines
        assert done == "data: [DONE]"
        error = json.loads(told.removeprefix("data: "))["error"]
        assert error["code"] == "engine_failed"
        assert "the group of 2 ranks has ended: rank 1 is gone: " in error["message"]
        status, errors = started.ended()
        assert status == 1
        assert "nothing can be served any more" in errors
        assert started.left() == []


@pytest.mark.nightly
def test_a_service_of_two_ranks_finishes_what_runs_when_it_is_told_to_end(tmp_path: Path) -> None:
    body = {"prompt": "Write.", "max_tokens": 60, "ignore_eos": True, "stream": True}
    with command(tmp_path, "serve", "async", "--tp", "2", "--port", "0") as started:
        client = httpx.Client(base_url=started.line().split()[-1], timeout=300, trust_env=False)
        with client, client.stream("POST", "/v1/completions", json=body) as answer:
            lines = (line for line in answer.iter_lines() if line)
            next(lines)
            started.child.send_signal(signal.SIGTERM)
            *_, last, done = lines
        assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert done == "data: [DONE]"
        assert started.ended()[0] == 0
        assert started.left() == []
