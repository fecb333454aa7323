"""What a run produced, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from ..requests.request import LEAST_LOGPROB
from .reporting import visible

if TYPE_CHECKING:
    from ..requests.request import RequestOutput


def write_json(output: RequestOutput, out: TextIO) -> None:
    """A line for one request, at once: a pipe that reads it need not wait for the others."""
    line = output.to_json()
    try:
        text = json.dumps(line, allow_nan=False)
    except ValueError:  # a log-probability
        text = json.dumps(_finite(line))
    print(text, file=out, flush=True)


def _finite(found: Any) -> Any:
    """JSON has no infinity: a number stands for the log-probability of what cannot come."""
    if isinstance(found, Mapping):
        return {key: _finite(each) for key, each in found.items()}
    if isinstance(found, list | tuple):
        return [_finite(each) for each in found]
    return max(found, LEAST_LOGPROB) if isinstance(found, float) else found


def write_summary(summary: Mapping[str, Any], out: TextIO) -> None:
    """The last line, on the whole run."""
    print(json.dumps({"summary": summary}), file=out, flush=True)


def print_text(outputs: Sequence[RequestOutput], summary: Mapping[str, Any], out: TextIO) -> None:
    """A panel for each completion, then a table of counts and one line on the whole run.

    Requests that failed come first, as they are what needs a look.
    """
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    console = Console(file=out, highlight=False)
    shown = [choice for output in outputs for choice in output.choices or (output,)]
    shown.sort(key=lambda output: output.error is None)
    for output in shown:
        body = Text(visible(output.text))
        if output.error is not None:
            body = Text(visible(f"failed: {output.error}"), style="red")
        for warning in output.warnings:
            body.append(visible(f"\nwarning: {warning}"), style="yellow")
        for note in output.notes:
            body.append(visible(f"\nnote: {note}"), style="dim")
        about = Text(visible(_first_line(f"{output.id}: {output.prompt}")))
        console.print(Panel(body, title=about, title_align="left"))
    table = Table("request", "ended by", "tokens", "drafted", "accepted", box=None)
    for output in shown:
        table.add_row(
            Text(visible(output.id)),
            output.finish_reason or "",
            str(len(output.token_ids)),
            str(output.drafted),
            str(output.accepted),
        )
    console.print(table)
    console.print(Text(_sentence(summary)))


def _sentence(summary: Mapping[str, Any]) -> str:
    said = (
        f"{summary['tokens']} tokens in {summary['steps']} steps, {summary['seconds']:.2f} s: "
        f"{summary['tokens_per_second']:.1f} tokens/s on {summary['executor']}, "
        f"depth {summary['depth']}, {summary['waits']} waits"
    )
    if summary["drafted"]:
        said += (
            f"; {summary['acceptance_length']:.2f} tokens per window of drafts, "
            f"{summary['accepted'] / summary['drafted']:.0%} of drafts accepted"
        )
    if "synthetic_acceptance" in summary:
        said += "\nSYNTHETIC ACCEPTANCE, for benchmarks: these texts are not what the model says"
    said += _switches(summary.get("plans", {}).get("switches", ()))
    said += "".join(f"\nnote: {note}" for note in summary["notes"])
    if summary["equal_to_synchronous"] is not None:
        same = "equal to" if summary["equal_to_synchronous"] else "NOT EQUAL to"
        if not summary["tokens"]:
            return f"{said}\nno tokens to compare with the synchronous loop"
        said += f"\n{same} the synchronous loop, {_speed(summary)}"
        if (difference := summary["first_difference"]) is not None:
            said += f"\nfirst difference: {visible(difference)}"
    return said


def _switches(moves: Sequence[Mapping[str, Any]]) -> str:
    """How often the run went from which plan to which, and why."""
    said = (
        f"{each['before']} → {each['after']} ({each['reason']})"
        + (f" {each['count']} times" if each["count"] > 1 else "")
        for each in moves
    )
    return f"\nwent from plan to plan: {', '.join(said)}" if moves else ""


def _speed(summary: Mapping[str, Any]) -> str:
    rounds, (low, high) = summary["rounds"], summary["speed_ratio_quartiles"]
    said = f"{summary['speed_ratio']:.2f} times its speed"
    if rounds == 1:
        return f"{said} (one round)"
    return f"{said} (quartiles {low:.2f} and {high:.2f} of {rounds} rounds)"


def _first_line(prompt: str, most: int = 72) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= most else line[: most - 1] + "…"
