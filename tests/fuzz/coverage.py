"""Coverage-guided fuzzing of one door, for as long as you like; needs `pip install atheris`.

    python -m tests.fuzz.coverage yaml -max_total_time=600

Whatever it finds is written to the working directory as `crash-…`: mend it, and put the file into
`tests/fuzz/corpus/` under the door's name, in hexadecimal and as `….hex` if it is no UTF-8 text.
Arguments after the door are those of libFuzzer.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"
DOORS = ("yaml", "prompts", "grammar")


def recorded(path: Path) -> bytes:
    """An input of the corpus."""
    if path.suffix == ".hex":
        return bytes.fromhex(path.read_text(encoding="ascii"))
    return path.read_bytes()


def seeds(door: str, folder: Path) -> None:
    """What the fuzzer starts from: the regressions, and good input."""
    from stepweave.configs.load import shipped, shipped_file

    for path in (CORPUS / door).glob("*"):
        (folder / path.name).write_bytes(recorded(path))
    if door == "yaml":
        for name in shipped():
            (folder / name).write_bytes(shipped_file(name).read_bytes())


def main(arguments: list[str]) -> None:
    """Fuzz `arguments[0]`. Ends the process, as libFuzzer does."""
    if not arguments or arguments[0] not in DOORS:
        sys.exit(f"usage: python -m tests.fuzz.coverage {{{'|'.join(DOORS)}}} [libFuzzer options]")
    try:
        atheris: Any = import_module("atheris")
    except ImportError:
        sys.exit("atheris is not installed: pip install atheris")
    door, *options = arguments
    with atheris.instrument_imports(include=["stepweave", "ruamel.yaml"]):
        targets = import_module("tests.fuzz.targets")
    target = targets.TARGETS[door]

    def one_input(data: bytes) -> None:
        target(data)

    with tempfile.TemporaryDirectory(prefix="stepweave-seeds-") as folder:
        seeds(door, Path(folder))
        atheris.Setup([sys.argv[0], *options, folder], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
