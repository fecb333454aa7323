import json
import subprocess
import sys
from typing import Any

import jsonschema
import pytest

from stepweave.configs.load import shipped, shipped_file
from stepweave.configs.schema import json_schema
from stepweave.configs.yaml_source import read_yaml


@pytest.fixture(scope="module")
def schema() -> Any:
    return json.loads(json.dumps(json_schema()))


def test_the_schema_is_a_valid_schema(schema: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_config_follows_the_schema(schema: Any, name: str) -> None:
    data = read_yaml(shipped_file(name)).plain()
    jsonschema.Draft202012Validator(schema).validate(data)


@pytest.mark.parametrize(
    "data",
    [
        {"depht": 2},
        {"depth": 0},
        {"executor": "cuda9"},
        {"values": {}, "nodes": []},
        {"values": {"x": {"place": "moon"}}, "nodes": [{"name": "a"}]},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(schema: Any, data: Any) -> None:
    assert not jsonschema.Draft202012Validator(schema).is_valid(data)


def test_every_part_of_a_config_is_described(schema: Any) -> None:
    for name, definition in schema["$defs"].items():
        assert definition.get("description"), name


def test_reading_a_pipeline_loads_no_executor_and_builds_no_model_that_it_does_not_use() -> None:
    """In a process of its own, where nothing else has loaded or used anything."""
    program = (
        "import sys\n"
        "from stepweave.configs.load import load_config\n"
        "from stepweave.configs.abstract import AbstractGraph\n"
        "from stepweave.configs.schema import policy_model\n"
        "from stepweave.nodes.eagle import EagleOptions\n"
        "load_config('async')\n"
        "print([name for name in sys.modules if name.startswith('stepweave.executors')])\n"
        "usual = policy_model('stopping', 'as_asked')\n"
        "unused = (AbstractGraph, EagleOptions, usual)\n"
        "print(*(model.__pydantic_complete__ for model in unused))\n"
        "others = ('stepweave.configs.costs', 'stepweave.requests.batch')\n"
        "print([name for name in others if name in sys.modules])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["[]", "False False False", "[]"]
