"""What no source of the package does, because doing it has opened servers of this field."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.installed import ROOT

OWN = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
SOURCES = [
    file for package in OWN for file in sorted((ROOT / Path(*package.split(".")[1:])).glob("*.py"))
]

UNPICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
REMOTE = {"zmq", "xmlrpc", "multiprocessing.managers", "multiprocessing.shared_memory", "ray"}
RUNNING = {"eval", "exec", "compile", "__import__"}
CALLS = {"torch.load", "yaml.load", "yaml.unsafe_load", "np.load", "numpy.load", "os.system"}


Found = Sequence[ast.AST]


def looked_at(source: str) -> Found:
    """What of a source any test here asks about."""
    kinds = ast.Import | ast.ImportFrom | ast.Call | ast.Constant
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


@cache
def sources() -> Sequence[tuple[str, Found]]:
    return [
        (file.relative_to(ROOT).as_posix(), looked_at(file.read_text(encoding="utf-8")))
        for file in SOURCES
    ]


def dotted(node: ast.expr) -> str:
    """`a.b.c`, as it is written; `?` stands for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def imported(nodes: Found) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def called(nodes: Found) -> Iterator[tuple[str, ast.Call]]:
    for node in nodes:
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def unsafe(nodes: Found) -> Iterator[str]:
    """What of a source is on the lists above."""
    for name in imported(nodes):
        if name.split(".")[0] in UNPICKLING | REMOTE or name in REMOTE:
            yield f"imports {name}"
    for name, call in called(nodes):
        if name in RUNNING | CALLS:
            yield f"calls {name}"
        for keyword in call.keywords:
            trusting = keyword.arg == "trust_remote_code" and ast.unparse(keyword.value) != "False"
            pickles = keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False"
            shell = keyword.arg == "shell" and ast.unparse(keyword.value) != "False"
            if trusting or pickles or shell:
                yield f"passes {keyword.arg}"
    for node in nodes:
        if isinstance(node, ast.Constant) and node.value == "0.0.0.0":
            yield "listens on all interfaces"


def test_there_are_sources() -> None:
    assert len(SOURCES) > 200


ON_RAY = {"replicas/on_ray.py", "replicas/prefix_router.py"}
"""What `--replicas` loads. Ray's processes unpickle what they send each other; what that asks of a
cluster is in the threat model. Clients reach none of them, and what they send is JSON by then.
"""


def test_nothing_is_unpickled_evaluated_or_trusted() -> None:
    """CVE-2025-32444, CVE-2025-47277, CVE-2025-30202, CVE-2026-115912, CVE-2025-62164."""
    found = {f"{name}: {what}" for name, nodes in sources() for what in unsafe(nodes)}
    ours = {each for each in found if each.split(": ")[0] not in ON_RAY}
    assert ours == set()
    assert {each.split(": imports ray")[0] for each in found} == ON_RAY


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from multiprocessing.shared_memory import SharedMemory",
        "import torch\ntorch.load(a)",
        "AutoModel.from_pretrained(a, trust_remote_code=True)",
        "AutoModel.from_pretrained(a, trust_remote_code=trusted)",
        "eval(text)",
        "bind('0.0.0.0')",
        "subprocess.run(text, shell=True)",
        "import zmq",
    ],
)
def test_the_search_finds_what_it_looks_for(source: str) -> None:
    assert list(unsafe(looked_at(source)))


IMPORTERS = {
    "graph/public.py": "names that this package lists itself",
    "nodes/registry.py": "names that this package lists itself",
    "backends/registry.py": "names that this package lists itself",
    "views/png.py": "one library, by its name",
}


def test_modules_are_imported_by_names_of_ours_only() -> None:
    """CVE-2026-68508, CVE-2026-106439: a dotted path in YAML was imported and called."""
    found = {
        name
        for name, nodes in sources()
        for call, _ in called(nodes)
        if call.split(".")[-1] in ("import_module", "find_spec", "spec_from_file_location")
        and "find_spec" not in call
    }
    assert found == set(IMPORTERS)


def test_keys_are_compared_in_one_place_in_constant_time() -> None:
    """A comparison of texts ends at the first difference, and so tells how much was right."""
    tree = [*ast.walk(ast.parse((ROOT / "server" / "keys.py").read_text()))]
    compared = {
        ast.unparse(node)
        for node in tree
        if isinstance(node, ast.Compare)
        and any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops)
    }
    assert compared == {"scheme.lower() == b'bearer'"}
    assert [name for name, _ in called(tree) if name.endswith("compare_digest")]
    uses = {
        (name, ast.unparse(call))
        for name, nodes in sources()
        if name.startswith("server/")
        for _, call in called(nodes)
        for argument in (*call.args, *(each.value for each in call.keywords))
        if dotted(argument).endswith(".api_keys")
    }
    assert uses == {
        ("server/gate.py", "Keys(settings.api_keys)"),
        ("server/live/route.py", "bool(engine.settings.api_keys)"),
    }


def test_no_assertion_keeps_anybody_out() -> None:
    """`python -O` takes assertions out. What is refused is refused by `raise`."""
    server = ("keys.py", "gate.py", "body.py", "connection.py")
    models = ("source.py", "plausible.py", "template_limit.py")
    guards = [*(f"server/{each}" for each in server), *(f"models/{each}" for each in models)]
    for guard in guards:
        tree = ast.parse((ROOT / guard).read_text())
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Assert)], guard
