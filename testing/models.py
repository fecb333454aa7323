"""Small random models of several families, for tests: of ours, and of nodes you write.

They are random but not bland: weights are large enough that greedy outputs wander, so that a
wrong mask or a lost token shows in the text. No weights are downloaded, and neither pytest nor
hypothesis is needed.
"""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional as F
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from ..models.causal_lm import CausalLM
from ..models.eagle import EagleHead
from ..models.eagle_network import EagleConfig, EagleNetwork
from ..models.medusa import MedusaHeads, MedusaNetwork
from ..models.mtp_network import MtpNetwork

SIZE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}


def longrope(original: int, width: int) -> dict[str, Any]:
    """Fields of a configuration whose rope changes beyond `original` tokens; heads of `width`."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.1 * (i % 4) for i in range(width // 2)],
        "long_factor": [1.5 + 1.1 * (i % 5) for i in range(width // 2)],
        "original_max_position_embeddings": original,
    }
    return {"original_max_position_embeddings": original, "rope_parameters": rope}


FAMILIES: dict[str, Callable[..., Any]] = {
    "llama": LlamaConfig,
    "qwen3": Qwen3Config,
    "mistral": lambda **size: MistralConfig(**{"sliding_window": 7, **size}),
    "gemma2": lambda **size: Gemma2Config(
        **{
            "sliding_window": 9,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 4.0,
            "query_pre_attn_scalar": 16,
            **size,
        }
    ),
    "gemma3": lambda **size: Gemma3TextConfig(
        **{
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 16,
            **size,
        }
    ),
    "phi3": lambda **size: Phi3Config(
        **{
            **longrope(200, 12),
            **{name: value for name, value in size.items() if name != "head_dim"},
        }
    ),
    "gpt_oss": lambda **size: GptOssConfig(
        **{
            "sliding_window": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            **size,
        }
    ),
}
"""What is special: window (mistral), soft caps (gemma2), two ropes (gemma3), sinks and experts
(gpt_oss), a rope that changes beyond 200 tokens (phi3)."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

_TEXT = (
    'the quick brown fox jumps over the lazy dog {"name": "value", "list": [1, 2, 3], "true": '
    "false, null} to be or not to be that is the question 3.14159 hello hello world"
)


