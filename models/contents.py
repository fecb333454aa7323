"""What the files of a model contain, in short: by that two copies are known to be one model."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

WHOLE = (
    "config.json",
    "adapter_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "chat_template.jinja",
)
"""Files on which tokens and texts depend, and which are small enough to be read."""

SAMPLES = 64
"""How many places of a file of weights are read: training changes nearly all of them."""

SAMPLE_BYTES = 4096


def digest_of_contents(folder: Path) -> str:
    """The same for copies of a model, wherever they lie; another for another model.

    Weights are compared by their size, by what the file says of its tensors, and by samples: to
    read all of them would take as long as to load them again. Raises `OSError`.
    """
    digest = blake2b(digest_size=8)
    for name in WHOLE:
        file = folder / name
        digest.update(f"{name} {file.is_file()}\n".encode())
        if file.is_file():
            digest.update(blake2b(file.read_bytes()).digest())
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(f"{file.name}\n".encode())
        digest.update(_sampled(file))
    return digest.hexdigest()


def _sampled(file: Path) -> bytes:
    """The digest of a file's size, its header and evenly spaced pieces of the rest."""
    size = file.stat().st_size
    digest = blake2b(f"{size}\n".encode())
    with file.open("rb") as data:
        digest.update(data.read(min(size, 8 + int.from_bytes(data.read(8), "little"))))
        start = data.tell()
        for index in range(SAMPLES):
            data.seek(start + (size - start) * index // SAMPLES)
            digest.update(data.read(SAMPLE_BYTES))
    return digest.digest()
