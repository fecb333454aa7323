"""Draw the pictures of the documentation from plans that the compiler makes.

    python docs/make_images.py

writes `docs/images/`. A test draws them again and compares, so a picture cannot outlive its plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from stepweave.cli.planned import planned
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.timetable import timetable

IMAGES = Path(__file__).parent / "images"

# Assumed durations in µs, the model being large enough for the device to dominate.
COSTS = {
    "schedule.host": 300,
    "prepare_inputs.host": 200,
    "prepare_inputs.device": 60,
    "forward.host": 150,
    "forward.device": 4000,
    "commit.host.advance": 100,
    "commit.host.finish": 250,
    "bitmask.host": 900,
    "bitmask.device": 40,
    "sample.host": 60,
    "sample.device": 150,
    "draft.host": 90,
    "draft.device": 900,
    "d2h_copy.host": 30,
    "d2h_copy.device": 60,
}
STEPS = 3
LEFT, TOP, WIDTH, HEIGHT, LANE, BOX = 86, 64, 1040, 330, 84, 40
FILLS = ("#8ecae6", "#ffb703", "#95d5b2")
FONT = "font-family='Helvetica, Arial, sans-serif'"


@dataclass(frozen=True)
class Canvas:
    """Where instants and actors lie on the picture."""

    first: float
    span: float
    actors: tuple[str, ...]

    def x(self, us: float) -> float:
        return round(LEFT + (us - self.first) / self.span * (WIDTH - LEFT - 16), 1)

    def y(self, actor: str) -> float:
        return TOP + LANE * self.actors.index(actor)


def svg(plan: Plan, title: str) -> str:
    """Lanes over some steps in steady state: a box for each op, an arrow for each wait."""
    times = timetable(plan)
    period = times.period_us
    first = min(times.starts.values())
    last = max(times.ends.values()) + (STEPS - 1) * period
    canvas = Canvas(first, last - first, tuple(plan.actors))
    parts = [*_frame(plan, title, period)]
    for actor in plan.actors:
        parts.append(
            f"<text x='12' y='{canvas.y(actor) + BOX / 2 + 5}' font-size='14' "
            f"font-weight='bold' fill='#333'>{escape(actor)}</text>"
        )
        parts.append(
            f"<line x1='{LEFT}' y1='{canvas.y(actor) + BOX / 2}' x2='{WIDTH - 12}' "
            f"y2='{canvas.y(actor) + BOX / 2}' stroke='#ddd'/>"
        )
    for actor, program in plan.actors.items():
        for op, _ in program:
            for step in range(STEPS):
                start, end = (at[op] + step * period for at in (times.starts, times.ends))
                parts.append(_box(canvas, actor, op, step, start, end))
    for wait in plan.waits:
        for step in range(STEPS - max(wait.distance, 0)):
            then = times.starts[wait.target] + (step + wait.distance) * period
            parts.append(_arrow(canvas, plan, wait, times.ends[wait.source] + step * period, then))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _frame(plan: Plan, title: str, period: float) -> list[str]:
    count = len(plan.waits)
    said = (
        f"{len(plan.edges)} required orderings, {count} waits; "
        f"period {period:,.0f} µs, set by the device alone"
        if all(plan.graph.vertices[op].side == "device" for op, _ in plan.critical_cycle)
        else f"{len(plan.edges)} required orderings, {count} waits; period {period:,.0f} µs"
    )
    return [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' {FONT} "
        f"role='img' aria-label='{escape(title, quote=True)}'>",
        "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' "
        "markerHeight='7' orient='auto'><path d='M0 0L8 4L0 8z' fill='#c1121f'/></marker></defs>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' rx='8' fill='white'/>",
        f"<text x='12' y='26' font-size='16' font-weight='bold' fill='#222'>{escape(title)}</text>",
        f"<text x='12' y='46' font-size='13' fill='#555'>{escape(said)}</text>",
        f"<text x='12' y='{HEIGHT - 12}' font-size='12' fill='#555'>Colour: step. Red: the waits, "
        "derived. Durations are assumed. Short ops have no label; hover to see them.</text>",
    ]


def _box(canvas: Canvas, actor: str, op: str, step: int, start: float, end: float) -> str:
    x, width = canvas.x(start), max(canvas.x(end) - canvas.x(start), 1.5)
    name = op.replace(".host", "").replace(".device", "")
    fits = len(name) * 7 < width
    label = (
        f"<text x='{round(x + width / 2, 1)}' y='{canvas.y(actor) + BOX / 2 + 4}' font-size='12' "
        f"text-anchor='middle' fill='#222'>{escape(name)}</text>"
        if fits
        else ""
    )
    return (
        f"<g><title>{escape(op)} of step {step}</title><rect x='{x}' y='{canvas.y(actor)}' "
        f"width='{round(width, 1)}' height='{BOX}' rx='3' fill='{FILLS[step % len(FILLS)]}' "
        f"stroke='white' stroke-width='0.6'/>{label}</g>"
    )


def _arrow(canvas: Canvas, plan: Plan, wait: Wait, end: float, start: float) -> str:
    source, target = (plan.graph.vertices[op].actor for op in (wait.source, wait.target))
    down = canvas.y(target) > canvas.y(source)
    y1 = canvas.y(source) + (BOX if down else 0)
    y2 = canvas.y(target) + (0 if down else BOX)
    x1, x2 = canvas.x(end), canvas.x(start)
    bend = round((y1 + y2) / 2, 1)
    hazards = ", ".join(dict.fromkeys(f"{p.hazard} {p.value}" for p in wait.protects))
    return (
        f"<g><title>{escape(wait.target)} waits for {escape(wait.source)}: {escape(hazards)}"
        f"</title><path d='M{x1} {y1}C{x1} {bend} {x2} {bend} {x2} {y2}' fill='none' "
        "stroke='#c1121f' stroke-width='2' marker-end='url(#tip)'/></g>"
    )


def pictures() -> dict[str, str]:
    """Every picture by file name."""
    costs = {f"costs.{op}": str(us) for op, us in COSTS.items()}
    depths = {
        "plan.svg": ("2", "Asynchronous scheduling, speculation and grammars: quickstart, depth 2"),
        "synchronous.svg": ("1", "The same declarations at depth 1: the synchronous loop"),
    }
    return {
        name: svg(planned("quickstart", {"depth": depth, **costs}), title)
        for name, (depth, title) in depths.items()
    }


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, drawn in pictures().items():
        (IMAGES / name).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
