"""Finding modules that predict further tokens in a checkpoint: from names to networks.

A module is in the target's own checkpoint, under names that transformers leaves out when it loads
the model, or in a folder of its own with the same names. Two layouts are in use:

* DeepSeek-V3 and R1, GLM-4.5: `model.layers.N.*`, where N is the number of the target's layers:
  `enorm`, `hnorm`, `eh_proj`, a decoder layer, `shared_head.norm`, and copies of the embedding and
  the output head as `embed_tokens` and `shared_head.head`.
* Qwen3-Next: `mtp.*`: `pre_fc_norm_embedding`, `pre_fc_norm_hidden`, `fc`, `layers.0.*`, `norm`.

There may be several modules: in the first layout at `model.layers.N`, `N + 1` and so on, each
whole; in the second as `mtp.layers.0`, `1` and so on, which have the other parts in common. Copies
of the target's embedding or output head that differ from it are used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .causal_lm import CausalLM
from .errors import ModelError, UnsupportedModel
from .head_files import HeadFiles, read_files, require_names, require_numbers
from .mtp_network import MtpNetwork
from .pretrained import named
from .sharding import whole
from .source import EMBEDDED, EMBEDDED_MTP

_NUMBERED = re.compile(r"(?:model\.)?layers\.(\d+)\.(.+)")
_OF_LAYER = {
    "enorm.weight": "enorm.weight",
    "hnorm.weight": "hnorm.weight",
    "eh_proj.weight": "eh_proj.weight",
    "shared_head.norm.weight": "norm.weight",
    "shared_head.head.weight": "lm_head.weight",
    "embed_tokens.weight": "embed_tokens.weight",
}
"""DeepSeek's names, within a layer, and ours; the rest is the decoder layer."""

_OF_MTP = {
    "mtp.pre_fc_norm_embedding.weight": "enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "hnorm.weight",
    "mtp.fc.weight": "eh_proj.weight",
    "mtp.norm.weight": "norm.weight",
}
"""Qwen3-Next's names, and ours; the rest is a decoder layer for each module."""

_OF_MTP_LAYER = re.compile(r"mtp\.layers\.(\d+)\.(.+)")

_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
_SHARED = {"embed_tokens.weight": "own_embedding", "lm_head.weight": "own_output"}


def mtp_networks(name_or_path: str | Path | None, target: CausalLM) -> tuple[MtpNetwork, ...]:
    """The modules with their weights, in the file's precision and in the order in which they draft.

    None: of the target's own checkpoint. Raises `ModelError`, naming the key, for whatever is
    missing or does not fit.
    """
    layers = int(target.config.num_hidden_layers)
    source = target.checkpoint if name_or_path is None else name_or_path
    names = EMBEDDED if name_or_path is None else EMBEDDED_MTP

    wanted = partial(of_module, layers=layers)
    files = read_files(source, names, "a module that predicts further tokens", wanted)
    _require_shape(files, target)
    _require_precision(files)
    modules = _renamed(files, target, layers)
    return tuple(
        _network(
            files.name if len(modules) == 1 else f"{files.name}: module {place + 1}",
            weights,
            target,
            place,
        )
        for place, weights in enumerate(modules)
    )


def _network(name: str, weights: dict[str, Tensor], target: CausalLM, place: int) -> MtpNetwork:
    """The module with so many before it, of `weights[...]` by our names. Raises `ModelError`."""
    weights = merged_experts(name, weights)
    own = _own(weights, target)
    with torch.device("meta"):
        network = MtpNetwork(target.hf, **own, place=place)
    what = f"a module that predicts further tokens for a {target.name}"
    expected = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    require_names(name, what, weights, expected)
    for key, shape in expected.items():
        if tuple(weights[key].shape) != shape:
            raise ModelError(f"{name}: {key} is {tuple(weights[key].shape)}; {what} has {shape}")
    require_numbers(name, weights)
    network.load_state_dict(weights, assign=True)
    return network


def modules_among(keys: Iterable[str], layers: int) -> int:
    """How many modules weights of these names are of, behind a target of so many layers."""
    found = {
        each[1]
        for key in keys
        if of_module(key, layers)
        and (each := _NUMBERED.fullmatch(key) or _OF_MTP_LAYER.fullmatch(key))
    }
    return len(found)


def of_module(key: str, layers: int) -> bool:
    """Whether a weight of that name is one of a module behind a target of so many layers."""
    numbered = _NUMBERED.fullmatch(key)
    return key.startswith("mtp.") or (numbered is not None and int(numbered[1]) >= layers)


