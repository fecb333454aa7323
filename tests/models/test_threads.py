"""Operations get a thread for each core that the process may use, a small model's one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepweave.models.threads import (
    SMALL_BYTES,
    is_small,
    let_go,
    physical_cores,
    that_run_at_once,
    threads_for,
)


def system(folder: Path, siblings: dict[int, str], **files: str) -> Path:
    """Files as the kernel writes them."""
    for processor, text in siblings.items():
        place = folder / "devices/system/cpu" / f"cpu{processor}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{text}\n")
    for name, text in files.items():
        place = folder / "fs/cgroup" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{text}\n")
    return folder


@pytest.fixture
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


PAIRS = {number: f"{number % 4},{number % 4 + 4}" for number in range(8)}


@pytest.mark.usefixtures("eight_processors")
def test_two_threads_of_a_core_count_once(tmp_path: Path) -> None:
    assert physical_cores(system(tmp_path, PAIRS)) == 4


@pytest.mark.usefixtures("eight_processors")
def test_where_the_kernel_says_nothing_each_processor_is_a_core(tmp_path: Path) -> None:
    assert physical_cores(tmp_path) == 8


@pytest.mark.usefixtures("eight_processors")
def test_threads_that_could_not_run_at_once_are_not_made(caplog: pytest.LogCaptureFixture) -> None:
    assert (that_run_at_once(3), that_run_at_once(8), caplog.messages) == (3, 8, [])
    assert that_run_at_once(1024) == 8
    assert caplog.messages == [
        "torch_threads 1024: this process may use 8 processors, so it is 8 here"
    ]


def test_only_processors_that_the_process_may_use_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 2, 5}, raising=False)
    assert physical_cores(system(tmp_path, PAIRS)) == 2


@pytest.mark.usefixtures("eight_processors")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "20000 100000"}, 1),
        ({"cpu.max": "max 100000"}, 4),
    ],
)
def test_a_container_s_share_is_the_most(files: dict[str, str], cores: int, tmp_path: Path) -> None:
    assert physical_cores(system(tmp_path, PAIRS, **files)) == cores


def sized(folder: Path, size: int) -> Path:
    """A model of which only the size of the weights is real; they take no place on the disk."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size)
    return folder


@pytest.mark.usefixtures("eight_processors")
def test_a_large_model_gets_every_core_and_a_small_one_a_single_thread(tmp_path: Path) -> None:
    large, small = (sized(tmp_path / f"{size}", size) for size in (SMALL_BYTES, SMALL_BYTES - 1))
    assert threads_for(large) == physical_cores()
    assert threads_for(small) == threads_for("embedded") == 1
    assert [is_small(name) for name in (f"{large}", f"{small}", "embedded")] == [False, True, True]


def test_a_number_asked_of_torch_itself_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_for(sized(tmp_path / "large", SMALL_BYTES)) is None


COUNTED = """
import os, sys, torch
from stepweave.models.threads import let_go
def running():
    return len(os.listdir("/proc/self/task"))
torch.set_num_threads(2)
x, found = torch.randn(500, 500), []
before = running()
for _ in range(2):
    first = x @ x + torch.randn(500, 500).exp()
    found += [running() - before, let_go(), running() - before]
print(found)
"""


def test_threads_of_operations_end_when_a_thread_lets_go_and_come_back_with_the_next_one() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COUNTED], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[1, True, 0, 1, True, 0]"


def test_without_a_library_that_can_nothing_is_let_go(tmp_path: Path) -> None:
    (tmp_path / "maps").write_text("7f00-7f01 r-xp 0 08:01 1 /usr/lib/libm.so.6\n7f02-7f03 rw-p\n")
    assert not let_go(tmp_path / "maps")
    assert not let_go(tmp_path / "nothing")
