"""Write the table of incidents from the cases that the tests try.

    python docs/make_incidents.py

writes `docs/incidents.md`. A test writes it again and compares, so the page says what is tested.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the cases are in `tests`, which is not installed

from stepweave.graph.plan import Plan  # noqa: E402
from stepweave.graph.planner.compile import compile_plan  # noqa: E402
from stepweave.graph.verifier.verify import violations  # noqa: E402
from tests.incidents.corpus import GROUPS, INCIDENTS  # noqa: E402
from tests.incidents.incident import Incident, Mistake, written  # noqa: E402

PAGE = ROOT / "docs" / "incidents.md"
INTRODUCTION = """\
# Incidents

Bugs that real engines had where asynchronous scheduling, speculation and grammars meet, from their
issue trackers. Each is a test, in `tests/incidents/`: the *safe form* is a graph from which the
right wait or number of slots is derived, or a run of this engine; the *buggy form* is what somebody
wrote by hand. The buggy form must be refused, and where it is a race, some interleaving found by
brute force must give another result than the serial program.

This page is written from the tests by `docs/make_incidents.py`. *(graph)* marks bugs of features
that the engine does not have yet; they are tested as graphs. [Error codes](reference/errors.md)
explains the codes. Those of groups G and H are no reports: they are mistakes of the other groups,
made in nodes that are newer, or in what nodes call. Each node kind has one.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for letter, title in GROUPS.items():
        rows = "\n".join(_row(each) for each in INCIDENTS if each.id.startswith(letter))
        parts.append(
            f"## {letter}. {title}\n\n"
            "| | where | what the hand-written engine did | what is done here | the buggy form is "
            f"refused by |\n| --- | --- | --- | --- | --- |\n{rows}\n"
        )
    parts.append(
        "## Reports\n\nFor those that are graphs: the waits and slots that are derived, and what "
        "the verifier reports of the buggy plan.\n"
    )
    parts += [text for each in INCIDENTS for text in _told(each)]
    return "\n".join(parts)


def _row(incident: Incident) -> str:
    mark = " *(graph)*" if incident.encoded_as_graph else ""
    cells = (
        f"**{incident.id}**{mark}",
        incident.where,
        incident.happened,
        incident.instead,
        "; ".join(dict.fromkeys(_refusals(incident))),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _refusals(incident: Incident) -> Iterator[str]:
    for mistake in incident.mistakes:
        yield f"{mistake.what}: `{mistake.code}`"
    for refusal in incident.refusals:
        by = f"`{refusal.by}`" if refusal.by[:1].isupper() else refusal.by
        yield f"{refusal.what}: {by}"


def _told(incident: Incident) -> Iterator[str]:
    if incident.derived is None:
        return
    plan = compile_plan(incident.derived.graph())
    slots = ", ".join(f"`{name}` {plan.slots[name]}" for name in incident.derived.slots)
    waits = ", ".join(f"`{wait}`" for wait in written(plan))
    yield (
        f"### {incident.id}\n\nDerived: {'waits' if len(plan.waits) > 1 else 'the wait'} {waits}"
        + (f"; slots: {slots}" if slots else "")
        + ".\n"
    )
    for mistake in incident.mistakes:
        what = mistake.what[0].upper() + mistake.what[1:]
        yield f"{what}:\n\n```text\n{_report(plan, mistake)}\n```\n"


def _report(plan: Plan, mistake: Mistake) -> str:
    return "\n".join(str(violation) for violation in violations(mistake.plan(plan)))


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