def _require_shape(files: HeadFiles, target: CausalLM) -> None:
    """Raises `ModelError` for a module of a model of other sizes."""
    for field, wanted in (("hidden_size", target.hidden_size), ("vocab_size", target.vocab_size)):
        stated = files.config.get(field)
        if isinstance(stated, int) and stated != wanted:
            raise ModelError(
                f"{files.name}: {field} is {stated}, that of {target.name} is {wanted}: a module "
                "serves the model that it was trained with; set nodes.draft.model to one of this "
                "model"
            )


def _require_precision(files: HeadFiles) -> None:
    """Raises `UnsupportedModel` for weights of 8 bits with scales beside them."""
    scales = [name for name in files.weights if name.endswith(("weight_scale_inv", "weight_scale"))]
    if scales:
        raise UnsupportedModel(
            f"{files.name}: the module that predicts further tokens is stored in 8 bits, with "
            f"scales beside its weights ({named(scales)}); convert it to bfloat16 into a folder "
            "of its own and set nodes.draft.model to that, or take another drafter"
        )


def _renamed(files: HeadFiles, target: CausalLM, layers: int) -> list[dict[str, Tensor]]:
    """The weights of each module by our names, of either layout."""
    name, found = files.name, files.weights
    of_mtp = {key: each for key, each in found.items() if key.startswith("mtp.")}
    if not found:
        raise UnsupportedModel(
            f"{name}: it has no module that predicts further tokens, neither `mtp.*` nor "
            f"`model.layers.{layers}.*`: a {target.name} of {layers} layers; set nodes.draft.model "
            "to a folder that has one, or take another drafter"
        )
    if of_mtp and len(of_mtp) < len(found):
        raise ModelError(f"{name}: it has both `mtp.*` and layers behind the target's last")
    shared: dict[str, Tensor] = {}  # of all modules
    by_number: dict[int, dict[str, Tensor]] = {}
    for key, weight in found.items():
        layer = (_OF_MTP_LAYER if of_mtp else _NUMBERED).fullmatch(key)
        if layer is None:
            shared[_OF_MTP.get(key, key)] = weight
            continue
        number = int(layer[1]) + (layers if of_mtp else 0)
        ours = f"layers.0.{layer[2]}"
        module = by_number.setdefault(number, {})
        module[ours if of_mtp else _OF_LAYER.get(layer[2], ours)] = weight
    numbers = sorted(by_number) or [layers]
    if numbers != list(range(layers, layers + len(numbers))):
        raise ModelError(
            f"{name}: it has modules that predict further tokens at layers "
            f"{named(map(str, numbers))}; those of a {target.name} of {layers} layers follow each "
            f"other from {layers} on"
        )
    return [by_number.get(number, {}) | shared for number in numbers]


def _own(weights: dict[str, Tensor], target: CausalLM) -> dict[str, bool]:
    """Whether embedding and output head are others than the target's; copies are dropped."""
    hf: Any = target.hf
    parts = (hf.get_input_embeddings(), hf.get_output_embeddings())
    found: dict[str, bool] = {}
    for (key, option), part in zip(_SHARED.items(), parts, strict=True):
        mine = weights.get(key)
        shared = None if part is None else whole(part.weight.detach())
        same = mine is None or (
            shared is not None
            and mine.shape == shared.shape
            and torch.equal(mine.to(shared.dtype), shared.cpu())
        )
        if same:
            weights.pop(key, None)
        found[option] = not same
    return found


def merged_experts(name: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights `[...]` of experts, which `weights[...]` have one by one, as one parameter of all.

    Raises `ModelError` where one is missing among them, or they differ in shape.
    """
    found: dict[str, Tensor] = {}
    experts: dict[str, dict[tuple[int, str], Tensor]] = {}
    for key, weight in weights.items():
        each = _EXPERT.fullmatch(key)
        if each is None:
            found[key] = weight
        else:
            experts.setdefault(each[1], {})[int(each[2]), each[3]] = weight
    for place, parts in experts.items():
        count = 1 + max(number for number, _ in parts)
        every = [(number, part) for number in range(count) for part in ("gate", "up", "down")]
        if missing := [f"{place}.{n}.{p}_proj.weight" for n, p in every if (n, p) not in parts]:
            raise ModelError(f"{name}: its weights lack {named(missing)}")
        try:
            found[f"{place}.gate_up_proj"] = torch.stack(
                [torch.cat([parts[n, "gate"], parts[n, "up"]]) for n in range(count)]
            )
            found[f"{place}.down_proj"] = torch.stack([parts[n, "down"] for n in range(count)])
        except RuntimeError as error:
            raise ModelError(f"{name}: the experts of {place} differ in shape: {error}") from error
    return found
