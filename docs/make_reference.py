"""Write what the reference says from the code that it is about.

    python docs/make_reference.py

writes `nodes.md`, `pipelines.md` and `policies.md` of `reference/` whole, and in the other pages
what stands between the markers `<!-- written: … -->` and `<!-- until here -->`; the prose around
them is written by hand. A test writes it all again and compares, so a page cannot
outlive what it describes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))  # for `sections`, which is no part of the package

from sections import (  # noqa: E402
    http,
    keys,
    metrics,
    names,
    nodes,
    pipelines,
    policies,
    public,
    verbs,
)
from sections.markdown import filled  # noqa: E402

WRITERS: Mapping[str, Callable[[str], str]] = {
    "keys": keys.keys,
    "verbs": lambda _: verbs.overview(),
    "options": verbs.options,
    "names": names.names,
    "public": lambda _: public.packages(),
    "errors": lambda _: names.errors(),
    "step": nodes.step,
    "metrics": metrics.metrics,
    "body": http.keys,
    "refused": http.refused,
    "statuses": lambda _: http.statuses(),
    "limits": lambda _: http.limits(),
}
"""By the first word of a marker: what writes the text; it gets the words after the first."""


def pages() -> dict[str, str]:
    """Every page that code has a part in, by its path below `docs`."""
    found = {
        "reference/nodes.md": nodes.page(),
        "reference/pipelines.md": pipelines.page(),
        "reference/policies.md": policies.page(),
    }
    for path in sorted(FOLDER.rglob("*.md")):
        name, page = path.relative_to(FOLDER).as_posix(), path.read_text(encoding="utf-8")
        if name not in found and "<!-- written: " in page:
            found[name] = filled(page, lambda what, about: WRITERS[what](about))
    return found


def main() -> None:
    for name, page in pages().items():
        (FOLDER / name).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
