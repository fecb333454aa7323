"""A checkpoint of `shapes.py` for OpenVINO, by optimum-intel: `to_openvino.py FOLDER TARGET`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from optimum.intel import OVModelForCausalLM


def main() -> None:
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    part = target.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    # Not said otherwise, it stores weights of large models in eight bits.
    export = {"export": True, "load_in_8bit": False, "compile": False}
    model = OVModelForCausalLM.from_pretrained(folder, **export)
    model.save_pretrained(part)
    part.replace(target)


if __name__ == "__main__":
    main()
