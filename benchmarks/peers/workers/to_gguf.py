"""A checkpoint of `shapes.py` as a GGUF file: `to_gguf.py FOLDER FILE float32|bfloat16`.

Tensor by tensor, so that memory is that of one. The file has no vocabulary: prompts are tokens.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
}


def stored(file: Path) -> Iterator[tuple[str, list[int], np.memmap[Any, np.dtype[np.uint16]]]]:
    """Names, shapes and bits of the bfloat16 tensors of a safetensors file.

    It is the length of its header in 8 bytes, the header in JSON, and the numbers.
    """
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    header.pop("__metadata__", None)
    for name, about in header.items():
        assert about["dtype"] == "BF16", f"{name} is {about['dtype']}"
        begin = 8 + size + about["data_offsets"][0]
        shape = tuple(about["shape"])
        yield name, about["shape"], np.memmap(file, np.uint16, "r", begin, shape)


def renamed(name: str) -> str:
    """As llama.cpp calls it."""
    if name in OUTSIDE:
        return OUTSIDE[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def interleaved(bits: Any, heads: int) -> Any:
    """Rows of a Llama's queries or keys in the order of llama.cpp's rotation: side by side."""
    out, *rest = bits.shape
    return bits.reshape(heads, 2, out // heads // 2, *rest).swapaxes(1, 2).reshape(bits.shape)


def converted(name: str, bits: Any, config: dict[str, Any], wide: bool) -> Any:
    """What is written: float32 numbers, or the bytes of bfloat16. Norms are always float32."""
    if config["model_type"] == "llama":
        if name.endswith("q_proj.weight"):
            bits = interleaved(bits, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            bits = interleaved(bits, config["num_key_value_heads"])
    if wide or bits.ndim == 1:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(bits).view(np.uint8)


def main() -> None:
    folder, target, dtype = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    config = json.loads((folder / "config.json").read_text())
    wide = dtype == "float32"
    part = target.with_suffix(".part")
    out = gguf.GGUFWriter(part, config["model_type"])
    out.add_vocab_size(config["vocab_size"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_rope_dimension_count(config["head_dim"])
    out.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_tokenizer_model("no_vocab")
    every = list(stored(folder / "model.safetensors"))
    for name, shape, bits in every:
        narrow = not wide and bits.ndim > 1
        kind = gguf.GGMLQuantizationType.BF16 if narrow else gguf.GGMLQuantizationType.F32
        size = bits.size * (2 if narrow else 4)
        out.add_tensor_info(renamed(name), shape, np.dtype(np.float32), size, kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_ti_data_to_file()
    for name, _, bits in every:
        out.write_tensor_data(converted(name, bits, config, wide))
    out.close()
    part.replace(target)


if __name__ == "__main__":
    main()
