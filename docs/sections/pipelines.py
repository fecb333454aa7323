"""pipelines.md: each pipeline that ships, drawn, with its period and what bounds it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from sections.markdown import code, table

from stepweave.cli.forms import gains_of_forms
from stepweave.cli.planned import planned, planned_with
from stepweave.configs.costs import load_costs
from stepweave.configs.load import load_config, shipped, shipped_file
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.plan import Plan
from stepweave.views.svg_lanes import lanes_svg

INTRODUCTION = """\
# Pipelines

Every pipeline that ships with the package, drawn as the executor runs it, with its predicted
period, the cycle that sets it, and whether only ops of a device are on that cycle: then the host is
hidden, and only a faster device makes a step shorter. Where it is not so, the page says why, and
what would make it so, as the compiler finds it.

Pipelines that run are compiled with the shipped profiles `llama_8b` and `llama_70b`, whose
durations are assumed and not measured ([Costs](costs.md)), for 8 rows, each with as many drafts as
the file says. Graphs without code have the durations of their file. In pictures each colour is a
step, each red arrow a wait. This page and its pictures are written by `docs/make_reference.py` and
`docs/make_images.py`.

    stepweave check NAME --costs llama_8b
    stepweave graph render NAME -o plan.html
"""
PROFILES = ("llama_8b", "llama_70b")

WHY: Mapping[str, str] = {
    "async_allowed_drafts": "What a grammar allows after a token is known on the host, when the "
    "token is: the drafter waits for the copy, for the walk of the matchers, and to be launched.",
    "synchronous": "The host schedules a step when it has settled the one before, so all of its "
    "work is between two forward passes. That is what this pipeline is for: the loop that others "
    "are compared with.",
    "grammar_in_turns": "A thread of the host walks what was sampled, for longer than a forward "
    "pass takes, before the next mask can be filled.",
    "prefill_decode": "The host builds what the next pass computes from the tokens of this one: "
    "they go to the host and back in each step.",
    "seldom_statistics": "Where experts lie follows on the host from counts of the step before, "
    "which the next step of four waits for.",
}
"""Why the host is on the critical cycle, of those where it is."""

REMEDIES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "async_allowed_drafts": (
        "the drafter chose its first draft without a mask",
        {
            "  d2h_tokens: {after: sample, stream: copy}\n": "",
            "  draft_mask: {after: d2h_tokens, stream: compute}\n": "",
            "  draft: {after: draft_mask}": "  draft: {after: sample}",
        },
    ),
    "grammar_in_turns": ("the walk took 600 µs", {"cost_us: 2600": "cost_us: 600"}),
    "prefill_decode": (
        "the tree were built in 600 µs, and of tokens that are two steps old",
        {"cost_us: 2600": "cost_us: 600", "sampled_host@-1": "sampled_host@-2"},
    ),
    "seldom_statistics": (
        "experts moved a round of four steps later, and a thread of its own placed them",
        {
            "placement@-1": "placement@-5",
            "- name: place_experts": "- name: place_experts\n    actor: experts",
        },
    ),
}
"""What would hide the host, and what the file would say then, in place of what."""


def runs(name: str) -> bool:
    """Whether there is code to run."""
    return isinstance(load_config(name), PipelineConfig)


@cache
def plans(name: str) -> Mapping[str, Plan]:
    """By profile, or by the file's own costs."""
    if runs(name):
        return {profile: planned(name, costs=profile) for profile in PROFILES}
    return {"of the file": planned(name)}


def pictures() -> dict[str, str]:
    """By file name: each pipeline with the first costs of its row in the page."""
    return {
        f"pipelines/{name}.svg": lanes_svg(next(iter(plans(name).values())), title=name)
        for name in shipped()
    }


def page() -> str:
    """The whole page."""
    real = [name for name in shipped() if runs(name)]
    graphs = [name for name in shipped() if not runs(name)]
    parts = [
        INTRODUCTION,
        "## At a glance\n",
        f"{table(('pipeline', 'period', 'bound by'), _overview())}\n",
    ]
    parts += ["## Pipelines that run\n", *(_about(name) for name in real)]
    parts += ["## Graphs without code\n", *(_about(name) for name in graphs)]
    return "\n".join(parts)


def bound_by(plan: Plan) -> str:
    """`device` where only a device's ops are on the critical cycle, else `host`."""
    return "host" if _of_host(plan) else "device"


def _overview() -> Iterator[tuple[str, str, str]]:
    for name in shipped():
        found = plans(name)
        periods = " / ".join(f"{plan.step_us:,.0f} µs" for plan in found.values())
        yield f"[`{name}`](#{name})", periods, "; ".join({bound_by(p): 0 for p in found.values()})


def _of_host(plan: Plan) -> list[str]:
    vertices = plan.graph.vertices
    return [op for op, _ in plan.critical_cycle if vertices[op].side == "host"]


def _about(name: str) -> str:
    rows = [(label, f"{plan.step_us:,.0f} µs", _cycle(plan)) for label, plan in plans(name).items()]
    parts = [f"### {name}\n", f"{_said(name)}\n"]
    parts += [f"![{name}: three steps in lanes](../images/pipelines/{name}.svg)\n"]
    parts += [f"{table(('costs', 'period', 'critical cycle'), rows)}\n"]
    plan = next(iter(plans(name).values()))
    parts += [f"{_bound(name, plan)}\n"]
    parts += [f"{said}\n" for said in _gains(name)]
    return "\n".join(parts)


def _gains(name: str) -> Iterator[str]:
    """What its other plans are predicted to gain, with as many rows as they are meant for."""
    config = load_config(name)
    if not isinstance(config, PipelineConfig) or not config.plans:
        return
    rows = max(each.from_rows for each in config.plans.values())
    for profile in PROFILES:
        found = planned_with(name, None, load_costs(profile), rows if rows > 1 else None)
        assert found.times is not None
        first = f"With {profile} and {found.times.rows} rows, {found.plan.step_us:,.0f} µs a step"
        yield f"{first}: {'; '.join(gains_of_forms(found))}."


def _said(name: str) -> str:
    """What the file says of itself, as text."""
    lines = []
    for line in shipped_file(name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#") or line.startswith("#   "):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def _cycle(plan: Plan) -> str:
    return " → ".join(f"`{op}`" + (f" {d:+d}" if d else "") for op, d in plan.critical_cycle)


def _bound(name: str, plan: Plan) -> str:
    host = _of_host(plan)
    if not host:
        return "Only ops of a device are on it."
    changed, how = _mended(name)
    assert not _of_host(changed), f"{name}: what is said to hide the host does"
    return (
        f"Ops of the host are on it: {code(*host)}. {WHY[name]} {how}, a step would "
        f"take {changed.step_us:,.0f} µs, and only ops of a device would be on it."
    )


def _mended(name: str) -> tuple[Plan, str]:
    """The plan of the file with its remedy, and what that is."""
    if name not in REMEDIES:
        return planned(name, {"depth": "2"}, costs=PROFILES[0]), "At depth 2"
    meaning, changes = REMEDIES[name]
    text = shipped_file(name).read_text(encoding="utf-8")
    for said, instead in changes.items():
        assert text.count(said) == 1, f"{name} says {said} once"
        text = text.replace(said, instead)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        return planned(str(path), costs=PROFILES[0] if runs(name) else None), f"If {meaning}"
