"""The commands that train, for one step: what they write, say and refuse."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from training import fitting, medusa, train

TARGET = Path(__file__).parents[2] / "models" / "embedded" / "target"
COMMANDS = {
    train: ("draft", "--tokenizer", f"{TARGET}", "--copy-tokens", "0"),
    medusa: ("--target", f"{TARGET}", "--heads", "1"),
}


def trained(command: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *options: str) -> None:
    asked = (*COMMANDS[command], "--out", f"{out}", "--batch", "64", "--tokens", "1", *options)
    monkeypatch.setattr(sys, "argv", [command.__name__, *asked])
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng():
            command.main()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--probe", "--warm-up"])
def test_training_does_without_a_report_and_without_a_warm_up(
    command: ModuleType,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained(command, monkeypatch, tmp_path / "out", "--probe", "1", option, "0")
    assert list((tmp_path / "out").glob("*.safetensors"))
    (loss,) = re.findall(r"loss (\S+)", capsys.readouterr().out)
    assert float(loss) > 4, "that of the one step, of weights that know nothing yet"


@pytest.mark.parametrize("command", COMMANDS)
def test_weights_are_written_before_anything_is_reported(
    command: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise OSError("the report failed")

    monkeypatch.setattr(train, "exact_matches", fail)
    monkeypatch.setattr(fitting, "measure", fail)
    with pytest.raises(OSError, match="the report failed"):
        trained(command, monkeypatch, tmp_path / "out", "--probe", "0")
    assert list((tmp_path / "out").glob("*.safetensors"))


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--tokens", "0", "'0' is not a whole number from 1 on"),
        ("--tokens", "many", "'many' is not a whole number from 1 on"),
        ("--warm-up", "-1", "'-1' is not a whole number from 0 on"),
        ("--limit-s", "0", "'0' is not a number above 0"),
        ("--limit-s", "nan", "'nan' is not a number above 0"),
    ],
)
def test_nonsense_is_refused_in_a_line(
    option: str,
    value: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        trained(train, monkeypatch, tmp_path / "out", f"{option}={value}")
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"argument {option}: {said}")
