"""`stepweave check --mutate`: break a plan in every small way, and see whether it is noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..graph.errors import StepweaveError
from ..testing.exploring.campaign import Campaign, Tally, campaign
from .check import failure, tell_failure
from .planned import planned
from .reporting import UNSOUND, say, status_of
from .settings import in_stages

if TYPE_CHECKING:
    from .verbs import CheckOptions

SAY_EVERY_S = 5.0


def mutate(asked: CheckOptions) -> int:
    """Judge the mutants of each config in order; the exit status is 1 if one survives anywhere."""
    status, settings = 0, in_stages(asked.settings, asked.pp)
    for place, name in enumerate(asked.configs):
        try:
            found = campaign(planned(name, settings), progress=_progress(name))
        except StepweaveError as error:
            status = max(status, status_of(error))
            told = _object(name, Campaign(), failure(error)["errors"]) if asked.json else None
            tell_failure(name, error, told)
            continue
        status = status if found.ok else max(status, UNSOUND)
        if asked.json:
            print(json.dumps(_object(name, found, [])), flush=True)
        else:
            if place:
                print()
            print(_text(name, found), flush=True)
    return status


def _object(name: str, found: Campaign, errors: list[dict[str, Any]]) -> dict[str, Any]:
    mutants = found.to_json()
    return {"config": name, **mutants, "ok": found.ok and not errors, "errors": errors}


def _text(name: str, found: Campaign) -> str:
    whole = sum(found.tallies.values(), Tally())
    rows = [*((kind, tally) for kind, tally in found.tallies.items()), ("all", whole)]
    lines = [
        f"{name}: {whole.killed} of {whole.total} mutants killed by verifier and explorer",
        "  class       killed       total  equivalent     refused",
    ]
    for kind, tally in rows:
        counts = (tally.killed, tally.total, tally.equivalent, tally.refused)
        lines.append("  " + "  ".join([kind.ljust(6), *(str(count).rjust(10) for count in counts)]))
    lines.append(
        f"  undeclared accesses seen by checking mode: {whole.caught} of {whole.undeclared}"
    )
    for each in found.disagreements:
        lines += ["", "SURVIVED", *(f"  {line}" for line in str(each).splitlines())]
    return "\n".join(lines)


def _progress(name: str) -> Callable[[int], None]:
    """A line on stderr now and then, for those who wait."""
    last = monotonic()

    def tell(done: int) -> None:
        nonlocal last
        if monotonic() - last >= SAY_EVERY_S:
            last = monotonic()
            say(f"{name}: {done} mutants judged")

    return tell
