"""The policies there are, by decision and name: ours, and those that installed packages bring.

A policy is found by its registered name only, so a pipeline file can never name code to import.
An entry point in group `stepweave.policies` is named `decision.name`, as in `acceptance.near_best`,
and is a subclass of `Policy` that does what the decision's protocol says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any, Final

from ..graph.entry_points import load, package_of, registered
from ..graph.entry_points import passed_over as hidden
from ..graph.errors import did_you_mean
from .acceptance import Acceptance, Block, Coupled, Rejection, Synthetic, Typical
from .admission import Admission, Eager, JustInTime
from .drafting import ByAcceptance, ByRows, Drafting, Full
from .errors import PolicyError
from .fastest import Fastest
from .policy import Policy
from .preemption import FewestTokens, LastCome, Preemption
from .resumption import Cheaper, KeptOnHost, Resumption
from .scheduling import DecodesFirst, Groups, Scheduling, Shared
from .stopping import AsAsked, Repetition, Stopping

GROUP: Final = "stepweave.policies"

DECISIONS: Final[Mapping[str, type]] = {
    "admission": Admission,
    "scheduling": Scheduling,
    "preemption": Preemption,
    "resumption": Resumption,
    "drafting": Drafting,
    "acceptance": Acceptance,
    "stopping": Stopping,
}
"""What each decision's policies must do, by the decision's key in a pipeline file."""

_BUILT_IN: Final[Mapping[str, Mapping[str, type[Policy]]]] = {
    "admission": {"eager": Eager, "just_in_time": JustInTime},
    "scheduling": {"decodes_first": DecodesFirst, "shared": Shared, "groups": Groups},
    "preemption": {"last_come": LastCome, "fewest_tokens": FewestTokens},
    "resumption": {"kept": KeptOnHost, "cheaper": Cheaper},
    "drafting": {
        "full": Full,
        "by_rows": ByRows,
        "by_acceptance": ByAcceptance,
        "fastest": Fastest,
    },
    "acceptance": {
        "coupled": Coupled,
        "rejection": Rejection,
        "block": Block,
        "typical": Typical,
        "synthetic": Synthetic,
    },
    "stopping": {"as_asked": AsAsked, "repetition": Repetition},
}


def known(decision: str, *, installed: bool = True) -> tuple[str, ...]:
    """Names of all policies for a decision, without importing the code of a package.

    `installed`: those of installed packages too, after those that ship.
    """
    others = sorted(name for name, _ in _installed(decision)) if installed else ()
    return (*_BUILT_IN[decision], *others)


def passed_over(decision: str) -> dict[str, list[str]]:
    """By name, packages whose policy nobody finds, since another has its name."""
    return hidden(_installed(decision), _BUILT_IN[decision])


def default(decision: str) -> str:
    """The name of the policy for a decision where none is named."""
    return next(iter(_BUILT_IN[decision]))


def loadable(decision: str) -> dict[str, type[Policy]]:
    """All policies for a decision by name, but for those of packages that cannot be loaded."""
    found = {}
    for name in known(decision):
        with suppress(PolicyError):
            found[name] = policy_class(decision, name)
    return found


@cache
def policy_class(decision: str, name: str) -> type[Policy]:
    """The policy of that name. Raises `PolicyError` with the nearest right name."""
    if found := _BUILT_IN[decision].get(name):
        return found
    for of, point in _installed(decision):
        if of == name:
            return load(point, "policy", _checked, PolicyError)
    guess = did_you_mean(name, known(decision))
    raise PolicyError(f"there is no {decision} policy {name!r}{guess}{_misnamed()}")


def policy(decision: str, name: str, **options: Any) -> Any:
    """The policy with these options, ready to be asked.

    Raises `PolicyError` for an unknown name, and for a policy that does not do what the decision's
    protocol says; pydantic's `ValidationError` for wrong options.
    """
    made = policy_class(decision, name)(**options)
    check_policy(decision, made)
    return made


def check_policy(decision: str, made: object) -> None:
    """Raises `PolicyError` where an object cannot decide what it was chosen for."""
    protocol = DECISIONS[decision]
    wanted = getattr(protocol, "__protocol_attrs__", ()) or _members(protocol)
    missing = sorted(name for name in wanted if not hasattr(made, name))
    if missing:
        raise PolicyError(
            f"{called(decision, made)} has no {', no '.join(map(repr, missing))}: see "
            f"stepweave.policies.{protocol.__name__}, and docs/reference/policies.md"
        )
    if decision == "acceptance" and made.compares and made.couples:  # type: ignore[attr-defined]
        raise PolicyError(
            f"{called(decision, made)} both compares and couples: what a draft is compared with "
            "must be independent of the noise that it was drawn with; set one of them to False"
        )


def called(decision: str, made: object) -> str:
    """A policy as messages name it. One that a file chose has its `kind`, in a class derived from
    the policy's own.
    """
    for each in type(made).__mro__ if hasattr(made, "kind") else (type(made),):
        for name, kind in _BUILT_IN[decision].items():
            if each is kind:
                return f"{decision} policy {name!r}"
        for name, point in _installed(decision):
            if point.value.partition(":")[2] == each.__qualname__:
                return f"{decision} policy {name!r} of {package_of(point)}"
    return f"{decision} policy {type(made).__name__!r}"


def _members(protocol: type) -> set[str]:
    """What a protocol asks for (Python before 3.12 does not keep a list of it)."""
    return {name for name in vars(protocol) if not name.startswith("_")}


def _installed(decision: str) -> Iterator[tuple[str, EntryPoint]]:
    for point in registered(GROUP):
        of, _, name = point.name.partition(".")
        if of == decision:
            yield name, point


def _misnamed() -> str:
    """Entry points that no decision has, since nobody finds what they register."""
    return "".join(
        f". {package_of(point)} registers {point.name!r}, which should be `decision.name` with "
        f"one of the decisions {', '.join(DECISIONS)}"
        for point in registered(GROUP)
        if point.name.partition(".")[0] not in DECISIONS
    )


def _checked(found: Any) -> type[Policy]:
    if not (isinstance(found, type) and issubclass(found, Policy)):
        must = "a subclass of stepweave.policies.Policy"
        raise PolicyError(f"it must name {must}, not {found!r:.80}")
    if "kind" in found.model_fields:
        raise PolicyError("it has an option 'kind', the key of every policy's name: rename it")
    return found
