"""Where a model's files are: in the package, in a directory, in the hub's cache, or on the hub.

One rule for targets, drafters, heads and tokenizers. What cannot be had is refused in one sentence
that names it, before anything is opened: a file is never taken for a model, so nothing pickled is
ever read, and an unreachable hub is asked once.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, try_to_load_from_cache
from huggingface_hub.errors import RepositoryNotFoundError
from safetensors import SafetensorError, safe_open
from transformers.utils import logging as transformers_logging

from ..graph.errors import shortly
from .errors import ModelError, ModelNotFound, UnsupportedModel

EMBEDDED = {"embedded": "target", "embedded-draft": "draft"}
"""Names of the models that ship with the package, and their folders in `embedded/`."""

EMBEDDED_EAGLE = {"embedded-eagle": "eagle", "embedded-eagle3": "eagle3"}
"""Names of the EAGLE heads that ship with the package, for the model `embedded`."""

EMBEDDED_MTP = {"embedded-mtp": "mtp"}
"""That of the module that predicts further tokens of it."""

EMBEDDED_MEDUSA = {"embedded-medusa": "medusa"}
"""That of its Medusa heads."""

EMBEDDED_HEADS = EMBEDDED_EAGLE | EMBEDDED_MTP | EMBEDDED_MEDUSA
"""All that drafts for it and is no model of its own."""

CONVERT = (
    "A pickled file can run code when it is read, so it is never read; convert it once, if you "
    "trust it: safetensors.torch.save_file(torch.load('pytorch_model.bin', weights_only=True), "
    "'model.safetensors')"
)

_FILE_TYPES = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".json", ".pkl"}
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?", re.ASCII)
_HUB_TIMEOUT_S = 10.0


def resolve(name_or_path: str | Path, embedded: Mapping[str, str] = EMBEDDED) -> str:
    """The directory of an embedded model; any other name or path as it is.

    Raises `ModelNotFound` if this installation lacks the embedded model.
    """
    if str(name_or_path) not in embedded:
        return str(name_or_path)
    folder = Path(__file__).parent / "embedded" / embedded[str(name_or_path)]
    if not (folder / "config.json").is_file():
        raise ModelNotFound(
            f"{name_or_path!r}: this installation lacks the embedded model (looked in "
            f"{folder.parent.name}/{folder.name} of stepweave.models)"
        )
    return str(folder)


def located(name_or_path: str | Path, embedded: Mapping[str, str] = EMBEDDED) -> str:
    """The directory, if there is one, or a name that the hub may know.

    Raises `ModelNotFound` for a file, and for a path that does not exist.
    """
    source = resolve(name_or_path, embedded)
    try:
        path = Path(source).expanduser()
        if path.is_dir():
            return str(path)
        exists = path.exists()
    except (OSError, RuntimeError) as error:
        raise ModelNotFound(f"{source!r} cannot be a directory: {shortly(error)}") from error
    if exists:
        raise ModelNotFound(_is_a_file(path))
    if _is_path(source):
        raise ModelNotFound(
            f"there is no directory {source!r}{_nearest(path)}; a model is a directory with "
            "config.json, *.safetensors and a tokenizer, or the name of a repository on the hub "
            "such as 'owner/model'"
        )
    if source in EMBEDDED or source in EMBEDDED_HEADS:
        what = "a head" if source in EMBEDDED_HEADS else "a model"
        raise ModelNotFound(
            f"{source!r} is {what} that ships with Stepweave; here {' or '.join(sorted(embedded))} "
            "fits"
        )
    return source


def from_local_then_hub(auto: Any, name_or_path: str | Path, **options: Any) -> Any:
    """`auto.from_pretrained`, without the network if that suffices, and never with remote code.

    Raises `ModelNotFound` where nothing is to be had. What else `from_pretrained` raises is left
    to the caller, who knows what was wanted.
    """
    source = located(name_or_path)
    options["trust_remote_code"] = False
    local = Path(source).is_dir()
    try:
        return auto.from_pretrained(source, local_files_only=True, **options)
    except OSError:
        if local:
            raise
    ask_hub(source)
    return auto.from_pretrained(source, **options)


def ask_hub(name: str) -> None:
    """One question to the hub, without retries: raises `ModelNotFound` unless it has the model."""
    nowhere = f"{name!r} is neither a directory here nor in the local cache of the hub"
    near = _nearest(Path(name))
    if constants.HF_HUB_OFFLINE:
        raise ModelNotFound(
            f"{nowhere}{near}, and HF_HUB_OFFLINE forbids asking the hub; give the model's "
            "directory, or unset HF_HUB_OFFLINE"
        )
    try:
        HfApi().model_info(name, timeout=_HUB_TIMEOUT_S)
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"{nowhere}, and the hub has no model of this name{near}, or it is private: log in "
            "with `hf auth login`"
        ) from error
    except Exception as error:  # of the hub's HTTP library, which one depends on the version
        raise ModelNotFound(
            f"{nowhere}{near}, and the hub cannot be reached ({shortly(error)}); give the model's "
            f"directory, or fetch it where there is a network: hf download {name}"
        ) from error


def folder_of(name_or_path: str | Path, embedded: Mapping[str, str] = EMBEDDED) -> Path | None:
    """The folder that has the files: the directory itself, or the hub's cache; None if neither."""
    source = located(name_or_path, embedded)
    if Path(source).is_dir():
        return Path(source)
    cached = try_to_load_from_cache(source, "config.json")
    return Path(cached).parent if isinstance(cached, str) else None


