"""Every `-o` writes regular files whole or not at all, and anything else as it stands."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner, Result

from stepweave.cli.main import app
from stepweave.cli.output import save, writing
from stepweave.configs.errors import ConfigError

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX files")

WRITERS = {
    "render": ["graph", "render", "abstract_decode", "--format", "json", "-o"],
    "simulate": ["simulate", "abstract_decode", "--steps", "4", "-o"],
    "trace": ["trace", "abstract_decode", "--steps", "20", "-o"],
    "trace_html": ["trace", "abstract_decode", "--steps", "20", "-o", os.devnull, "--html"],
    "sweep": ["graph", "whatif", "abstract_decode", "--sweep", "scale.forward=1,2", "-o"],
}
"""The verbs that write a file and need no model; `profile` and `run` write with the same code."""


def verb(writer: str, path: Path) -> Result:
    return CliRunner().invoke(app, [*WRITERS[writer], str(path)])


@pytest.fixture
def umask() -> Iterator[int]:
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


@posix
@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_is_followed_and_stays(writer: str, tmp_path: Path, umask: int) -> None:
    real, link, dangling = tmp_path / "real.json", tmp_path / "link.json", tmp_path / "new.json"
    real.write_text("old")
    real.chmod(0o604)
    link.symlink_to(real.name)
    dangling.symlink_to("made.json")
    for path in (link, dangling):
        result = verb(writer, path)
        assert result.exit_code == 0, result.output
        assert path.is_symlink()
    assert "forward" in real.read_text()
    assert "forward" in (tmp_path / "made.json").read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o604, "a file that is replaced keeps its mode"
    made = (tmp_path / "made.json").stat().st_mode
    assert stat.S_IMODE(made) == 0o666 & ~umask, "a new file has the mode that the umask leaves"
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"real.json", "link.json", "new.json", "made.json"}


@posix
@pytest.mark.parametrize("writer", WRITERS)
def test_a_pipe_is_written_to_and_stays_a_pipe(writer: str, tmp_path: Path) -> None:
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    read: list[str] = []
    reader = Thread(target=lambda: read.append(path.read_text()), daemon=True)
    reader.start()
    result = verb(writer, path)
    assert result.exit_code == 0, result.output
    reader.join(60)
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert "forward" in read[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("writer", WRITERS)
def test_a_device_is_written_to_and_a_full_one_is_said_to_be_full(
    writer: str, tmp_path: Path
) -> None:
    link = tmp_path / "full.json"  # by a link, so that `simulate` finds an extension
    link.symlink_to("/dev/full")
    before = os.stat("/dev/full")
    result = verb(writer, link)
    assert result.exit_code == 2, result.output
    assert "full.json: cannot be written: No space left on device" in result.stderr
    after = os.stat("/dev/full")
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is a directory; name a file in it"),
        ("nowhere/plan.json", "there is no directory"),
        ("file/plan.json", "Not a directory"),
        (f"{'x' * 300}.json", "File name too long"),
        ("loop.json", "Too many levels of symbolic links"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_first(
    writer: str, name: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "file").write_text("")
    path = tmp_path / name if name else tmp_path / "folder.json"
    if not name:
        path.mkdir()
    result = verb(writer, path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


@posix
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to anything")
@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_that_is_not_ours_to_write_is_not_replaced(writer: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    path.chmod(0o444)
    assert verb(writer, path).exit_code == 2
    assert path.read_text() == "old"


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    path.write_text("old")
    save(path, "new µ \udcff")
    assert path.read_bytes() == "new µ \\udcff".encode()
    assert [each.name for each in tmp_path.iterdir()] == ["plan.svg"]


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.svg"
    path.write_text("old")

    def full(*_: object) -> None:
        assert path.read_text() == "old"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(ConfigError, match=r"plan\.svg: cannot be written: No space left"):
        save(path, b"new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["plan.svg"]


def test_a_stream_that_is_broken_off_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")

    def broken_off() -> None:
        with writing(path) as stream:
            stream.write("half")
            stream.flush()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json"]


def test_only_one_module_opens_files_to_write() -> None:
    """What the command line writes goes through `cli/output.py`, or these tests see but a part."""
    root = Path(__file__).parents[2]
    writes = (
        ".write_text(",
        ".write_bytes(",
        "mkstemp",
        '.open("w',
        '"wb")',
        '"xb")',
        "os.replace",
    )
    found = {
        path.relative_to(root).as_posix()
        for folder in ("cli", "views", "configs", "graph", "executors", "timelines", "serving")
        for path in (root / folder).rglob("*.py")
        if any(each in path.read_text(encoding="utf-8") for each in writes)
    }
    assert found == {"cli/output.py", "views/png.py"}  # which has a folder of its own to draw in


@posix
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_a_pipe_is_written_to_by_its_name_in_dev(name: str) -> None:
    command = [sys.executable, "-m", "stepweave", *WRITERS["render"], name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("cannot be written")) == (0, 0), done.stderr
    assert done.stdout.startswith("{")
