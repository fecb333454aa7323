"""Which numbers of a schema a library reads as they are: some keep numbers as doubles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

EXACT: Final = 2**53
"""Every whole number up to this one is a double."""

SURE_DIGITS: Final = 15
"""Decimal digits that a double always keeps."""

Number = int | float


def numbers_in(value: object) -> Iterator[Number]:
    """All numbers of a JSON value, however deep."""
    if isinstance(value, list):
        for each in value:
            yield from numbers_in(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from numbers_in(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def is_double(number: Number) -> bool:
    """Whether it is the same after it was read as a double and written with 15 digits."""
    if isinstance(number, int):
        return abs(number) <= EXACT
    return len(digits(number)) <= SURE_DIGITS


def digits(number: Number) -> tuple[int, ...]:
    """Its decimal digits, without zeros at the end."""
    found: tuple[int, ...] = _decimal(number).digits
    return found


def decimals(number: Number) -> int:
    """Its digits behind the point."""
    return max(0, -int(_decimal(number).exponent))


def next_to_bound(parts: Mapping[str, Any]) -> str | None:
    """An exclusive bound that is whole, with the other bound less than 1 away; None: no such."""
    low = max((parts[key] for key in ("minimum", "exclusiveMinimum") if key in parts), default=None)
    high = min(
        (parts[key] for key in ("maximum", "exclusiveMaximum") if key in parts), default=None
    )
    if low is None or high is None or high - low >= 1:
        return None
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        if keyword in parts and float(parts[keyword]).is_integer():
            return keyword
    return None


def _decimal(number: Number) -> Any:
    return Decimal(repr(number)).normalize().as_tuple()
