"""llama.cpp, through the functions of its library that llama-cpp-python has.

The package's own class decodes one text at a time, so batches are decoded by `llama_decode` with a
sequence per prompt, as llama.cpp's own example of batches does; the next token of each row is the
largest logit. The cache has the numbers of the weights: float32, or bfloat16.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import llama_cpp as library
import numpy as np

Tokens = list[list[int]]
BATCH = 512
"""Tokens of one call: llama.cpp's own default of `n_ubatch`."""

UNIT = 256
"""Tokens by which llama.cpp makes the caches of sequences."""

CACHE = {"float32": 0, "bfloat16": 30}
"""ggml's numbers of these types; the package names only the first."""


def start(work: dict[str, Any]) -> tuple[Callable[[], Tokens], dict[str, Any]]:
    """Loads it; what runs it, and what it says of itself."""
    quiet = library.llama_log_callback(lambda level, text, data: None)
    library.llama_log_set(quiet, ctypes.c_void_p(0))
    library.llama_backend_init()
    model = library.llama_model_load_from_file(
        work["gguf"].encode(), library.llama_model_default_params()
    )
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {work['gguf']}")
    prompts, count = work["prompts"], work["tokens"]
    params = library.llama_context_default_params()
    each = -(-(max(map(len, prompts)) + count + 8) // UNIT) * UNIT
    # One cache for each sequence: in a common one each would attend to all, and hide the others.
    params.n_ctx, params.n_seq_max, params.kv_unified = each * len(prompts), len(prompts), False
    params.n_batch = params.n_ubatch = BATCH
    params.type_k = params.type_v = CACHE[work["dtype"]]
    params.n_threads = params.n_threads_batch = work["threads"] or os.cpu_count() or 1
    context = library.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError("llama.cpp cannot make a context")
    words = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
    batch = library.llama_batch_init(BATCH, 0, 1)

    def run() -> Tokens:
        library.llama_memory_clear(library.llama_get_memory(context), True)
        return _decoded(context, batch, prompts, count, words)

    about = {"llama-cpp-python": version("llama-cpp-python"), "threads": params.n_threads}
    keep = (quiet, model)  # the library calls and reads them
    return lambda: (keep, run())[1], about


def _decoded(context: Any, batch: Any, prompts: Tokens, count: int, words: int) -> Tokens:
    found: Tokens = [[] for _ in prompts]
    todo = [
        (token, at, row, at == len(prompt) - 1)
        for row, prompt in enumerate(prompts)
        for at, token in enumerate(prompt)
    ]
    for begin in range(0, len(todo), BATCH):
        _step(context, batch, todo[begin : begin + BATCH], words, found)
    for done in range(1, count):
        step = [
            (found[row][-1], len(prompt) + done - 1, row, True)
            for row, prompt in enumerate(prompts)
        ]
        _step(context, batch, step, words, found)
    return found


def _step(
    context: Any,
    batch: Any,
    todo: Sequence[tuple[int, int, int, bool]],
    words: int,
    found: Tokens,
) -> None:
    """One call; what it gives is appended to the rows' tokens.

    `todo`: token, place, row, and whether the row's next token is wanted.
    """
    batch.n_tokens = len(todo)
    for index, (token, at, row, last) in enumerate(todo):
        batch.token[index], batch.pos[index] = token, at
        batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
        batch.logits[index] = last
    if library.llama_decode(context, batch) != 0:
        raise RuntimeError("llama_decode failed")
    for index, (_, _, row, last) in enumerate(todo):
        if last:
            logits = library.llama_get_logits_ith(context, index)
            found[row].append(int(np.ctypeslib.as_array(logits, shape=(words,)).argmax()))
