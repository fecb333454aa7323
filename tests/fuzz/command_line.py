"""Hostile command lines and files, made from what the program itself declares.

Options come from the commands as they are registered, keys from the JSON Schemas of the files, so
that a new option or key is covered when it is declared. Every case must end in 0, 1 or 2 with a
message that its sender understands:

    python -m tests.fuzz.command_line --seed 1 --cases 2000
    python -m tests.fuzz.command_line --only 1:417        # one case again

Cases run in one process with a limit of memory, in a folder that is thrown away.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import EnumType
from functools import cache
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import typer
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from stepweave.cli.main import app
from stepweave.configs.costs import CostsFile
from stepweave.configs.load import shipped, shipped_file
from stepweave.configs.prompts import PromptLine
from stepweave.configs.schema import json_schema
from stepweave.configs.shipped_costs import shipped_costs

MEMORY_BYTES = 24 << 30  # of addresses; torch maps several times what it uses
TOO_LONG_S = 240  # of one case: it hangs

WORDS: Sequence[str] = (
    *("", " ", "-", "--", "=", "==", "a=b", "a.b.c=1", "=1", "0", "-1", "1", "2", "007", "1_0"),
    *("1.5", "-0.0", "1e999", "nan", "inf", "-inf", "0x10", "٣", "²", str(2**31), str(2**63)),
    *(str(-(2**63)), "9" * 400, "true", "null", "~", "[]", "{}", "[1", "{a", "!!python/name:os"),
    *("*a", "&a [*a]", "quickstart", "abstract_decode", "llama_8b", "all", "forward", "draft.host"),
    *("forward.device", "costs.forward.device", "scale.forward", "slots.staging", "depth"),
    *("depth=3", "depth=-1", "costs.forward.device=5", "nodes.forward.kind=draft", "nodes=5"),
    *(".", "..", "/", "/dev/null", "/dev/full", "nowhere/x", "here.json", "here.yaml", "x.html"),
    *("é", "🙂", "\u202e", "\ufeff", "\udcff", "\x1b[31m", "a\nb", "\t", "%s%n", "{0}", "x" * 300),
    *(
        "x" * 70_000,
        "cpu",
        "cuda",
        "cuda:0",
        "cuda:99",
        "mps",
        "meta",
        "auto",
        "1,2",
        "1,,2",
        "0,1",
    ),
)

VALUES: Sequence[Any] = (
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**53 + 1, 2**63, 10**30, 0.5, -0.0, 1e-320),
    *(1e308, float("nan"), float("inf"), "", " ", "0", "1", "true", "null", "x", "é🙂", "\u202e"),
    *("\ufeff", "\ud800", "\x00", "\x1b[31m", "a\nb", "x" * 300, "x" * 70_000, "../..", "/", "."),
    *("/dev/full", "cuda", "cuda:99", "cpu", "meta", "forward", "token@-1", "token@-99999", "a@b"),
    *(
        "forward.device",
        "driver",
        "embedded",
        "embedded-eagle",
        "embedded-draft",
        "eagle",
        "custom",
    ),
    *(
        [],
        {},
        [[]],
        [{}],
        [None],
        [0],
        ["a", "a"],
        ["x"] * 300,
        {"": 1},
        {"a": {"b": []}},
        {"x": 0},
    ),
    *({"name": "x"}, [{"name": "forward"}], [{"name": "x", "kind": "forward"}], {"forward": 1}),
)

PROMPTS: dict[str, Any] = {
    "id": "a",
    "prompt": "Write a story.",
    "max_tokens": 2,
    "structured_outputs": {"regex": "[a-z]{1,4}"},
    "logit_bias": {"5": 1.0},
    "stop": ["zz"],
}
PIPELINE: dict[str, Any] = {
    "version": 2,
    "extends": "quickstart",
    "model": {},
    "scheduler": {},
    "policies": {"acceptance": "coupled"},
    "slots": {"staging": 2},
    "costs": {"forward.device": 900},
    "nodes": {"draft": {"stream": "draft", "tokens": 2, "reads": {}}, "bitmask": {}},
    "prompts": [PROMPTS],
}
COSTS: dict[str, Any] = {
    "version": 1,
    "basis": "assumed",
    "describes": "x",
    "batch": 4,
    "period_us": {"4": {"p50": 900, "p10": 800}},
    "ops": {"forward.device": {"rows": {"4": 800, "8": {"p50": 900}}}, "draft.host": 5},
}


@dataclass(frozen=True)
class Case:
    """What is typed, and the files that lie in the folder."""

    arguments: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)


# --- the command line, as it is declared --------------------------------------------------------


@cache
def verbs() -> dict[tuple[str, ...], Any]:
    """Every verb by its words."""
    return dict(_verbs(typer.main.get_command(app), ()))


def _verbs(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, each in inner.items():
        yield from _verbs(each, (*path, name))


def any_line(random: Random) -> Case:
    """A verb with some of its options, each with a value that may or may not be meant for it."""
    path, command = random.choice(list(verbs().items()))
    said: list[str] = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            said += [_argument(parameter, path, random)]
    options = [each for each in command.params if each.param_type_name == "option"]
    for option in random.sample(options, min(len(options), random.choice((0, 1, 1, 2, 3)))):
        name = random.choice([*option.opts, *getattr(option, "secondary_opts", [])])
        said += [name] if getattr(option, "is_flag", False) else [name, _value(option, random)]
    if random.random() < 0.05:
        random.shuffle(said)
    if random.random() < 0.03:
        said.append(random.choice(WORDS))
    return Case((*path, *_bounded(path, said, random)), _here(random))


def _argument(parameter: Any, path: tuple[str, ...], random: Random) -> str:
    if random.random() < 0.15:
        return random.choice(WORDS)
    if path == ("bench", "compare"):
        return random.choice(("http://127.0.0.1:9", "abstract_decode", "here.yaml"))
    if parameter.name in ("config", "configs", "x", "y", "left", "right"):
        light = ("abstract_decode", "here.yaml")
        return random.choice(light if path in HEAVY else (*shipped(), *light))
    return random.choice(("forward", "draft", "d2h_copy", "commit", "forward.device", "schedule"))


def _value(option: Any, random: Random) -> str:
    name = str(option.name)
    if random.random() < 0.5:
        return random.choice(WORDS)
    if name in ("settings", "compare", "sweep"):
        return random.choice(KEYS) + "=" + random.choice(WORDS)
    if name == "costs":
        return random.choice((*shipped_costs(), "here.costs.yaml", "all"))
    if name in ("prompts", "schema", "trace", "schemas"):
        return random.choice(("here.jsonl", "here.json", "-"))
    if name in ("output", "html"):
        return random.choice(("x.json", "x.html", "x.svg", "x.csv", "x.txt", "x.dot", "x.png", "-"))
    if choices := _choices(option):
        return random.choice(choices)
    return random.choice(("1", "2", "5", "forward=2", "forward.device=100", "staging=1", "x"))


def _choices(option: Any) -> list[str]:
    """The values of an option that takes one of a few; where they stand depends on typer."""
    described = getattr(option, "type_descriptor", None)
    annotation = getattr(described, "annotation", None)
    if isinstance(annotation, EnumType):
        members: list[Any] = list(annotation)
        return [str(member.value) for member in members]
    return [str(each) for each in getattr(getattr(option, "type", None), "choices", ())]


HEAVY = {("run",), ("trace",), ("profile",), ("bench", "offline"), ("bench", "compare")}
"""Verbs that may load a model."""

ENDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("profile",): ("--rounds", "1", "--rows", "2", "--max-tokens", "4", "--force"),
    ("serve",): ("--host", "240.0.0.1"),  # an address that no machine has: it would serve for ever
    ("bench", "serve"): ("--base-url", "http://127.0.0.1:9"),  # where nobody answers
    ("bench", "offline"): ("--num-prompts", "1"),
    ("bench", "compare"): ("--num-prompts", "1", "--rounds", "1", "--offline"),
}
"""The last words, which bound what a verb does."""


def _bounded(path: tuple[str, ...], said: list[str], random: Random) -> list[str]:
    """Where a model may run it is for a few tokens, as the last word says."""
    if path in ENDS:
        return [*said, *ENDS[path]]
    return [*said, "--max-tokens", "2"] if path in HEAVY and random.random() < 0.9 else said


def _here(random: Random) -> dict[str, bytes]:
    """The files that a command line may name: sound more often than not."""
    return {
        "here.yaml": b"extends: quickstart\nprompts: [{prompt: Write., max_tokens: 2}]\n",
        "here.json": b'{"type": "object"}' if random.random() < 0.7 else b"{",
        "here.jsonl": b'{"prompt": "x", "max_tokens": 2}\n' * random.choice((0, 1, 2)),
        "here.costs.yaml": json.dumps(COSTS).encode(),
    }


# --- files, as their schemas say ----------------------------------------------------------------


@dataclass(frozen=True)
class Spot:
    """A place in a document where a key may stand."""

    path: tuple[str | int, ...]

    def __str__(self) -> str:
        return ".".join(map(str, self.path))


def spots(data: Any, schema: dict[str, Any], root: dict[str, Any]) -> set[Spot]:
    """Every key that `schema` knows of `data`, and of the parts that `data` leaves out."""
    return {Spot(path) for path in _spots(data, schema, root, (), 0)}


def _spots(
    data: Any, schema: dict[str, Any], root: dict[str, Any], at: tuple[str | int, ...], depth: int
) -> Iterator[tuple[str | int, ...]]:
    if depth > 8:
        return
    for each in _alternatives(schema, root):
        known = data if isinstance(data, dict) else {}
        for key, inner in each.get("properties", {}).items():
            yield (*at, key)
            yield from _spots(known.get(key), inner, root, (*at, key), depth + 1)
        extra = each.get("additionalProperties")
        if each.get("type") == "object" and extra is not False:
            for key in (*known, "new"):
                yield (*at, key)
                if isinstance(extra, dict):
                    yield from _spots(known.get(key), extra, root, (*at, key), depth + 1)
        if each.get("type") == "array" and isinstance(data, list) and data:
            yield (*at, 0)
            yield from _spots(data[0], each.get("items", {}), root, (*at, 0), depth + 1)


def _alternatives(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in schema:
        target = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        yield from _alternatives(target, root)
        return
    yield schema
    for word in ("anyOf", "oneOf", "allOf"):
        for each in schema.get(word, ()):
            yield from _alternatives(each, root)


def changed(data: Any, spot: Spot, value: Any) -> Any:
    """A copy of `data` with `value` at `spot`; what is missing on the way is made."""
    whole = deepcopy(data)
    part = whole
    for step, following in zip(spot.path, (*spot.path[1:], None), strict=True):
        if following is None:
            part[step] = value
        elif isinstance(step, str) and not isinstance(part.get(step), dict | list):
            part[step] = {}
        part = part[step]
    return whole


def _kinds() -> dict[str, tuple[list[Any], dict[str, Any], dict[str, Any]]]:
    """By kind of file: documents to start from, the schema of one, and where its `$ref`s lead."""
    schema = json_schema()
    reader = YAML(typ="safe")
    abstract = reader.load(shipped_file("abstract_decode").read_text(encoding="utf-8"))
    definitions = schema["$defs"]
    lines, costs = PromptLine.model_json_schema(), CostsFile.model_json_schema()
    return {
        "pipeline": ([PIPELINE], definitions["PipelineConfig"], schema),
        "abstract": ([abstract], definitions["AbstractGraph"], schema),
        "prompts": ([PROMPTS], lines, lines),
        "costs": ([COSTS], costs, costs),
    }


KINDS = _kinds()
SPOTS = {
    kind: sorted({spot for data in documents for spot in spots(data, schema, root)}, key=str)
    for kind, (documents, schema, root) in KINDS.items()
}
KEYS = [str(spot) for spot in SPOTS["pipeline"] if "prompts" not in spot.path] + ["nothing"]


def any_file(random: Random) -> Case:
    """A sound file with one or two hostile values, and a verb that reads it."""
    kind = random.choice(list(KINDS))
    data: Any = random.choice(KINDS[kind][0])
    for _ in range(random.choice((1, 1, 1, 2))):
        try:
            data = changed(data, random.choice(SPOTS[kind]), random.choice(VALUES))
        except (TypeError, IndexError, KeyError, AttributeError):
            continue  # what was there before is no mapping any more
    return _reading(kind, _text(data, random), random)


def _text(data: Any, random: Random) -> bytes:
    text = json.dumps(data, ensure_ascii=random.random() < 0.7)
    for said, yaml in (("NaN", ".nan"), ("-Infinity", "-.inf"), ("Infinity", ".inf")):
        text = re.sub(rf"(?<=[ :\[]){said}(?=[,\]}}])", yaml, text)
    raw = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.05:
        cut = random.randrange(len(raw))
        raw = raw[:cut] if random.random() < 0.5 else raw[:cut] + b"\xff" + raw[cut:]
    return raw


def _reading(kind: str, raw: bytes, random: Random) -> Case:
    costs = ("--costs", "file.yaml")
    choices: dict[str, list[tuple[str, ...]]] = {
        "pipeline": [
            ("check", "file.yaml"),
            ("check", "--json", "file.yaml"),
            ("graph", "show", "file.yaml"),
            ("simulate", "file.yaml", "--steps", "3"),
            ("graph", "diff", "quickstart", "file.yaml"),
            ("run", "file.yaml", "--prompt", "x", "--max-tokens", "2"),
        ],
        "abstract": [
            ("check", "file.yaml"),
            ("graph", "render", "file.yaml", "-o", "x.html"),
            ("graph", "render", "file.yaml", "-o", "x.svg", "--view", "slots"),
            ("simulate", "file.yaml", "--steps", "5"),
            ("trace", "file.yaml"),
        ],
        "prompts": [("run", "quickstart", "--prompts", "file.yaml")],
        "costs": [
            ("check", "quickstart", *costs),
            ("simulate", "async_eagle", *costs, "--rows", "6", "--steps", "5"),
            ("graph", "whatif", "async_speculation", *costs),
        ],
    }
    return Case(random.choice(choices[kind]), {"file.yaml": raw})


# --- judging ------------------------------------------------------------------------------------

RIDDLES = re.compile(
    r"Traceback|object at 0x|<class '|NoneType|pydantic|validation error|KeyError|TypeError"
    r"|AttributeError|AssertionError|unexpected keyword|has no attribute|Errno \d|RuntimeError"
)
LONGEST = 6000  # characters of all that is said; values that are longer must be cut


def wrong(case: Case) -> tuple[int, str | None]:
    """The exit status, and what is wrong with the answer. Runs in the working directory."""
    for name, raw in case.files.items():
        Path(name).write_bytes(raw)
    result = CliRunner().invoke(app, list(case.arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return 1, "".join(traceback.format_exception(result.exception)[-6:])
    return result.exit_code, _misjudged(result)


def _misjudged(result: Result) -> str | None:
    if result.exit_code not in (0, 1, 2):
        return f"exit status {result.exit_code}: {result.output[-300:]}"
    if result.exit_code == 0:
        return None
    said = result.stderr or result.output  # `check --json` tells it on stdout, as an object
    if not said.strip():
        return f"exit status {result.exit_code} without a word"
    if found := RIDDLES.search(said):
        return f"{found[0]!r} in: {said[-600:]}"
    if len(result.stderr) > LONGEST:
        return f"{len(result.stderr)} characters of message: {result.stderr[:300]}"
    if result.exit_code == 2 and not re.search("[Ee]rror:|FAILED|Usage|^{", said):
        return f"no error: {said[-300:]}"
    return None


def case_of(seed: int, number: int) -> Case:
    """The same for the same two numbers."""
    random = Random(f"{seed}:{number}")
    make: Callable[[Random], Case] = random.choice((any_line, any_file))
    return make(random)


def _hangs(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no answer in {TOO_LONG_S} s")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--only", default=None)
    parser.add_argument("--light", action="store_true", help="nothing that loads a model")
    asked = parser.parse_args(arguments)
    numbers = [(asked.seed, number) for number in range(asked.cases)]
    if asked.only is not None:
        seed, _, number = asked.only.partition(":")
        numbers = [(int(seed), int(number))]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _hangs)
    failed, ended = 0, Counter[int]()
    for seed, number in numbers:
        case = case_of(seed, number)
        heavy = any(case.arguments[: len(verb)] == verb for verb in HEAVY)
        if asked.light and heavy and not asked.only:
            continue
        with tempfile.TemporaryDirectory(prefix="stepweave-fuzz-") as folder:
            os.chdir(folder)
            signal.alarm(TOO_LONG_S)
            status, found = wrong(case)
            signal.alarm(0)
            os.chdir("/")
        ended[status] += 1
        if found is not None:
            failed += 1
            record = {"case": f"{seed}:{number}", "arguments": case.arguments, "wrong": found}
            record["file"] = case.files.get("file.yaml", b"")[:400].decode(errors="replace")
            print(json.dumps(record), flush=True)
    print(json.dumps({"cases": ended.total(), "failed": failed, "ended": ended}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