def require_safetensors(name: str | Path, folder: Path) -> None:
    """Refuse a `folder` without readable safetensors files.

    Raises `UnsupportedModel` if there is none, and `ModelError` naming one that cannot be read.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = [each.name for each in sorted(folder.iterdir()) if each.suffix in _PICKLED]
        hint = f"; it has {_listed(pickled)}. {CONVERT}" if pickled else ""
        if any(folder.glob("*.gguf")):
            hint = "; it has GGUF files, and only safetensors are read"
        raise UnsupportedModel(f"{name}: it has no safetensors file{hint}")
    for file in files:
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{name}: {file.name} is not a whole safetensors file ({shortly(error)}); its "
                f"{_size(file)} bytes are cut off or damaged: fetch it again"
            ) from error


def stored_dtypes(file: Path) -> Iterator[tuple[str, str]]:
    """Each tensor of a safetensors file with the name of its dtype there, as `F32` or `I8`."""
    with safe_open(file, framework="pt") as tensors:
        for key in tensors.keys():  # noqa: SIM118 (it is no mapping)
            yield key, tensors.get_slice(key).get_dtype()


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Nothing of transformers is shown of a load that fails: the error says what is wrong.

    No progress bar for what takes a moment, either; a download from the hub shows its own. What is
    logged of a load that succeeds is shown at its end, but for what is in the list that this
    gives: reports of a checkpoint's weights, to be judged by the caller.
    """
    bars: Any = transformers_logging
    shown, logger = bars.is_progress_bar_enabled(), logging.getLogger("transformers")
    held: dict[logging.LogRecord, None] = {}
    reports: list[str] = []

    def hold(record: logging.LogRecord) -> bool:  # once for each handler
        text = record.getMessage()
        if "LOAD REPORT" not in text:
            held[record] = None
        elif text not in reports:
            reports.append(text)
        return False

    handlers = list(logger.handlers)
    bars.disable_progress_bar()
    for handler in handlers:
        handler.addFilter(hold)
    try:
        yield reports
    except BaseException:
        held.clear()
        raise
    finally:
        for handler in handlers:
            handler.removeFilter(hold)
        if shown:
            bars.enable_progress_bar()
        for record in held:
            logger.handle(record)


def _is_a_file(path: Path) -> str:
    folder = path.parent
    hint = f"give its folder: {folder}" if (folder / "config.json").is_file() else ""
    if not hint and path.suffix in _PICKLED:
        hint = CONVERT
    return (
        f"{path} is a file; a model is a directory with config.json, *.safetensors and a tokenizer"
        + (f"; {hint}" if hint else "")
    )


def _is_path(source: str) -> bool:
    """Whether a name that is no directory was meant as one, and not as a name on the hub."""
    first = source.split("/")[0]
    if source.startswith(("/", ".", "~")) or source.count("/") > 1 or "\\" in source:
        return True
    if Path(source).suffix in _FILE_TYPES or ("/" in source and os.path.isdir(first)):
        return True
    return _HUB_NAME.fullmatch(source) is None


def _nearest(path: Path) -> str:
    """The directory beside `path`, or the shipped name, that it may have been meant for."""
    try:
        beside = {each.name: str(each) for each in path.parent.iterdir() if each.is_dir()}
    except OSError:
        beside = {}
    known = {**{name: name for name in (*EMBEDDED, *EMBEDDED_HEADS)}, **beside}
    near = get_close_matches(path.name, known, n=1)
    return f" (did you mean {known[near[0]]!r}?)" if near else ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
