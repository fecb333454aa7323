"""Decode pipelines on a device of one's choice, and what they came to: for GPUs as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from stepweave import LLM
from stepweave.configs.load import load_config, shipped
from stepweave.configs.schema import PipelineConfig
from stepweave.executors.run import Executor
from stepweave.nodes.tree import Growth
from stepweave.policies.acceptance import Rejection
from stepweave.policies.chosen import Policies
from stepweave.requests.request import Request, RequestOutput, SamplingParams
from stepweave.requests.table import RequestTable
from stepweave.serving.engine import Engine
from stepweave.structured.grammar import GrammarSpec
from stepweave.testing.engines import VOCAB, TinyConfig, fitted, tiny_engine, tiny_request

REGEX = GrammarSpec.from_request({"regex": "[a-z]{2,9}( [0-9]{1,3}){0,2}"})

LISTED = ((0,), (0, 0), (0, 1), (1,))
GROWN = Growth(width=1, depth=3, children=2, among="all")
COMPARING = Policies(acceptance=Rejection())
DRAFTERS: Mapping[str, TinyConfig] = {
    "none": TinyConfig(),
    "draft model": TinyConfig(draft_tokens=2),
    "draft model, unpadded": TinyConfig(draft_tokens=2, padded=False),
    "draft model, rejection": TinyConfig(draft_tokens=2, policies=COMPARING),
    "eagle": TinyConfig(draft_tokens=2, method="eagle"),
    "eagle, unpadded": TinyConfig(draft_tokens=2, method="eagle", padded=False),
    "eagle3": TinyConfig(draft_tokens=2, method="eagle3"),
    "eagle3, rejection": TinyConfig(draft_tokens=2, method="eagle3", policies=COMPARING),
    "ngram": TinyConfig(draft_tokens=2, method="ngram"),
    "eagle3, tree": TinyConfig(draft_tokens=4, method="eagle3", tree=LISTED),
    "mtp, grown": TinyConfig(draft_tokens=4, method="mtp", tree=GROWN),
    "medusa, tree, rejection": TinyConfig(
        draft_tokens=4, method="medusa", tree=LISTED, policies=COMPARING
    ),
}

SHIPPED = tuple(
    name for name in shipped() if isinstance(load_config(name), PipelineConfig) and name != "base"
)

Told = list[tuple[object, ...]]  # of each request what it got, tokens and all


def requests(structured: bool, first: int = 0) -> list[Request]:
    """Something of everything that a device op can be asked for; numbered from `first` on."""
    grammar = REGEX if structured else None
    asked = [
        SamplingParams(max_tokens=8, logprobs=2),
        SamplingParams(max_tokens=7, temperature=0.9, seed=3, top_k=40, repetition_penalty=1.2),
        SamplingParams(max_tokens=8, structured_outputs=grammar, logit_bias=((9, 1.0),)),
        SamplingParams(max_tokens=6, prompt_logprobs=1, structured_outputs=grammar),
        SamplingParams(
            max_tokens=7,
            temperature=1.1,
            seed=5,
            top_p=0.9,
            min_p=0.01,
            min_tokens=5,
            presence_penalty=0.4,
            frequency_penalty=0.2,
            xtc_probability=0.6,
            xtc_threshold=0.004,
            dry_multiplier=0.9,
            dry_allowed_length=1,
            no_repeat_ngram_size=2,
            logprobs=0,
        ),
        SamplingParams(max_tokens=9, ignore_eos=True, draft_tokens=1),
    ]
    prompts = [[(7 * uid + 11 * at) % VOCAB for at in range(3 + 4 * uid)] for uid in range(6)]
    words = [[], [], [], [], [[17], [40, 41]], [[5]]]
    return [
        tiny_request(first + uid, prompt, params, bad_words=banned)
        for uid, (prompt, params, banned) in enumerate(zip(prompts, asked, words, strict=True))
    ]


def tiny_on(
    device: torch.device, config: TinyConfig, executor: Executor | str, **more: Any
) -> Engine:
    """The small random engine with its models on `device`; `more` goes to `tiny_engine`."""
    engine = tiny_engine(replace(config, executor="serial", device=str(device)), **more)
    engine.executor = executor
    return engine


def served(engine: Engine, wanted: Sequence[Request], table: RequestTable | None = None) -> Told:
    """What each request came to."""
    table = table or engine.new_table()
    for request in wanted:
        table.submit(fitted(engine, request))
    engine.run(table)
    return [
        (
            tuple(r.output_ids),
            r.drafted,
            r.accepted,
            r.error,
            repr(r.logprobs),
            repr(r.prompt_logprobs),
        )
        for r in wanted
    ]


PROMPTS = (
    "Write a short story about a fox named Ida.",
    "Is this review positive or negative? What a wonderful lamp!",
    "Extract name and city as JSON: Max Tanaka is a lawyer from Warsaw.",
)


def prompts(config: PipelineConfig, most: int = 12) -> list[dict[str, object]]:
    """The prompts as lines; where the pipeline has grammars, the last one follows one."""
    lines: list[dict[str, object]] = [{"prompt": each, "max_tokens": most} for each in PROMPTS]
    lines[1] |= {"temperature": 0.8, "seed": 11, "repetition_penalty": 1.1}
    lines[1] |= {"logprobs": 2}
    lines[2] |= {"min_tokens": 4}
    if config.grammars is not None:
        lines[2] |= {"structured_outputs": {"regex": '\\{"name": "[A-Za-z ]{1,12}"\\}'}}
    return lines


def llm_on(device: torch.device, config: PipelineConfig, executor: Executor | str) -> LLM:
    """The pipeline with the models that it names on `device`."""
    model = config.model.model_copy(update={"device": str(device)})
    llm = LLM(pipeline=config.model_copy(update={"executor": "serial", "model": model}))
    llm.engine.executor = executor
    return llm


def generated(llm: LLM) -> Told:
    """What each prompt came to, and what it took."""
    outputs: list[RequestOutput] = llm.generate(prompts(llm.config))
    return [
        (o.error, o.token_ids, o.text, o.drafted, o.accepted, repr(o.logprobs)) for o in outputs
    ]
