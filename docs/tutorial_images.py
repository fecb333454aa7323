"""Draw the pictures of the tutorial from the plans that its reader makes.

    python docs/tutorial_images.py

runs the blocks of `docs/tutorial.md` up to the part on a real model, and writes
`docs/images/tutorial_*.svg`. A test draws them again and compares.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from stepweave.views.svg_lanes import lanes_svg

DOCS = Path(__file__).parent
TITLES = {
    "synchronous": "The synchronous loop",
    "asynchronous": "Asynchronous scheduling",
    "speculative": "Asynchronous scheduling and speculation",
    "everything": "Asynchronous scheduling, speculation and a grammar",
    "split": "The same, with commit in two parts",
}
"""By the name that a plan has in the tutorial."""


def plans() -> dict[str, Any]:
    """What the blocks of the tutorial leave behind, by name."""
    abstract = (DOCS / "tutorial.md").read_text(encoding="utf-8").partition("## 6.")[0]
    names: dict[str, Any] = {"__name__": "tutorial"}
    with redirect_stdout(io.StringIO()):
        for block in re.findall(r"```python\n(.*?)```", abstract, flags=re.S):
            exec(block, names)
    return names


def pictures() -> dict[str, str]:
    """Every picture by file name."""
    made = plans()
    return {
        f"tutorial_{name}.svg": lanes_svg(made[name], steps=3, title=title)
        for name, title in TITLES.items()
    }


def main() -> None:
    for name, drawn in pictures().items():
        (DOCS / "images" / name).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