def tiny_model(
    family: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32, **config: Any
) -> PreTrainedModel:
    """A random model of `family` (a key of `FAMILIES`), the same for the same arguments.

    `config` overrides fields of its configuration. The global random state is left alone. Raises
    `ValueError` for a family that there is not.
    """
    if family not in FAMILIES:
        raise ValueError(f"no family {family!r}; there are {', '.join(sorted(FAMILIES))}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build: Any = AutoModelForCausalLM.from_config
        model = build(FAMILIES[family](**{**SIZE, **config}), attn_implementation="eager")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "embed" in name or name.endswith("sinks"):
                    parameter.normal_()
                elif parameter.dim() >= 2:
                    fan_in = parameter.shape[1]  # (experts, inputs, outputs)
                    parameter.normal_(std=1.5 * fan_in**-0.5)
    nn.Module.to(model, dtype).train(False)
    assert isinstance(model, PreTrainedModel)
    return model


def tiny_eagle(
    target: PreTrainedModel,
    style: Literal["eagle", "eagle3"],
    *,
    invariant: bool = False,
    merge: bool | None = None,
    context: int | None = None,
    seed: int = 0,
) -> EagleHead:
    """A head for a small Llama whose first layer decides most (such as that of `tiny_pair`).

    Untrained, yet some of its drafts are right: it does to the next token what the target's first
    layer does. What the target's hidden states add is little but not nothing, so that wrong ones
    show in the drafts. An EAGLE-3 head drafts only four tokens of five. The target may be wrapped
    in a `CausalLM` afterwards; weights are the same for the same arguments.
    """
    llama: Any = copy.deepcopy(target.config)
    llama.num_hidden_layers = 1
    llama.max_position_embeddings = context or llama.max_position_embeddings
    size = int(llama.hidden_size)
    weights = {name: weight.cpu() for name, weight in target.state_dict().items()}
    first = {
        name.removeprefix("model.layers.0."): weight
        for name, weight in weights.items()
        if name.startswith("model.layers.0.")
    }
    draft_ids = None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        if style == "eagle":
            network = EagleNetwork(EagleConfig("eagle", llama, size))
            network.fc.weight.copy_(torch.cat([torch.eye(size), 0.05 * torch.eye(size)], dim=1))
            del first["input_layernorm.weight"]
            network.layers[0].load_state_dict(first)
        else:
            draft_ids = torch.tensor([i for i in range(llama.vocab_size) if i % 5 != 4])
            llama.num_attention_heads *= 3
            llama.num_key_value_heads *= 3
            layers = (1, 2, 3)
            network = EagleNetwork(
                EagleConfig(
                    "eagle3",
                    llama,
                    len(layers) * size,
                    layers,
                    draft_vocab_size=len(draft_ids),
                    norm_before_residual=True,
                )
            )
            _carry_next_token(network, first, weights["lm_head.weight"][draft_ids])
    return EagleHead(
        network,
        CausalLM.wrap(target, invariant=invariant, merge=merge),
        draft_ids,
        invariant=invariant,
    )


def tiny_mtp(
    target: PreTrainedModel,
    *,
    invariant: bool = False,
    context: int | None = None,
    seed: int = 0,
    modules: int = 1,
) -> EagleHead:
    """A module that predicts further tokens for a small model whose first layer decides most.

    Untrained, as `tiny_eagle` is: it does to the next token what that layer does, and the target's
    hidden states add little. The target may be wrapped in a `CausalLM` afterwards; weights are the
    same for the same arguments. Of several `modules` each has another part of these.
    """
    first, *others = [
        _tiny_module(target, context, seed + place, place) for place in range(modules)
    ]
    wrapped = CausalLM.wrap(target, invariant=invariant, merge=None)
    return EagleHead(first, wrapped, further=[EagleHead(each, wrapped) for each in others])


def _tiny_module(target: PreTrainedModel, context: int | None, seed: int, place: int) -> MtpNetwork:
    hf: Any = target
    model = hf.get_decoder()
    size = int(model.config.hidden_size)
    network = MtpNetwork(target, context=context, place=place)
    embedding: Any = target.get_input_embeddings()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        scale = float(embedding.weight.pow(2).mean().sqrt())
        mixed = torch.cat([scale * torch.eye(size), 0.05 * torch.randn(size, size)], dim=1)
        network.eh_proj.weight.copy_(mixed)
        network.layers[0].load_state_dict(model.layers[0].state_dict())
        network.norm.load_state_dict(model.norm.state_dict())
    return network


def tiny_medusa(target: PreTrainedModel, heads: int, *, invariant: bool = False) -> MedusaHeads:
    """Medusa heads for a small model, each with an output layer of its own, fitted to a few texts.

    Some of their drafts are right. The target may be wrapped in a `CausalLM` afterwards; weights
    are the same for the same arguments.
    """
    size, vocab = int(target.config.hidden_size), int(target.config.vocab_size)
    network = MedusaNetwork(heads, 1, size, vocab)
    hf: Any = target
    output = hf.get_output_embeddings()
    key = (heads, output.weight.dtype, float(output.weight.detach().double().sum()))
    if key not in _FITTED:
        _FITTED[key] = _fitted_heads(target, network)
    network.load_state_dict(_FITTED[key])
    return MedusaHeads(network, CausalLM.wrap(target, invariant=invariant), own_output=True)


_FITTED: dict[tuple[int, torch.dtype, float], dict[str, torch.Tensor]] = {}


@torch.no_grad()
def _fitted_heads(target: PreTrainedModel, network: MedusaNetwork) -> dict[str, torch.Tensor]:
    """Blocks that change little, and output layers by least squares: from a state to what the
    target says as many tokens later, over texts that it writes itself.
    """
    target.set_attn_implementation("eager")
    hf: Any = target
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for name, parameter in network.named_parameters():
            parameter.normal_(std=0.02 if "linear" in name else 0.0)
        prompts = torch.randint(3, int(target.config.vocab_size), (24, 4), device=target.device)
    texts = hf.generate(prompts, max_new_tokens=36, do_sample=False, eos_token_id=None)
    read = hf(texts, output_hidden_states=True, use_cache=False)
    states, said = (each.double().cpu() for each in (read.hidden_states[-1], read.logits))
    network.double()
    for ahead, head in enumerate(network, start=1):
        assert isinstance(head, nn.Sequential)
        seen = head[0](states[:, :-ahead]).flatten(0, 1)
        gram = seen.T @ seen
        gram += 1e-3 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        fit = torch.linalg.solve(gram, seen.T @ said[:, ahead:].flatten(0, 1))
        head[1].load_state_dict({"weight": fit.T})
    return {name: each.clone() for name, each in network.float().state_dict().items()}


def _carry_next_token(
    network: EagleNetwork, first: dict[str, torch.Tensor], head: torch.Tensor
) -> None:
    """The target's layer in EAGLE-3's form, whose residual is without the next token.

    So a third of the attention heads are the target's, on the embedding half of their input; the
    others attend to their own position, by matching it with itself, and bring its embedding in.
    """
    size, width = network.config.hidden_size, network.config.head_dim
    layer: Any = network.layers[0]
    attention = layer.self_attn
    own = {name: first[f"self_attn.{name}_proj.weight"] for name in "qkvo"}
    keys, queries = len(own["k"]), len(own["q"])
    frame = torch.linalg.qr(torch.randn(2 * keys, size)).Q
    by_query = frame.view(-1, width, size).repeat_interleave(queries // keys, 0).flatten(0, 1)
    for name, carrying in (("q", 2.5 * by_query), ("k", 2.5 * frame), ("v", frame)):
        weight = getattr(attention, f"{name}_proj").weight
        weight.copy_(F.pad(torch.cat([own[name], carrying]), (0, size)))
    attention.o_proj.weight.copy_(torch.cat([own["o"], by_query.T * keys / queries], dim=1))
    layer.hidden_norm.weight.fill_(0.3)
    layer.mlp.load_state_dict(
        {name.removeprefix("mlp."): each for name, each in first.items() if "mlp." in name}
    )
    network.lm_head.weight.copy_(head)


def tiny_tokenizer(vocab_size: int = 320) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most `vocab_size` tokens, `<eos>` being token 0.

    Raises `ValueError` for less than 262: the bytes and the special tokens.
    """
    if vocab_size < 262:
        raise ValueError(f"vocab_size must be at least 262, not {vocab_size}")
    wrap: Any = PreTrainedTokenizerFast
    trained = Tokenizer.from_str(_trained(vocab_size))
    wrapped = wrap(tokenizer_object=trained, eos_token="<eos>", pad_token="<pad>")
    wrapped.chat_template = CHAT_TEMPLATE
    assert isinstance(wrapped, PreTrainedTokenizerFast)
    return wrapped


@cache
def _trained(vocab_size: int) -> str:
    """As JSON: training takes ten times as long as reading it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    trained: str = tokenizer.to_str()
    return trained


def save_tiny(directory: str | Path, family: str = "llama", seed: int = 0, **config: Any) -> Path:
    """Write a model and tokenizer that fit each other to `directory`, as the hub has them.

    Raises `ValueError` as `tiny_model` does, and `OSError` where nothing can be written.
    """
    directory = Path(directory)
    tokenizer = tiny_tokenizer()
    vocab = {"vocab_size": len(tokenizer), "eos_token_id": 0}
    model = tiny_model(family, seed, **{**vocab, **config})
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
