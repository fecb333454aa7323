"""Numbers that requests say to nodes, by name: declared by the kind, staged for each sampling row.

What a pipeline file says of a node holds for all requests. A node that edits logits often has to do
something else for each of them, as `sample` does with their temperatures. So a kind may list the
numbers that it takes from requests; which names there are follows from the nodes of a pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

from ..graph.errors import GraphError, did_you_mean


@dataclass(frozen=True, slots=True)
class RequestSetting:
    """A number that a request may give under `node_settings`, from `least` to `most`.

    `says`: what it does. A request that does not give it has the `default`.

    Raises:
        GraphError: a name that is none, or bounds that do not hold the default.
    """

    name: str
    says: str
    default: float = 0.0
    least: float = -1e6
    most: float = 1e6

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise GraphError(
                f"a request's setting is called {self.name!r}: use letters, digits and _",
                code="SW-KIND",
            )
        if not -1e300 < self.least <= self.default <= self.most < 1e300:
            raise GraphError(
                f"setting {self.name!r}: its default {self.default} is not between {self.least} "
                f"and {self.most}",
                code="SW-KIND",
            )


def joined(kinds: Iterable[tuple[RequestSetting, ...]]) -> tuple[RequestSetting, ...]:
    """The settings of all nodes of a pipeline, each once, in the order of the nodes.

    Raises `GraphError` where two nodes mean different things by a name.
    """
    found: dict[str, RequestSetting] = {}
    for setting in (each for settings in kinds for each in settings):
        if found.setdefault(setting.name, setting) != setting:
            raise GraphError(
                f"two nodes take the setting {setting.name!r} from requests, but not as the same: "
                "rename one of them",
                code="SW-KIND",
            )
    return tuple(found.values())


def check_given(settings: tuple[RequestSetting, ...], given: Mapping[str, float]) -> None:
    """Raises `ValueError` for a name that no node takes, and for a number out of its bounds."""
    known = {each.name: each for each in settings}
    for name, value in given.items():
        if name not in known:
            takes = f"they take {', '.join(known)}" if known else "none of them takes any"
            raise ValueError(
                f"no node of this pipeline takes {name!r}{did_you_mean(name, known)}: {takes}"
            )
        least, most = known[name].least, known[name].most
        if not (isfinite(value) and least <= value <= most):
            raise ValueError(f"{name} must be from {least:g} to {most:g}, not {value:g}")
