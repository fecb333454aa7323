r"""The formats of JSON Schema that are enforced, each as a pattern for the whole string.

One definition for every library, since the libraries' own let through what is none (the 31st of
April, numbers of an IP address that begin with zero). Where a standard allows more than can be
written as a regular expression, the pattern is narrower: every match is of the format. Formats that
are not in here are annotations, as in the standard.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

_LEAP: Final = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR: Final = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DAY: Final = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP}-02-29)"
)
"""RFC 3339 `full-date`, the Gregorian calendar from year 1 on."""

_CLOCK: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_ZONE: Final = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
"""RFC 3339 `time-offset`; leap seconds are left out: which minutes have one is no grammar."""

_BYTE: Final = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = rf"{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE}"

_LONG_LABEL: Final = r"(?:[A-Za-z0-9]{1,63}|[A-Za-z0-9](?:-?[A-Za-z0-9]){0,31})"
_SHORT_LABEL: Final = r"(?:[A-Za-z0-9]{1,29}|[A-Za-z0-9](?:-?[A-Za-z0-9]){0,14})"
_HOST: Final = (
    rf"(?:{_LONG_LABEL}(?:\.{_LONG_LABEL}){{0,2}}|{_SHORT_LABEL}(?:\.{_SHORT_LABEL}){{3,7}})"
)
"""RFC 1123, without "--", which begins international labels ("xn--…") that are checked further. A
name has 253 characters at most: three labels of 63, or eight of 29."""

_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_EMAIL: Final = rf"{_ATOM}(?:\.{_ATOM}){{0,2}}@{_LONG_LABEL}(?:\.{_LONG_LABEL}){{1,2}}"
"""RFC 5321, without quoted local parts, which have 64 characters at most, and address literals."""

_HEX: Final = r"[0-9A-Fa-f]"
_UUID: Final = rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"

_PERCENT: Final = rf"%{_HEX}{{2}}"
_SEGMENT: Final = rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|{_PERCENT})"
_QUERY: Final = rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|{_PERCENT})*"
_NAME: Final = rf"(?:[A-Za-z0-9._~!$&'()*+,;=-]|{_PERCENT})*"
_USER: Final = rf"(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|{_PERCENT})*@)?"
_TAIL: Final = rf"(?:\?{_QUERY})?(?:#{_QUERY})?"
_PLACE: Final = rf"//{_USER}{_NAME}(?::[0-9]*)?(?:/{_SEGMENT}*)*"
_ROOTED: Final = rf"/(?:{_SEGMENT}+(?:/{_SEGMENT}*)*)?"
_PATH: Final = rf"{_SEGMENT}+(?:/{_SEGMENT}*)*"
_SCHEME: Final = r"[A-Za-z][A-Za-z0-9+.-]*:"
_URI: Final = rf"{_SCHEME}(?:{_PLACE}|{_ROOTED}|{_PATH})?{_TAIL}"
"""RFC 3986, without IP literals as hosts."""

_NO_COLON: Final = rf"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|{_PERCENT})+(?:/{_SEGMENT}*)*"
_URI_REFERENCE: Final = (
    rf"(?:{_SCHEME})?(?:{_PLACE}|{_ROOTED})?{_TAIL}|{_SCHEME}{_PATH}{_TAIL}|{_NO_COLON}{_TAIL}"
)

_VARIABLE: Final = r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*(?:\*|:[1-9][0-9]{0,3})?"
_URI_TEMPLATE: Final = (
    rf"(?:[A-Za-z0-9._~!$&()*+,;=:@/?#\[\]-]|{_PERCENT}"
    rf"|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
)

_POINTER: Final = r"(?:/(?:[^~/]|~[01])*)*"


def _duration() -> str:
    """RFC 3339, appendix A."""
    seconds = "[0-9]+S"
    minutes = f"[0-9]+M(?:{seconds})?"
    hours = f"[0-9]+H(?:{minutes})?"
    clock = f"T(?:{hours}|{minutes}|{seconds})"
    days = "[0-9]+D"
    months = f"[0-9]+M(?:{days})?"
    years = f"[0-9]+Y(?:{months})?"
    return f"P(?:(?:{days}|{months}|{years})(?:{clock})?|{clock}|[0-9]+W)"


def _ipv6() -> str:
    """RFC 4291: eight groups, one run of zeros as "::", the last two groups as IPv4."""
    group = f"{_HEX}{{1,4}}"
    last = f"(?:{group}:{group}|{_IPV4})"
    forms = [f"(?:{group}:){{6}}{last}"]
    for after in range(5, -1, -1):
        # The run of zeros stands for one group at least.
        before = 5 - after
        head = f"(?:{group}(?::{group}){{0,{before - 1}}})?" if before else ""
        forms.append(f"{head}::(?:{group}:){{{after}}}{last}")
    forms.append(f"(?:{group}(?::{group}){{0,5}})?::{group}")
    forms.append(f"(?:{group}(?::{group}){{0,6}})?::")
    return "|".join(forms)


_FORMATS: Final[dict[str, str | Callable[[], str]]] = {
    "date": _DAY,
    "time": _CLOCK + _ZONE,
    "date-time": f"{_DAY}T{_CLOCK}{_ZONE}",
    "duration": _duration,
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _ipv6,
    "uuid": _UUID,
    "uri": _URI,
    "iri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri-reference": _URI_REFERENCE,
    "uri-template": _URI_TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}


@cache
def format_pattern(name: str) -> str | None:
    """A pattern for the whole string; None for a format that is an annotation."""
    body = _FORMATS.get(name)
    if body is None:
        return None
    return f"^(?:{body() if callable(body) else body})$"


def format_names() -> tuple[str, ...]:
    """The formats that are enforced."""
    return tuple(_FORMATS)
