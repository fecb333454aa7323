"""From the name of a config to a checked pipeline or abstract graph.

Owns where files are found, what `extends` means, and `--set`. Values are merged before anything
is validated, and every part keeps the place it came from, so an error names the right file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..graph.errors import did_you_mean, nearest
from .abstract import AbstractGraph, read_abstract, refuse_mapped_nodes
from .errors import ConfigError, Mark, existing_file
from .forms import is_abstract, refuse_keys_of_another_form
from .place import Line
from .plain import dotted, located
from .policies import by_kind, policies_over
from .yaml_source import Located, parse_yaml, read_yaml

if TYPE_CHECKING:
    from .schema import PipelineConfig

SHIPPED = Path(__file__).parent
MAX_EXTENDS = 8
WRITTEN_HERE = "pipeline"
"""What a config is called that is no file, but keys from Python; the argument of `LLM`."""


@dataclass(frozen=True)
class Extended:
    """The file or shipped config that a file extends, merged with those that it extends itself."""

    name: str
    source: Located

    def load(self) -> Loaded:
        """Its config as it stands. Raises `ConfigError` listing all that is wrong."""
        return _loaded(self.source, self.name)


@dataclass(frozen=True)
class Loaded:
    """A config with the text it came from."""

    config: PipelineConfig | AbstractGraph
    source: Located
    name: str
    extended: Extended | None = None

    def mark(self, line: int | None) -> Mark:
        """The place of the node, value, state or mode that a graph error's line belongs to."""
        assert isinstance(self.source.value, dict), "read_yaml returned something else"
        if isinstance(line, Line):
            return line.mark
        if line is None:
            return Mark(self.name)
        for section in ("nodes", "states", "values", "modes"):
            inner = self.source.value[section].value if section in self.source.value else None
            parts = inner.values() if isinstance(inner, dict) else inner
            for part in parts if isinstance(parts, Collection) else ():
                if isinstance(part, Located) and (part.key or part.mark).line == line:
                    return part.key or part.mark
        return Mark(self.name, line)


@cache
def _shipped_files() -> Mapping[str, Path]:
    """Pipelines lie in the folder itself; graphs without code lie in `graphs/`."""
    return {path.stem: path for path in (*SHIPPED.glob("*.yaml"), *SHIPPED.glob("graphs/*.yaml"))}


def shipped() -> tuple[str, ...]:
    """Names of the configs that come with the package."""
    return tuple(sorted(_shipped_files()))


def shipped_file(name: str) -> Path:
    """Where the shipped config of that name lies."""
    return _shipped_files()[name]


