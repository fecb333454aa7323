"""Backends are found by name, ours and those of packages; and nobody else names a device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stepweave.backends import NoDevice, backend_named, backend_of, device_called
from stepweave.backends.executor_names import executor_names
from stepweave.backends.registry import backend_of_name, known_backends, with_streams
from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config
from stepweave.configs.schema import json_schema
from tests.device.emulated import BACKEND, DEVICE
from tests.installed import ROOT, installed

OUTSIDE = {"tests", "docs", "benchmarks", "training", "examples", "build"}  # not of the package
OF_CUDA = {"backends/shipped/cuda.py", "backends/cuda_streams.py"}
FOR_READERS = {"description", "help"}  # texts of keys and options: they name what one may type


def sources(*words: str) -> Iterator[tuple[str, ast.Module]]:
    """Those of the package in whose text, whatever it says there, one of these words occurs."""
    files = [*ROOT.glob("*.py")]
    for folder in ROOT.iterdir():
        if folder.name not in OUTSIDE and not folder.name.startswith("."):
            files += folder.rglob("*.py")
    for path in sorted(files):
        text = path.read_text(encoding="utf-8")
        if any(word in text.lower() for word in words):
            yield path.relative_to(ROOT).as_posix(), ast.parse(text)


def code(module: ast.Module) -> Iterator[ast.AST]:
    """What is evaluated: neither docstrings nor texts for readers."""
    pending: list[ast.AST] = [module]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.keyword) and node.arg in FOR_READERS:
            continue
        yield node
        pending += ast.iter_child_nodes(node)


def names_of_devices(module: ast.Module) -> list[str]:
    """Lines that name a kind of device, or ask whether a device is of a kind."""
    found = []
    for node in code(module):
        match node:
            case ast.Constant(value=str(text)):
                words = [text]
            case ast.Attribute(attr=name) | ast.Name(id=name):
                words = [name]
            case ast.alias(name=name):
                words = [name]
            case ast.ImportFrom(module=str(name)):
                words = [name]
            case ast.Compare(left=left, comparators=others):
                sides = [left, *others]
                names = [part for side in sides for part in ast.walk(side)]
                literal = any(isinstance(each, ast.Constant) for each in names)
                of_a_device = literal and any(map(_is_device_type, sides))
                words = [f"cuda: {ast.unparse(node)}"] if of_a_device else []
            case _:
                continue
        if any("cuda" in word.lower() or word == "accelerator" for word in words):
            found.append(f"line {getattr(node, 'lineno', '?')}: {words}")
    return found


def _is_device_type(node: ast.AST) -> bool:
    """`device.type`, `x.device.type`."""
    match node:
        case ast.Attribute(attr="type", value=ast.Name(id="device") | ast.Attribute(attr="device")):
            return True
    return False


def test_a_device_is_named_in_its_backend_only() -> None:
    some = sources("cuda", "accelerator", ".type")
    named = {name: found for name, tree in some if (found := names_of_devices(tree))}
    assert set(named) == OF_CUDA, {name: named[name] for name in named if name not in OF_CUDA}


@pytest.mark.parametrize(
    "line",
    [
        "if device.type == 'cpu': pass",
        "fits = x.device.type not in ('cpu', 'xpu')",
        "torch.cuda.synchronize()",
        "from torch import cuda",
        "import torch.cuda",
        "from .cuda_streams import S",
        "name = 'cuda:1'",
        "x.is_cuda",
        "run(executor='cuda')",
    ],
)
def test_the_search_finds_each_way_to_name_one(line: str) -> None:
    assert names_of_devices(ast.parse(line))


def test_the_search_passes_over_what_is_for_readers() -> None:
    assert not names_of_devices(ast.parse('"""On CUDA."""\nField(description="cuda: streams")'))


def test_one_module_reads_the_variable_of_the_kernels() -> None:
    readers = [
        name
        for name, tree in sources("stepweave_kernels")
        if any(isinstance(n, ast.Constant) and n.value == "STEPWEAVE_KERNELS" for n in code(tree))
    ]
    assert readers == ["backends/kernels.py"]


def test_backends_are_found_by_name_and_by_device() -> None:
    assert known_backends()[:2] == ("cpu", "cuda")
    assert set(with_streams()) >= {"cuda", "emulated"}
    assert "cpu" not in with_streams()
    assert set(executor_names()) >= {"serial", "threads", "cuda", "emulated"}
    assert backend_named("emulated") is BACKEND is backend_of(DEVICE) is backend_of_name("emulated")
    assert backend_of(torch.device("cuda", 3)) is backend_named("cuda") is backend_of_name("cuda:3")
    assert device_called("emulated") == device_called("emulated:0") == DEVICE


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("coda", r"no device 'coda' \(did you mean 'cuda'\?\); there are backends for cpu, cuda"),
        ("gpu", r"no device 'gpu' \(did you mean 'cuda'\?\)"),
        ("", "no device ''"),
        ("cuda:", "'cuda' takes a number"),
        ("cuda:one", "'cuda' takes a number"),
        ("cpu:0", "'cpu' has no numbers"),
        ("emulated:1", "only emulated:0"),
    ],
)
def test_a_device_that_is_none_is_refused_by_name(device: str, said: str) -> None:
    with pytest.raises(NoDevice, match=said):
        device_called(device)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"executor": "emulatd"}, "did you mean 'emulated'"),
        ({"executor": "cpu"}, "there is no executor 'cpu'"),
        ({"executor": "gpu"}, "there is no executor 'gpu' .did you mean 'cuda'"),
        ({"model.device": "GPU:1"}, "'GPU:1' is not a device .did you mean 'cuda'"),
        ({"model.device": "emulatd"}, "did you mean 'emulated'"),
        ({"executor": "emulated", "model.device": "cuda"}, "but model.device is cuda"),
    ],
)
def test_a_pipeline_file_names_installed_devices(overrides: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config("async", overrides)


def test_editors_are_told_what_is_installed() -> None:
    definitions = json_schema()["$defs"]
    assert "emulated" in definitions["PipelineConfig"]["properties"]["executor"]["enum"]
    assert "emulated" in definitions["ModelConfig"]["properties"]["device"]["pattern"]


def package(folder: Path, code: str) -> Path:
    """A package with a backend called `gadget`."""
    project = folder / "project"
    project.mkdir()
    (project / "gadget_backend.py").write_text(code)
    (project / "pyproject.toml").write_text(
        '[project]\nname = "gadget"\nversion = "1"\n'
        '[project.entry-points."stepweave.backends"]\ngadget = "gadget_backend:BACKEND"\n'
        '[tool.setuptools]\npy-modules = ["gadget_backend"]\n'
    )
    return project


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise OSError('no driver')", "cannot be loaded: OSError: no driver"),
        ("class BACKEND: pass", "must name a Backend"),
        ("BACKEND = 3", "must name a Backend, not int 3"),
        (
            "from stepweave.backends import backend_named\nBACKEND = backend_named('cpu')",
            "is called 'cpu': entry point and backend share one name",
        ),
    ],
)
def test_what_is_wrong_with_a_package_is_told_as_its_fault(
    code: str, said: str, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    with installed(package(tmp_path, code), site):
        assert "gadget" in known_backends()
        with pytest.raises(NoDevice, match=r"backend 'gadget' of package 'gadget'.*" + said):
            backend_named("gadget")
    assert "gadget" not in known_backends()
