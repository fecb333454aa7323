"""What is told of wrong input: the key, the rule, and as much of a value as is readable."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from stepweave.requests.complaints import MOST_SHOWN, complaint


class Text(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["text"] = "text"
    name: Annotated[str, Field(pattern=r"^[a-z]{1,8}$")] = "a"


class Number(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["number"]
    digits: int = 1


def kind_of(given: Any) -> str:
    return str(given.get("type", "text"))


class Whole(BaseModel):
    items: list[
        Annotated[
            Annotated[Text, Tag("text")] | Annotated[Number, Tag("number")], Discriminator(kind_of)
        ]
    ]
    numbers: dict[str, int] = Field(default_factory=dict)


def told(**given: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate({"items": [], **given})
    [detail] = caught.value.errors(include_url=False)
    return complaint(Whole, dict(detail))


def test_a_kind_that_a_function_reads_is_named_by_its_key() -> None:
    said = told(items=[{"type": "nubmer"}])
    assert said == "items[0].type cannot be \"nubmer\" (did you mean 'number'?)"


def test_a_key_of_another_kind_is_not_unknown() -> None:
    assert told(items=[{"digits": 3}]) == "items[0].text: the key 'digits' belongs to another type"
    said = told(items=[{"digit": 3}])
    assert said == "items[0].text: unknown key 'digit' (did you mean 'digits'?)"


@pytest.mark.parametrize("name", ["a/b", "", "a" * 9])
def test_a_name_is_told_the_form_that_it_lacks(name: str) -> None:
    said = told(items=[{"name": name}])
    assert said == f'items[0].text.name: "{name}" is not a name of the form ^[a-z]{{1,8}}$'


def test_of_a_key_no_more_is_repeated_than_of_a_value() -> None:
    long = "k" * 1_000_000
    for said in (told(items=[{long: 1}]), told(numbers={long: "x"})):
        assert "k" * (MOST_SHOWN - 3) + "…" in said
        assert len(said) < 200
