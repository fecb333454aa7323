"""Write the dashboard for Grafana from the panels that are listed here.

    python docs/make_dashboard.py

writes `server/dashboards/stepweave.json`, which Grafana imports as it is: the source of data, the
model and the engine are variables of the dashboard. A test makes it again and compares, and looks
for every metric of it at a service's `/metrics`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

PATH = Path(__file__).parent.parent / "server" / "dashboards" / "stepweave.json"

Kind = Literal["timeseries", "stat"]
Queries = tuple[tuple[str, str], ...]  # what is asked in PromQL, and what its lines are called

OF = 'model_name=~"$model_name"'  # only the models that are picked
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24  # of a row, in units of Grafana


@dataclass(frozen=True)
class Panel:
    """One panel: queries in which `@` stands for the labels that pick the models."""

    title: str
    unit: str
    queries: Queries
    wide: int = 8
    kind: Kind = "timeseries"
    says: str = ""
    stacked: bool = False


def quantiles(metric: str) -> Queries:
    """The usual percentiles of a histogram."""
    buckets = f"sum by (le) (rate({metric}_bucket{{@}}[$__rate_interval]))"
    return tuple(
        (f"histogram_quantile({share}, {buckets})", f"P{share * 100:g}")
        for share in (0.5, 0.9, 0.99)
    )


def gained(metric: str, by: str = "") -> str:
    """What a counter gains in a second, over all models that are picked."""
    summed = f"sum by ({by})" if by else "sum"
    return f"{summed} (rate({metric}{{@}}[$__rate_interval]))"


def mean(metric: str) -> str:
    """The mean of a histogram."""
    return f"{gained(f'{metric}_sum')} / {gained(f'{metric}_count')}"


def average(metric: str, by: str = "") -> str:
    """A gauge; the mean of those of several services."""
    return f"avg {f'by ({by}) ' if by else ''}({metric}{{@}})"


REQUESTS = (
    Panel(
        "Running and waiting",
        "short",
        (
            ("sum (vllm:num_requests_running{@})", "running"),
            ("sum (vllm:num_requests_waiting{@})", "waiting"),
            ("sum (stepweave:rows_limit{@})", "rows"),
        ),
    ),
    Panel(
        "Ended, by how",
        "reqps",
        ((gained("vllm:request_success_total", "finished_reason"), "{{finished_reason}}"),),
        stacked=True,
    ),
    Panel(
        "Answers, by status",
        "reqps",
        ((gained("stepweave:http_requests_total", "status"), "{{status}}"),),
        stacked=True,
    ),
    Panel("Time to first token", "s", quantiles("vllm:time_to_first_token_seconds")),
    Panel("Inter-token latency", "s", quantiles("vllm:inter_token_latency_seconds")),
    Panel("Whole request", "s", quantiles("vllm:e2e_request_latency_seconds")),
    Panel("Time in the queue", "s", quantiles("vllm:request_queue_time_seconds")),
    Panel(
        "Prefill and decode",
        "s",
        (
            (mean("vllm:request_prefill_time_seconds"), "prefill"),
            (mean("vllm:request_decode_time_seconds"), "decode"),
        ),
        says="The mean of a request.",
    ),
    Panel("Compilation of grammars", "s", quantiles("stepweave:grammar_compile_seconds")),
)
TOKENS = (
    Panel(
        "Tokens per second",
        "short",
        (
            (gained("vllm:generation_tokens_total"), "generated"),
            (gained("vllm:prompt_tokens_total"), "of prompts"),
        ),
    ),
    Panel(
        "KV cache in use",
        "percentunit",
        ((average("vllm:kv_cache_usage_perc", "model_name"), "{{model_name}}"),),
    ),
    Panel(
        "Prefix cache: hits",
        "percentunit",
        (
            (
                f"{gained('vllm:prefix_cache_hits_total')}"
                f" / {gained('vllm:prefix_cache_queries_total')}",
                "of the tokens looked up",
            ),
        ),
    ),
    Panel(
        "Drafts accepted",
        "percentunit",
        (
            (
                f"{gained('vllm:spec_decode_num_accepted_tokens_total')}"
                f" / {gained('vllm:spec_decode_num_draft_tokens_total')}",
                "of those verified",
            ),
        ),
    ),
    Panel(
        "Drafts accepted, by position",
        "percentunit",
        (
            (
                f"{gained('vllm:spec_decode_num_accepted_tokens_per_pos_total', 'position')}"
                f" / on () group_left () {gained('vllm:spec_decode_num_drafts_total')}",
                "position {{position}}",
            ),
        ),
    ),
    Panel(
        "Preemptions and failed steps",
        "short",
        (
            (gained("vllm:num_preemptions_total"), "preemptions"),
            (gained("stepweave:failed_steps_total"), "failed steps"),
        ),
    ),
)
PLAN = (
    Panel(
        "Time per step",
        "s",
        (
            (average("stepweave:period_measured_seconds"), "measured"),
            (average("stepweave:period_predicted_seconds"), "predicted"),
        ),
    ),
    Panel(
        "Overlap",
        "percentunit",
        (
            (average("stepweave:host_hidden_ratio"), "host work hidden"),
            (average("stepweave:device_overlapped_ratio"), "device time overlapped"),
        ),
    ),
    Panel("Busy", "percentunit", ((average("stepweave:actor_busy_ratio", "actor"), "{{actor}}"),)),
    Panel(
        "Idle time by cause",
        "s",
        (
            (
                f"topk (8, {average('stepweave:idle_seconds_per_step', 'actor, op, by, held')})",
                "{{actor}}: {{op}} after {{held}} ({{by}})",
            ),
        ),
        wide=12,
        says="Per step.",
    ),
    Panel(
        "Waits by event",
        "s",
        ((average("stepweave:wait_seconds_per_step", "op, event"), "{{op}} for {{event}}"),),
        wide=12,
        says="Per step.",
    ),
    Panel(
        "Ops",
        "s",
        ((average("stepweave:op_median_seconds", "op"), "{{op}}"),),
        wide=12,
        stacked=True,
        says="The median of the last steps.",
    ),
    Panel(
        "Hand-over",
        "s",
        ((average("stepweave:handover_seconds_per_step", "actor"), "{{actor}}"),),
        wide=12,
        says="Per step: an op could have begun, and had not.",
    ),
)
PROCESS = (
    Panel(
        "Plan",
        "short",
        (
            (
                "stepweave:plan_info{@} == 1",
                "{{plan}}: {{digest}}, depth {{depth}}, on {{executor}}, Stepweave {{version}}",
            ),
        ),
        kind="stat",
    ),
    Panel("Resident memory", "bytes", (("process_resident_memory_bytes", "{{instance}}"),)),
    Panel(
        "Processor",
        "short",
        (("rate(process_cpu_seconds_total[$__rate_interval])", "{{instance}}"),),
        says="Cores.",
    ),
)
ROWS = {
    "Requests": REQUESTS,
    "Tokens and memory": TOKENS,
    "The plan": PLAN,
    "The process": PROCESS,
}


def panels() -> Iterator[dict[str, Any]]:
    """All panels with their places, a row of them under each title."""
    ids, y = count(1), 0
    for title, row in ROWS.items():
        yield {
            "id": next(ids),
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
        }
        x, y = 0, y + 1
        for each in row:
            if x + each.wide > WIDTH:
                x, y = 0, y + 8
            yield _panel(each, next(ids), {"x": x, "y": y, "w": each.wide, "h": 8})
            x += each.wide
        y += 8


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    options: dict[str, Any] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    if panel.kind == "stat":
        options = {
            "textMode": "name",
            "colorMode": "none",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
    custom = {
        "fillOpacity": 20 if panel.stacked else 5,
        "lineWidth": 1,
        "showPoints": "never",
        "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
    }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                **({} if panel.kind == "stat" else {"custom": custom}),
            },
            "overrides": [],
        },
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "editorMode": "code",
                "expr": asked.replace("@", OF),
                "legendFormat": name,
                "range": True,
            }
            for index, (asked, name) in enumerate(panel.queries)
        ],
    }


def dashboard() -> dict[str, Any]:
    """The whole of it, as Grafana imports it."""
    return {
        "uid": "stepweave",
        "title": "Stepweave",
        "description": "A service: its requests, tokens and memory, and the plan that it runs.",
        "tags": ["stepweave", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "regex": "",
                    "hide": 0,
                    "refresh": 1,
                    "multi": False,
                    "includeAll": False,
                    "options": [],
                },
                {
                    "name": "model_name",
                    "label": "Model",
                    "type": "query",
                    "datasource": DATASOURCE,
                    "query": {
                        "query": "label_values(vllm:generation_tokens_total, model_name)",
                        "refId": "models",
                    },
                    "regex": "",
                    "hide": 0,
                    "refresh": 2,
                    "sort": 1,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
                    "options": [],
                },
            ]
        },
        "panels": [*panels()],
    }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
