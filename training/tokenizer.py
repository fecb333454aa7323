"""The tokenizer both models share: byte-level BPE over pieces that make copying easy.

The usual pre-tokenizer glues a space to the word after it, so a name is one token sequence in
prose and another between quotation marks, and a model must learn to copy across the two. Here
words never carry a space: a name is the same tokens wherever it stands. Punctuation and spaces
form pieces of their own (`", "` is one token), and digits stay single, so numbers copy too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from training.corpus import examples

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eos|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL = (PAD, BOS, EOS, SYSTEM, USER, ASSISTANT)

# Letters | one digit | one line break | everything else up to the next of these.
PIECES = r"\p{L}+|\p{N}|\n|[^\p{L}\p{N}\n]+"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}{{ '<|system|>' }}"
    "{% for tool in tools %}{{ tool['function'] | tojson }}{% endfor %}{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}{{ '<|user|>' }}"
    "{% else %}{{ '<|' + message['role'] + '|>' }}{% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '<tool_call>{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{{ call['function']['arguments'] | tojson }}{{ '}</tool_call>' }}{% endfor %}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Without tools it writes what the model was trained on; it never saw calls."""


def train_tokenizer(vocab_size: int, seed: int, count: int) -> Tokenizer:
    """Learn the merges from `count` generated examples."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (f"{e.prompt}\n{e.answer}" for e in islice(examples(seed), count))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def wrap(tokenizer: Tokenizer, max_length: int = 1024) -> PreTrainedTokenizerFast:
    """The same tokenizer as `AutoTokenizer` loads it, with the chat template."""
    build: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast  # untyped upstream
    return build(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert isinstance(tokenizer, PreTrainedTokenizerFast), f"{folder} holds no fast tokenizer"
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the shared tokenizer.")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--vocab-size", type=int, default=1024)
    parser.add_argument("--examples", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tokenizer = wrap(train_tokenizer(args.vocab_size, args.seed, args.examples))
    # Not as a .jinja file: one file less to ship, and older loaders find it too.
    tokenizer.save_pretrained(args.out, save_jinja_files=False)


if __name__ == "__main__":
    main()