def load_config(
    name: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> PipelineConfig | AbstractGraph:
    """The config of a path, a shipped name, or the keys of a file, such as
    `{"extends": "async", "depth": 3}`; `overrides` as in `--set scheduler.max_rows=4`.

    An override that is a text is read as YAML, as on the command line; any other plain value is
    meant as it is, and a mapping sets the keys that it has. Raises `ConfigError` with each problem
    and its place.
    """
    return load(name, overrides, option=None).config


def load(
    name: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    option: str | None = "--set",
) -> Loaded:
    """The config together with its source. Raises `ConfigError` listing all that is wrong.

    `option`: by which the command line gave `overrides`; None: they come from Python.
    """
    if isinstance(name, Mapping):
        called = WRITTEN_HERE
        merged, extended = _merged(_keys_of(name), Path(), ())
    else:
        called = str(name)
        path = _find(called, Path())
        merged, extended = _merged(read_yaml(path, called), path.parent, (path.resolve(),))
    return _loaded(with_settings(merged, overrides or {}, option), called, extended)


def _keys_of(given: Mapping[str, Any]) -> Located:
    """The keys of a file that is written in Python. Raises `ConfigError`."""
    mark = Mark(WRITTEN_HERE)
    for key in given:
        if not isinstance(key, str):
            raise ConfigError.at(mark, f"a key must be text, not {key!r}")
    return located(given, mark)


def _loaded(source: Located, name: str, extended: Extended | None = None) -> Loaded:
    refuse_keys_of_another_form(source)
    if is_abstract(source):
        return Loaded(read_abstract(source), source, name, extended)
    from .pipeline import read_pipeline
    from .preset import presets_below

    whole = source
    for preset in reversed(list(presets_below(source))):
        whole = _over(preset, whole)
    return Loaded(read_pipeline(whole), source, name, extended)


def _find(name: str, beside: Path) -> Path:
    """The file of that name: as a path first, then among the shipped ones."""
    if (found := existing_file(name, beside)) is not None:
        return found
    path = Path(name)
    stem = path.name.removesuffix(".yaml")
    if path.parent in (Path(), Path("configs")) and stem in shipped():
        return shipped_file(stem)
    if name and (beside / path).is_dir():
        raise ConfigError.at(Mark(name), "is a directory; name a file in it", "SW-NO-FILE")
    near = did_you_mean(stem, shipped()) if path.parent in (Path(), Path("configs")) else ""
    raise ConfigError.at(Mark(name), f"no such file or shipped config{near}", "SW-NO-FILE")


def _merged(
    read: Located, beside: Path, above: tuple[Path, ...]
) -> tuple[Located, Extended | None]:
    """A file's content laid over that of the file it extends, and that file.

    `beside`: the folder that it lies in; `above`: the file itself, after those that extend it.
    """
    assert isinstance(read.value, dict), "read_yaml returned something else than a mapping"
    own = {key: part for key, part in read.value.items() if key != "extends"}
    source, parent = Located(own, read.mark, read.key), read.value.get("extends")
    if parent is None:
        return _file_over(None, source), None
    if not isinstance(parent.value, str):
        raise ConfigError.at(parent.mark, "extends must be a shipped name or a path")
    try:
        found = _find(parent.value, beside)
    except ConfigError as error:
        raise ConfigError.at(parent.mark, f"extends {error.message}", error.code) from error
    here = found.resolve()
    if here in above:
        raise ConfigError.at(parent.mark, f"extends {parent.value!r}, which extends this file")
    if len(above) > MAX_EXTENDS:
        raise ConfigError.at(parent.mark, f"extends through more than {MAX_EXTENDS} files")
    content = read_yaml(found, _shown(found, parent.value))
    before, _ = _merged(content, found.parent, (*above, here))
    return _file_over(before, source), Extended(_name_of(found), before)


def _shown(path: Path, name: str) -> str:
    return f"configs/{path.name}" if path.parent == SHIPPED else name


def _name_of(path: Path) -> str:
    """The name under which a file that was found can be loaded from here."""
    return path.stem if path in _shipped_files().values() else str(path)


def _file_over(parent: Located | None, child: Located) -> Located:
    """A file over the one that it extends; the nodes of a pipeline by their names and places."""
    if parent is not None:
        parent, child = _named_states(parent), _named_states(child)
        refuse_keys_of_another_form(parent, child)
        if is_abstract(parent):
            refuse_mapped_nodes(child)
        _refuse_misspelt(parent, child)
    assert isinstance(child.value, dict), "a file is a mapping"
    merged = child if parent is None else _over(parent, child)
    assert isinstance(merged.value, dict), "a mapping over a mapping is one"
    if "policies" in child.value:
        chosen = None if parent is None else _key(parent, "policies")
        policies = policies_over(chosen, child.value["policies"], _over)
        merged = Located({**merged.value, "policies": policies}, merged.mark, merged.key)
    nodes = child.value.get("nodes")
    if nodes is None or not isinstance(nodes.value, dict):
        return merged
    from .listing import first_listing, listing_over

    before = None if parent is None else parent.at(("nodes",))
    if before is None or before is parent:
        listed = first_listing(nodes)
    elif isinstance(before.value, dict):
        listed = listing_over(before, nodes, _over)
    else:
        listed = before
    return _with(merged, listed)


def _named_states(source: Located) -> Located:
    """States that are written as their names alone, as what they are short for."""
    states = _key(source, "states")
    if states is None or not isinstance(states.value, list) or not isinstance(source.value, dict):
        return source
    named = [
        Located({"name": each}, each.mark) if isinstance(each.value, str) else each
        for each in states.value
    ]
    listed = Located(named, states.mark, states.key)
    return Located({**source.value, "states": listed}, source.mark, source.key)


def _refuse_misspelt(parent: Located, child: Located) -> None:
    """A node that touches nothing and is called nearly as one of the file before is no new one.

    Raises `ConfigError`.
    """
    before, after = _key(parent, "nodes"), _key(child, "nodes")
    if before is None or not isinstance(before.value, list):
        return
    if after is None or not isinstance(after.value, list):
        return
    known = [name for name in _names(before.value) if name]
    for name, part in zip(_names(after.value), after.value, strict=True):
        if name is None or name in known or _touches(part) or nearest(name, known) is None:
            continue
        said = f"there is no node {name!r} to change{did_you_mean(name, known)}"
        raise ConfigError.at(part.at(("name",)).mark, f"{said}; a new one has reads or writes")


def _touches(node: Located) -> bool:
    """Whether an abstract node says what its ops read or write."""
    ops = [op.value for side in ("host", "device") if (op := _key(node, side)) is not None]
    return any(isinstance(op, dict) and op.keys() & {"reads", "writes", "phases"} for op in ops)


def _key(source: Located, key: str) -> Located | None:
    return source.value.get(key) if isinstance(source.value, dict) else None


def _with(source: Located, nodes: Located) -> Located:
    assert isinstance(source.value, dict), "a file is a mapping"
    return Located({**source.value, "nodes": nodes}, source.mark, source.key)


def _over(parent: Located, child: Located) -> Located:
    """`child` where it speaks, else `parent`: mappings by key, lists of named parts by name."""
    if isinstance(parent.value, dict) and isinstance(child.value, dict):
        merged = dict(parent.value)
        for key, part in child.value.items():
            merged[key] = _over(merged[key], part) if key in merged else part
        return Located(merged, child.mark, child.key)
    if isinstance(parent.value, list) and isinstance(child.value, list):
        known, new = _names(parent.value), _names(child.value)
        if known and new and None not in (*known, *new) and len(set(new)) == len(new):
            parts = list(parent.value)
            for name, part in zip(new, child.value, strict=True):
                if name in known:
                    parts[known.index(name)] = _over(parts[known.index(name)], part)
                else:
                    parts.append(part)
            return Located(parts, child.mark, child.key)
    return child


def _names(parts: list[Located]) -> list[str | None]:
    """The `name` of each part that is a mapping with one."""
    found: list[str | None] = []
    for part in parts:
        name = part.value.get("name") if isinstance(part.value, dict) else None
        found.append(name.value if name and isinstance(name.value, str) else None)
    return found


def with_settings(
    source: Located, overrides: Mapping[str, Any], option: str | None = "--set"
) -> Located:
    """`source` with values replaced; nodes and policies as in a file that extends it.

    A value that is located has been said otherwise than by `option`, and is told there.
    """
    changes: Located | None = None
    for key, given in dotted(overrides):
        written = option is not None and isinstance(given, str)
        mark = Mark(f"{option} {key}={given}" if written else f"overrides[{key!r}]")
        if isinstance(given, Located):
            mark = given.mark
        steps = key.split(".")
        if not all(steps):
            form = "a key as dotted.key" if option is None else f"it as {option} dotted.key=value"
            raise ConfigError.at(mark, f"write {form}")
        value = _moved(_read(given, mark), mark)
        if len(steps) == 2 and steps[0] == "policies":
            value = by_kind(value)
        listed = steps[0] == "nodes" and isinstance(source.at(("nodes",)).value, dict)
        if listed or (steps[0] == "policies" and len(steps) > 1):
            changes = _replaced(changes or Located({}, source.mark), steps, value, mark)
        else:
            source = _replaced(source, steps, value, mark)
    return source if changes is None else _file_over(source, changes)


def _read(given: Any, mark: Mark) -> Located:
    """A text as YAML, anything else as it is."""
    if isinstance(given, Located):
        return given
    if not isinstance(given, str):
        return located(given, mark)
    try:
        return parse_yaml(given, mark.file) if given.strip() else Located("", mark)
    except ConfigError as error:
        raise ConfigError.at(mark, error.problems[0].message) from error


def _replaced(part: Located, steps: list[str], value: Located, mark: Mark) -> Located:
    if not steps:
        return value.keyed(mark)
    step, rest = steps[0], steps[1:]
    if isinstance(part.value, list):
        names = _names(part.value)
        index = names.index(step) if step in names else int(step[:9]) if step.isdecimal() else -1
        if not 0 <= index < len(names):
            known = [name for name in names if name]
            raise ConfigError.at(mark, f"no entry {step!r}{did_you_mean(step, known)}")
        parts = list(part.value)
        parts[index] = _replaced(parts[index], rest, value, mark)
        return Located(parts, part.mark, part.key)
    if isinstance(part.value, dict):
        if step in ("costs", "slots") and rest:
            rest = [".".join(rest)]  # the names below have dots of their own: forward.device
        inner = part.value.get(step, Located({}, mark, mark))
        replaced = _replaced(inner, rest, value, mark)
        return Located({**part.value, step: replaced}, part.mark, part.key)
    if part.value is not None:
        raise ConfigError.at(mark, f"there is nothing below a plain value: remove {step!r}")
    return _replaced(Located({}, mark, mark), steps, value, mark)


def _moved(part: Located, mark: Mark) -> Located:
    """The same data, all of it said to stand at `mark`."""
    if isinstance(part.value, dict):
        return Located({key: _moved(p, mark) for key, p in part.value.items()}, mark, mark)
    if isinstance(part.value, list):
        return Located([_moved(p, mark) for p in part.value], mark, mark)
    return Located(part.value, mark, mark)
