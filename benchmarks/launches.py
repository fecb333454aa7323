"""Operations of one decoder layer: as transformers runs it, merged, and compiled.

On a GPU each is a launch, but the attention, which is one operation here and a few kernels there.
Plain and merged layers are counted in the graph that torch's compiler takes of them, without views;
compiled ones in the code that it generates, here for the CPU: code for a GPU may fuse more.

    python -m benchmarks.launches [--family llama] [--dtype bfloat16]
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.utils import run_and_get_code

from stepweave.models import compiled
from stepweave.models.causal_lm import CausalLM
from stepweave.testing.models import FAMILIES, tiny_model

from .paired import save

CALLED = re.compile(r"^\s+(?:\w+ = )?(extern_kernels|torch\.ops|cpp_fused|triton)\w*\.?[\w.]*\(")
KINDS = {"extern_kernels": "products", "torch.ops": "attention"}


def plain(family: str, dtype: torch.dtype, *, merge: bool) -> Counter[str]:
    """Operations of the first kind of layer, by name."""
    counted: list[Counter[str]] = []

    def count(graph: Any, inputs: Any) -> Any:
        calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        counted.append(
            Counter(
                call.overloadpacket.__name__
                for call in calls
                if isinstance(call, torch._ops.OpOverload)
                and not call.is_view
                and call is not torch.ops.aten._unsafe_view.default
            )
        )
        return graph

    compiled.BACKEND = f"counted{merge}"
    torch._dynamo.register_backend(aot_autograd(fw_compiler=count), name=compiled.BACKEND)
    CausalLM.wrap(tiny_model(family, dtype=dtype), invariant=False, compile="layer", merge=merge)
    return counted[0]


def generated(family: str, dtype: torch.dtype, *, merge: bool) -> Counter[str]:
    """Calls in the code of the first kind of layer, by what is called."""
    compiled.BACKEND = "inductor"
    model = tiny_model(family, dtype=dtype)
    _, code = run_and_get_code(
        lambda: CausalLM.wrap(model, invariant=False, compile="layer", merge=merge)
    )
    body = code[0].partition("def call(")[2].partition("return (")[0]
    found = [match[1] for match in map(CALLED.match, body.splitlines()) if match]
    return Counter(KINDS.get(what, "fused kernels") for what in found)


LAYERS = {
    "plain": plain,
    "merged": plain,
    "compiled": generated,
    "compiled and merged": generated,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--family", choices=sorted(FAMILIES), default="llama")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--only", nargs="+", choices=LAYERS, default=LAYERS, metavar="LAYER")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    dtype = getattr(torch, given.dtype)
    table = {
        name: LAYERS[name](given.family, dtype, merge=name.endswith("merged"))
        for name in given.only
    }
    for name, counts in table.items():
        parts = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
        print(f"{name:20} {sum(counts.values()):3}   {parts}")
    about = {"family": given.family, "dtype": given.dtype, "layers": table}
    save("launches", about, given.json)


if __name__ == "__main__":
    main()
