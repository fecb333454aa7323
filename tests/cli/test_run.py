"""`run` against an engine that only pretends: what is printed, and when it fails."""

import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from typer.testing import CliRunner, Result

from stepweave.cli.main import app
from stepweave.configs.prompts import PromptLine
from stepweave.configs.schema import PipelineConfig
from stepweave.requests.request import RequestOutput


@dataclass
class PretendedLLM:
    """Answers each prompt with its own words, a token for each."""

    pipeline: PipelineConfig
    cancelled: bool = False
    tokens: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def generate(
        self,
        lines: Sequence[PromptLine],
        on_output: Callable[[RequestOutput], None] | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        for number in (signal.SIGINT, signal.SIGTERM):
            if any(line.prompt == number.name for line in lines):
                os.kill(os.getpid(), number)
                os.kill(os.getpid(), number)  # as `timeout -s INT` does
        outputs = [self._output(index, line) for index, line in enumerate(lines)]
        broken_off = any(line.prompt == "break off" for line in lines)
        if broken_off:
            outputs = outputs[:1]
        for output in reversed(outputs):  # the last ends first
            if on_output is not None:
                on_output(output)
        if broken_off:
            raise PretendedInterruption(outputs)
        self.tokens += sum(len(output.token_ids) for output in outputs)
        return outputs

    def _output(self, index: int, line: PromptLine) -> RequestOutput:
        prompt = line.prompt or ""
        if prompt == "fail":
            return RequestOutput(line.id or str(index), prompt, "", (), "error", error="no luck")
        if self.cancelled and index > 0:
            return RequestOutput(line.id or str(index), prompt, "", (), "cancelled")
        words = prompt.split()[: line.parameters.get("max_tokens")]
        if prompt == "differ" and self.pipeline.executor == "serial":
            words = ["otherwise"]
        ids = tuple(sum(word.encode()) for word in words)
        return RequestOutput(line.id or str(index), prompt, " ".join(words), ids, "stop", 2, 1)

    def cancel(self) -> None:
        self.cancelled = True

    def summary(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "steps": 1,
            "drafted": 2,
            "accepted": 1,
            "acceptance_length": 1.5,
            "seconds": 0.5,
            "tokens_per_second": self.tokens * 2.0,
            "executor": self.pipeline.executor,
            "depth": self.pipeline.depth,
            "waits": 2,
            "slots": {},
            "notes": [],
        }


class PretendedInterruption(KeyboardInterrupt):
    def __init__(self, outputs: list[RequestOutput]) -> None:
        self.outputs = outputs


@dataclass
class Made:
    llms: list[PretendedLLM] = field(default_factory=list)

    def __call__(self, pipeline: PipelineConfig) -> PretendedLLM:
        self.llms.append(PretendedLLM(pipeline))
        return self.llms[-1]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    made = Made()
    module: Any = types.ModuleType("stepweave.serving.llm")
    module.LLM = made
    module.Interrupted = PretendedInterruption
    monkeypatch.setitem(sys.modules, "stepweave.serving.llm", module)
    return made


def stepweave(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.usefixtures("made")
def test_an_order_of_json_without_json_is_refused() -> None:
    result = stepweave("run", "async", "--prompt", "a", "--ordered")
    assert result.exit_code == 2
    assert "--ordered: orders JSON only: give --json as well" in result.stderr


@pytest.mark.usefixtures("made")
def test_json_is_an_object_per_request_and_a_summary() -> None:
    asked = ("run", "async", "--json", "--prompt", "a b", "--prompt", "c")
    result = stepweave(*asked, "--ordered")
    assert result.exit_code == 0, result.output
    *found, last = objects(result)
    assert list(found[0]) == [
        *("id", "prompt", "text", "token_ids", "finish_reason", "drafted", "accepted"),
    ]
    assert [each["text"] for each in found] == ["a b", "c"]
    assert list(last["summary"])[:12] == [
        *("tokens", "steps", "drafted", "accepted", "acceptance_length"),
        *("seconds", "tokens_per_second", "executor", "depth", "waits", "slots", "notes"),
    ]
    assert last["summary"]["equal_to_synchronous"] is None
    *as_they_end, last = objects(stepweave(*asked))
    assert as_they_end == found[::-1]
    assert "summary" in last


@pytest.mark.usefixtures("made")
def test_people_get_a_panel_for_each_request_and_a_table() -> None:
    result = stepweave("run", "async", "--prompt", "hello [bold] \x1b[31m there")
    assert result.exit_code == 0
    assert "hello [bold] \\x1b[31m there" in result.stdout
    assert "tokens/s on threads, depth 2" in result.stdout


@pytest.mark.usefixtures("made")
def test_a_failed_request_fails_the_run_and_no_other_request() -> None:
    result = stepweave("run", "async", "--json", "--prompt", "fail", "--prompt", "fine")
    assert result.exit_code == 1
    fine, failed, _ = objects(result)
    assert failed["error"] == "no luck"
    assert (fine["text"], "error" in fine) == ("fine", False)


def test_the_prompts_of_a_config_are_used_when_none_are_given(made: Made) -> None:
    result = stepweave("run", "quickstart", "--json")
    assert result.exit_code == 0, result.output
    assert [each["id"] for each in objects(result)[:-1]][-2:] == ["order", "person"]
    assert made.llms[0].pipeline.drafter is not None


@pytest.mark.usefixtures("made")
def test_prompts_come_from_the_command_line_then_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "from the file", "max_tokens": 2, "id": "f"}\n')
    asked = ("run", "quickstart", "--json", "--ordered", "--prompts", path)
    result = stepweave(*asked, "--prompt", "first")
    assert [each["text"] for each in objects(result)[:-1]] == ["first", "from the"]
    result = stepweave("run", "quickstart", "--json", "--prompts", path, "--max-tokens", "1")
    assert [each["text"] for each in objects(result)[:-1]] == ["from"]


@pytest.mark.usefixtures("made")
def test_every_broken_line_of_a_prompts_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "x"}\n{"promt": "x"}\nbroken\n')
    result = stepweave("run", "async", "--prompts", path)
    assert result.exit_code == 1
    assert f"error: {path}:2: unknown key 'promt' (did you mean 'prompt'?)" in result.stderr
    assert f"error: {path}:3:1: is not JSON" in result.stderr


