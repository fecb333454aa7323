"""How the verifier's reports say distances, paths and numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ..plan import Edge


def instant(u: str, v: str, d: int) -> str:
    """`u(i) before v(i+d)`."""
    return f"{u}(i) before {v}({later(d)})"


def later(d: int) -> str:
    return "i" if d == 0 else f"i{d:+d}"


def ago(d: int) -> str:
    """Which step's event an op of step i + d waits for, seen from that op."""
    if d == 0:
        return "the same step"
    return f"{'the step' if abs(d) == 1 else f'{abs(d)} steps'} {'before' if d > 0 else 'after'}"


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def path_text(path: Sequence[tuple[str, int]]) -> str:
    return " → ".join(f"{op}{f'@{total:+d}' if total else ''}" for op, total in path)


def edge_text(edge: Edge) -> str:
    what = f"{edge.hazard} {edge.value}".strip()
    return f"{what}: {instant(edge.source, edge.target, edge.distance)}"
