"""`stepweave graph whatif`: what another duration, slot count or setting would do to the period."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..configs.errors import ConfigError, Mark
from ..graph.answers.difference import difference
from ..graph.answers.extensions import extensions, gain_words
from ..graph.answers.modes import mode_periods
from ..graph.answers.sensitivity import Sensitivity, sensitivities
from ..graph.answers.whatif import bound_by, outcome
from ..graph.plan import Plan
from ..views.mode_words import mode_words, modes_gain
from .change import Change, changed, configured
from .cycle_letters import Letters
from .diff import cycle_words, difference_lines
from .forms import gains_of_forms
from .sweeps import sweep, swept
from .wrapping import columns, paragraph, table

if TYPE_CHECKING:
    from .graph import WhatIfOptions


def whatif(asked: WhatIfOptions) -> None:
    """Print what the change does, or what each value of the sweeps does, or which op matters."""
    change, sweeps = Change.of(asked), [sweep(each) for each in asked.sweep or ()]
    if asked.output is not None and not sweeps:
        raise ConfigError.at(
            Mark(str(asked.output)), "only a sweep can be written to a file: add --sweep KEY=VALUES"
        )
    plain = configured(asked)
    if sweeps:
        swept(asked, plain, change, sweeps)
    elif change and not asked.rank:
        _compared(asked, plain.plan, changed(asked, plain, change))
    else:
        forms = [] if change else [*gains_of_forms(plain)]
        _ranked(asked, changed(asked, plain, change), forms)


def _compared(asked: WhatIfOptions, before: Plan, after: Plan) -> None:
    if asked.json:
        found = {
            "config": asked.config,
            "before": outcome(before, before),
            "after": outcome(after, before),
        }
        print(json.dumps(found))
        return
    found_difference = difference(before, after)
    if found_difference.identical:
        print("nothing changes: the plan and its costs stay the same")
    else:
        print("\n".join(difference_lines(found_difference, columns())))


def _ranked(asked: WhatIfOptions, plan: Plan, forms: Sequence[str]) -> None:
    found = sensitivities(plan)
    if asked.json:
        ops = [each.to_json() for each in found]
        gains = [
            {"name": name, "without_us": without.step_us} for name, _, without in extensions(plan)
        ]
        more = {"gains": gains} if gains else {}
        print(
            json.dumps({"config": asked.config, "before": outcome(plan, plan), "ops": ops, **more})
        )
    else:
        print("\n".join(_ranking(asked.config, plan, found, columns(), forms)))


def _ranking(
    config: str, plan: Plan, found: Sequence[Sensitivity], width: int, forms: Sequence[str] = ()
) -> list[str]:
    period = f"{plan.step_us:,.6g} µs a step (costs: {plan.costs_from})"
    lines = paragraph(f"{config}: {period}, bound by {bound_by(plan)}:", width)
    lines += paragraph(cycle_words(plan.critical_cycle), width, 2)
    gains = [*_extensions(plan), *forms]
    lines += [line for said in gains for line in paragraph(said, width)]
    paying = [each for each in found if each.faster > 0 and each.cost_us > 0]
    others = [each for each in found if each not in paying]
    cycles = Letters()
    if paying:
        rows = [("op", "µs", "1% faster", "if free", "until", "then")]
        for each in paying:
            gain = plan.period_us / each.free_us if each.free_us else float("inf")
            rows.append(
                (
                    each.op,
                    f"{each.cost_us:,.6g}",
                    f"-{each.share:.2g}%",
                    f"{gain:.2f}×",
                    *_until(each, plan, cycles),
                )
            )
        lines += ["", "making these faster makes steps faster"]
        lines += table(rows, width, right=(1, 2, 3, 4))
        lines += cycles.legend(width)
    if others:
        slack = [(each.op, f"{each.cost_us:,.6g}", f"{each.slack_us:,.6g}") for each in others]
        lines += ["", "these may take longer by their slack before a step takes longer"]
        lines += table([("op", "µs", "slack µs"), *slack], width, right=(1, 2))
    return lines


def _extensions(plan: Plan) -> Iterator[str]:
    """What the plan gains by what its graph declares beyond a plain step."""
    yield from (gain_words(plan, each) for each in extensions(plan))
    if (modes := mode_periods(plan)) is not None:
        yield modes_gain(modes)
        yield from mode_words(modes)


def _until(each: Sensitivity, plan: Plan, cycles: Letters) -> tuple[str, str]:
    """How much shorter the op may get before another cycle binds, and which."""
    if each.until_us is None or each.next_cycle is None:
        return "", ""
    return f"{each.until_us:,.6g} µs less", cycles.of(each.next_cycle, plan)