def test_a_schema_binds_the_prompts_of_the_command_line(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "integer"}')
    result = stepweave("run", "quickstart", "--prompt", "x", "--schema", path)
    assert result.exit_code == 0, result.output
    path.write_text("{")
    result = stepweave("run", "quickstart", "--prompt", "x", "--schema", path)
    assert result.exit_code == 1
    assert f"{path}:1:2: is not JSON" in result.stderr


@pytest.mark.usefixtures("made")
def test_a_prompt_that_is_no_text_and_a_schema_that_is_none_are_one_line(tmp_path: Path) -> None:
    result = stepweave("run", "async", "--prompt", "bad \udcff")  # as Python reads a lone byte
    assert result.exit_code == 2
    assert result.stderr == ("error: --prompt: holds half of a surrogate pair, which is not text\n")
    path = tmp_path / "schema.json"
    path.write_text("null")
    result = stepweave("run", "quickstart", "--prompt", "x", "--schema", path)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --prompt: structured_outputs: needs exactly one of")


def test_settings_reach_the_engine(made: Made) -> None:
    stepweave("run", "quickstart", "--set", "depth=3", "--set", "executor=serial")
    assert (made.llms[0].pipeline.depth, made.llms[0].pipeline.executor) == (3, "serial")


def test_compare_runs_the_synchronous_loop_too(made: Made) -> None:
    result = stepweave("run", "async", "--json", "--compare", "--prompt", "a b")
    assert result.exit_code == 0, result.output
    summary = objects(result)[-1]["summary"]
    assert summary["equal_to_synchronous"] is True
    low, high = summary["speed_ratio_quartiles"]
    assert 0 < low <= summary["speed_ratio"] <= high
    assert summary["rounds"] == 8
    assert summary["tokens"] == 2
    other = made.llms[1].pipeline
    assert (other.depth, other.executor) == (1, "serial")


