"""What is public keeps its promise: it loads, says what it does and raises, and suffices."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from stepweave.graph.errors import GraphError
from stepweave.graph.public import PACKAGES
from stepweave.graph.public import doc as promised
from tests.installed import ROOT
from tests.test_docs import blocks

NAMES = [(package, name) for package in PACKAGES for name in import_module(package).__all__]
OWN_RAISES = ("AssertionError", "AttributeError", "NotImplementedError")

INSIDE = {
    "docs/how-to/run-on-a-gpu.md": {
        *(
            "stepweave.cli.planned",
            "stepweave.graph.planner.segments",
            "stepweave.nodes.ops.transfer",
        ),
    },
    "docs/how-to/write-a-pipeline.md": {"stepweave.serving.pipeline"},
    "docs/reference/costs.md": {"stepweave.serving.pipeline"},
    "docs/tutorial.md": {"stepweave.serving.pipeline"},
}
"""By file: what it imports from below the public packages."""
BREAKS = "docs/reference/errors.md"  # what the public names do not let one break: any import


def doc(thing: Any) -> str:
    """What a thing itself says; what a dataclass or a base class says of it does not count."""
    said = vars(thing).get("__doc__") if isinstance(thing, type) else inspect.getdoc(thing)
    text = inspect.cleandoc(said or "")
    return "" if text.startswith(f"{thing.__name__}(") else text


def functions(thing: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """A function itself; of a class its construction and its public methods."""
    if inspect.isfunction(thing):
        yield thing.__name__, thing
    for name, member in vars(thing).items() if isinstance(thing, type) else ():
        inner = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        inner = inner.fget if isinstance(inner, property) else inner
        made = name in ("__init__", "__post_init__") and not getattr(thing, "_is_protocol", False)
        written = inspect.isfunction(inner) and not inner.__code__.co_filename.startswith("<")
        if inspect.isfunction(inner) and written and (made or not name.startswith("_")):
            yield name, inner


def raised_in(function: Callable[..., Any]) -> set[str]:
    """The classes of errors that a function raises by itself, not those of what it calls."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    made = [each.exc for each in ast.walk(tree) if isinstance(each, ast.Raise)]
    called = [each.func if isinstance(each, ast.Call) else each for each in made]
    return {each.id for each in called if isinstance(each, ast.Name) and each.id[0].isupper()}


def unkept(thing: Any) -> list[str]:
    """What is wrong with the documentation of a public thing."""
    found = []
    own = doc(thing)
    if not own.split("\n\n")[0].rstrip().endswith((".", ":")):
        found.append("its docstring begins with no sentence")
    if inspect.isfunction(thing) and not re.search(r"\b[Rr]aises?\b", own):
        found.append("it does not say what it raises")
    for name, function in functions(thing):
        said = doc(function) + own
        if not said:
            found.append(f"{name} has no docstring")
        for error in sorted(raised_in(function) - set(OWN_RAISES)):
            if error not in said:
                found.append(f"{name} does not say that it raises {error}")
        hints = " ".join(map(str, function.__annotations__.values()))
        if "Tensor" in hints and not re.search(r"`?\[[^\]]*\]", said):
            found.append(f"{name} does not say the shapes of its tensors")
    return found


@pytest.mark.parametrize(("package", "name"), NAMES, ids=[f"{p}.{n}" for p, n in NAMES])
def test_a_public_name_loads_and_says_what_it_does_and_raises(package: str, name: str) -> None:
    module = import_module(package)
    thing = getattr(module, name)
    assert thing is getattr(module, name), "a module of that name hides it, once it is loaded"
    assert not inspect.ismodule(thing)
    assert name in dir(module)
    if isinstance(thing, type) or inspect.isroutine(thing):
        assert unkept(thing) == []
    else:
        assert promised(package, name).endswith("."), "a constant says what it is"
        assert promised(package, name) != inspect.getdoc(type(thing))


def test_every_package_has_its_list_and_no_name_twice() -> None:
    assert all(import_module(package).__all__ for package in PACKAGES)
    stand_for = {(name, id(getattr(import_module(package), name))) for package, name in NAMES}
    assert len({name for name, _ in stand_for}) == len(stand_for), "a name has two meanings"
    assert not hasattr(import_module("stepweave"), "no_such_name")
    with pytest.raises(AttributeError, match=r"'stepweave\.testing' has no attribute 'explor'"):
        import_module("stepweave.testing").explor  # noqa: B018


def test_what_docstrings_name_as_raised_are_errors() -> None:
    ours = {
        name
        for folder in _folders()
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"(?m)^ *class (\w+)", path.read_text(encoding="utf-8"))
    }
    for package, name in NAMES:
        said = promised(package, name)
        for sentence in re.findall(r"[Rr]aises?\s[^.]*", said):
            for error in re.findall(r"`([A-Z]\w+)`", sentence):
                assert error in ours or hasattr(builtins, error), f"{name}: {error}"


def _folders() -> set[str]:
    return {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}


def undocumented(rows: Any) -> None:
    """Do something."""
    if rows:
        raise LookupError("no")


class Bare:
    def method(self, logits: torch_Tensor) -> None:  # type: ignore[name-defined] # noqa: F821
        pass


def test_a_promise_that_is_not_kept_is_seen() -> None:
    assert unkept(undocumented) == [
        "it does not say what it raises",
        "undocumented does not say that it raises LookupError",
    ]
    assert unkept(Bare) == [
        "its docstring begins with no sentence",
        "method has no docstring",
        "method does not say the shapes of its tensors",
    ]


def test_importing_a_public_package_loads_nothing_large() -> None:
    code = (
        f"import sys\nfor package in {list(PACKAGES)}: __import__(package)\n"
        "large = {'torch', 'transformers', 'numpy', 'pydantic', 'xgrammar'} & set(sys.modules)\n"
        "assert not large, large"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import stepweave, sys\nassert 'stepweave.graph' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def imports(source: str) -> Iterator[str]:
    """The modules of ours that a source imports from."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stepweave"):
            yield str(node.module)
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("stepweave"))


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for page in sorted(pages):
        for block in blocks(page):
            if block.language == "python" or block.name.endswith(".py"):
                yield page.relative_to(ROOT).as_posix(), block.text


def test_examples_and_pages_import_public_packages_only() -> None:
    found: dict[str, set[str]] = {}
    for name, source in sources():
        if inside := set(imports(source)) - PACKAGES.keys():
            found.setdefault(name, set()).update(inside)
    assert {name: found[name] for name in found if name != BREAKS} == INSIDE


@pytest.mark.parametrize(
    "name",
    [
        *("stepweave.between", "stepweave.difference", "stepweave.explain_wait"),
        *("stepweave.ops_named", "stepweave.sensitivities", "stepweave.with_costs"),
        *("stepweave.dot", "stepweave.lanes", "stepweave.plan_page", "stepweave.perfetto"),
        *("stepweave.testing.campaign", "stepweave.testing.explore", "stepweave.testing.replay"),
        *("stepweave.testing.explore_exhaustively", "stepweave.testing.with_faults"),
        *("stepweave.testing.recording", "stepweave.testing.recorded_states"),
    ],
)
def test_what_is_no_plan_or_graph_is_refused_by_the_name_of_the_argument(name: str) -> None:
    package, _, called = name.rpartition(".")
    function = getattr(import_module(package), called)
    needed = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty
    ]
    with pytest.raises(GraphError, match=rf"^{called}: {needed[0].name} must be a .*, not 'x'"):
        function(*("x" for _ in needed))
