"""Cluster files: those that ship, and what is said of one that is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from stepweave.clusters.comparison import NOTICE, compare
from stepweave.clusters.file import load_cluster
from stepweave.clusters.goal import Limit
from stepweave.clusters.layout import LayoutConfig, Unfit
from stepweave.clusters.load import jobs_of, routed
from stepweave.clusters.picture import picture
from stepweave.clusters.shipped import SHIPPED, shipped_clusters, shipped_parts
from stepweave.clusters.simulation import Simulator
from stepweave.configs.errors import ConfigError

FEW = {"load.requests": "3", "load.output": "4", "load.input": "64"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", shipped_clusters())
def test_every_shipped_cluster_serves_its_load(name: str) -> None:
    found = compare(load_cluster(name, FEW))
    assert found.best is not None
    assert found.best.summary.failed == 0
    assert all(each.summary.completed == 3 for each in found.found)
    said = found.to_json()
    assert next(iter(said)) == "notice"
    assert said["notice"].startswith(NOTICE)
    assert all(each["simulated"] is True for each in said["layouts"])
    assert NOTICE in picture(found).splitlines()[0]


@pytest.mark.parametrize("kind", ["devices", "links"])
def test_every_figure_of_a_shipped_part_stands_below_its_source(kind: str) -> None:
    text = (SHIPPED / "parts" / f"{kind}.yaml").read_text(encoding="utf-8")
    for entry in re.split(r"^(?=\w+:)", text, flags=re.MULTILINE)[1:]:
        said = ""
        for line in entry.splitlines()[1:]:
            comment = line.partition("#")[2]
            said = comment if line.strip().startswith("#") else said or comment
            if re.search(r": *\{?.*[0-9]", line.partition("#")[0]) and "describes" not in line:
                assert said or comment, f"{kind}: no source above {line.strip()!r}"


def test_the_models_of_the_aim_and_both_devices_ship() -> None:
    assert {"llama_8b", "llama_70b", "deepseek_r1", "qwen_32b"} <= set(shipped_parts("models"))
    assert {"h100", "h200"} == set(shipped_parts("devices"))
    assert {"nvlink4", "ndr"} == set(shipped_parts("links"))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("device: h10", r"c\.yaml:3:9: device: 'h10' .*did you mean 'h100'"),
        ("modle: llama_8b", r"c\.yaml:3:1: unknown key 'modle' \(did you mean 'model'"),
        ("link: {describes: a, gb_s: 0, latency_us: 1}", r"c\.yaml:3.*gb_s must be more than 0"),
        ("layouts: [{tensor: 0}]", r"c\.yaml:3:.*tensor must be"),
        ("load: {rate: 1, trace: x}", "a trace has times of its own"),
        ("load: {speed_up: 2}", "are for a trace: name one"),
        ("nodes: 2", "need a `network`"),
        (
            "all_reduce: one_shit",
            r"c\.yaml:3:13: all_reduce: .*has no all-reduce 'one_shit' \(did you mean 'one_shot'",
        ),
        ("memory: 1.5", r"c\.yaml:3:9: memory must be"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_the_nearest_right_name(
    written: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.yaml"
    whole = {"model": "llama_8b", "device": "h100", "link": "nvlink4"}
    whole.pop(written.partition(":")[0], None)
    rest = "\n".join(f"{key}: {value}" for key, value in whole.items())
    file.write_text(f"describes: mine\ncosts: llama_8b\n{written}\n{rest}\n")
    with pytest.raises(ConfigError, match=said):
        load_cluster(str(file))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pipeline": "asynk"}, "did you mean 'async'"),
        ({"pipeline": "async_eagle"}, "drafts: say `speculation.*` in the cluster file, or name"),
        ({"speculation.acceptance": "0.5"}, "has no drafter"),
        ({"costs": "llama_8"}, "did you mean 'llama_8b'"),
        ({"pipeline": "abstract_decode"}, "is an abstract graph"),
        (
            {"load.trace": "nowhere.csv", "load.rate": "null"},
            r"load\.trace=nowhere\.csv.*cannot be",
        ),
    ],
)
def test_what_contradicts_another_file_is_told(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compare(load_cluster("llama_8b_h100", settings))


@pytest.mark.parametrize(
    ("cluster", "form", "said"),
    [
        (
            "deepseek_r1_h200",
            "kv_cache_form: expanded",
            r"the model here has latent\.cache: la",
        ),
        ("deepseek_r1_h200", "adapters: {one: two}", "keeps its cache expanded"),
        ("llama_8b_h100", "kv_cache_form: latent", "cache latent .* here has no `latent`"),
        (
            "llama_8b_h100",
            "kv_cache_dtype: int8",
            r"in int8 \(.* cache: bfloat16: say cache: f",
        ),
    ],
)
def test_a_pipeline_that_keeps_another_cache_than_the_model_is_told(
    cluster: str, form: str, said: str, tmp_path: Path
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(f"version: 2\nextends: async\nmodel: {{{form}}}\n")
    with pytest.raises(ConfigError, match=said):
        Simulator.of(load_cluster(cluster, {"pipeline": str(own)}))


@pytest.mark.parametrize("form", ["auto", "expanded"])
def test_a_pipeline_that_keeps_the_same_cache_as_the_model_is_taken(
    form: str, tmp_path: Path
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(f"version: 2\nextends: async\nmodel: {{kv_cache_form: {form}}}\n")
    settings = {"pipeline": str(own), "model.latent.cache": "expanded"}
    found = Simulator.of(load_cluster("deepseek_r1_h200", settings))
    assert found.pipeline.model.kv_cache_form == form


def test_a_cache_in_8_bits_is_taken_from_the_model_or_from_both(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("version: 2\nextends: async\nmodel: {kv_cache_dtype: float8_e4m3}\n")
    for pipeline in ("async", str(own)):
        settings = {"pipeline": pipeline, "model.cache": "float8"}
        Simulator.of(load_cluster("llama_8b_h100", settings))


def test_a_setting_changes_a_figure_of_a_part_that_is_named() -> None:
    found = load_cluster("llama_70b_h200", {"device.memory_gb": "200", "model.layers": "40"})
    assert (found.config.device.memory_gb, found.config.model.layers) == (200, 40)
    assert found.config.device.tflops == 989.5


def test_a_model_can_be_described_by_its_shape(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "describes: mine\ndevice: h100\nlink: nvlink4\ncosts: llama_8b\nload: {requests: 2}\n"
        "model: {describes: small, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_dim: 16,"
        " ffn: 128, vocab: 100}\n"
    )
    assert compare(load_cluster(str(file))).found[0].summary.completed == 2


def test_layouts_that_do_not_fit_are_listed_and_an_error_if_none_does() -> None:
    both = [LayoutConfig(tensor=8), LayoutConfig(replicas=8)]
    found = compare(load_cluster("llama_70b_h200", FEW), both)
    assert [name for name, _ in found.refused] == ["1x1x8"]
    asked = [LayoutConfig(tensor=16), LayoutConfig(replicas=8), LayoutConfig(tensor=8, replicas=2)]
    with pytest.raises(Unfit) as refused:
        compare(load_cluster("llama_70b_h200", FEW), asked)
    for said in (
        "16x1x1: tensor 16",
        "needs 141.1 GB for weights",
        "needs 16 devices; there are 8",
    ):
        assert said in str(refused.value)


def test_the_best_layout_depends_on_the_goal_and_keeps_to_the_limits() -> None:
    asked = [LayoutConfig(tensor=8), LayoutConfig(tensor=2, replicas=4)]
    crowd = {"load.requests": "64", "load.rate": "null", "scheduler.max_rows": "16"}
    cluster = load_cluster("llama_70b_h200", {**FEW, **crowd, "load.output": "12"})
    fastest = compare(cluster, asked, goal="throughput")
    assert str(fastest.best.layout if fastest.best else "") == "2x1x4"
    quiet = load_cluster("llama_70b_h200", {**FEW, "load.rate": "1"})
    assert str(getattr(compare(quiet, asked, goal="latency").best, "layout", "")) == "8x1x1"
    limit = Limit.of(f"tpot_p50={fastest.found[0].summary.latencies['tpot'].median + 0.01:f}")
    limited = compare(cluster, asked, limits=[limit])
    assert str(limited.best.layout if limited.best else "") == "8x1x1"
    assert compare(cluster, asked, limits=[Limit.of("e2el_p99=0.001")]).best is None


@pytest.mark.parametrize("text", ["ttft_p98=3", "ttft_p99", "ttft_p99=-1", "ttft_p99=x"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="limit"):
        Limit.of(text)


def test_the_same_file_gives_the_same_figures() -> None:
    said = [json.dumps(compare(load_cluster("llama_8b_h100", FEW)).to_json()) for _ in range(2)]
    assert said[0] == said[1]


def test_a_trace_is_replayed_with_its_times_and_lengths(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 500 * n, "input_length": 10 + n, "output_length": 3, "hash_ids": []}
        for n in range(4)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    settings = {
        "load.trace": str(tmp_path / "t.jsonl"),
        "load.rate": "null",
        "load.requests": "3",
        "load.speed_up": "2",
        "load.length_scale": "2",
    }
    jobs = jobs_of(load_cluster("llama_8b_h100", settings))
    assert [job.due_us for job in jobs] == [0, 250_000, 500_000]
    assert [(job.prompt, job.output) for job in jobs] == [(20, 6), (22, 6), (24, 6)]


def test_routing_gives_every_request_to_one_replica() -> None:
    jobs = jobs_of(load_cluster("llama_8b_h100"))
    for routing in ("round_robin", "fewest_tokens"):
        shares = routed(jobs, 3, routing)
        assert sorted(job.uid for share in shares for job in share) == [job.uid for job in jobs]
    tokens = [sum(job.prompt + job.output for job in share) for share in shares]
    assert max(tokens) - min(tokens) <= max(job.prompt + job.output for job in jobs)