@pytest.mark.usefixtures("made")
def test_compare_fails_when_tokens_differ() -> None:
    result = stepweave("run", "async", "--json", "--compare", "--prompt", "differ")
    assert result.exit_code == 1
    assert objects(result)[-1]["summary"]["equal_to_synchronous"] is False


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_ctrl_c_and_term_keep_what_was_done(number: signal.Signals, code: int, said: str) -> None:
    before = signal.getsignal(number)
    result = stepweave("run", "async", "--json", "--prompt", number.name, "--prompt", "never")
    assert result.exit_code == code
    assert result.stderr == f"{said}: 1 of 2 requests were done\n"
    second, first, _ = objects(result)
    assert (first["text"], second["finish_reason"]) == (number.name, "cancelled")
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("made")
def test_an_engine_that_is_broken_off_gives_what_it_has() -> None:
    result = stepweave("run", "async", "--json", "--prompt", "break off", "--prompt", "never")
    assert result.exit_code == 130
    assert [each.get("text") for each in objects(result)] == ["break off", None]


@pytest.mark.parametrize(
    ("number", "returned", "said"),
    [
        (signal.SIGINT, 130, "interrupted\n"),
        pytest.param(signal.SIGTERM, 143, "terminated\n", marks=pytest.mark.nightly),
    ],
)
def test_a_signal_before_the_engine_is_up_is_one_line(
    number: signal.Signals, returned: int, said: str
) -> None:
    code = (
        "import os, signal, stepweave.cli.planned as planned\n"
        f"planned.load = lambda *_, **__: os.kill(os.getpid(), {number:d})\n"
        "from stepweave.cli.main import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "async"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (returned, said)


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("as_json", [True, False])
def test_a_file_gets_what_would_be_printed(as_json: bool, tmp_path: Path) -> None:
    path, form = tmp_path / "results", ["--json"] if as_json else []
    arguments = ["run", "async", "--prompt", "a b", "--prompt", "c", *form]
    printed = stepweave(*arguments)
    written = stepweave(*arguments, "-o", path)
    assert (written.exit_code, written.stdout) == (0, "")
    assert written.stderr == f"wrote {path}\n"
    text = path.read_text(encoding="utf-8")
    assert "a b" in text
    assert len(text.splitlines()) == len(printed.stdout.splitlines())
    if as_json:
        assert [list(json.loads(line)) for line in text.splitlines()] == [
            list(each) for each in objects(printed)
        ]


def test_a_file_that_cannot_be_written_is_told_before_anything_runs(
    made: Made, tmp_path: Path
) -> None:
    result = stepweave("run", "async", "--prompt", "x", "-o", tmp_path)
    assert result.exit_code == 2
    assert "is a directory" in result.stderr
    assert made.llms == []


def test_prompts_may_come_from_standard_input(made: Made) -> None:
    lines = '{"prompt": "first", "max_tokens": 2}\n\n{"prompt": "second", "id": "s"}\n'
    arguments = ["run", "async", "--json", "--ordered", "--prompts", "-"]
    result = CliRunner().invoke(app, arguments, input=lines)
    assert result.exit_code == 0, result.output
    assert [each["id"] for each in objects(result)[:-1]] == ["0", "s"]
    result = CliRunner().invoke(app, arguments, input='{"promt": "x"}')
    assert result.exit_code == 1
    assert result.stderr.startswith("error: standard input:1: unknown key 'promt'")
    result = CliRunner().invoke(app, arguments, input="")
    assert (result.exit_code, len(made.llms)) == (1, 1)
    assert "standard input:1: holds no prompts" in result.stderr
