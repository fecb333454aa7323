"""What a package with a kind of node is made of. Each name is loaded when first used."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __all__: list[str]

    from .kind import Built as Built
    from .kind import NodeKind as NodeKind
    from .kind import NodeSpec as NodeSpec
    from .options import Options as Options


def __getattr__(name: str) -> object:
    from ..graph.public import load

    return load(__name__, name)


def __dir__() -> list[str]:
    from ..graph.public import names

    return sorted({*globals(), *names(__name__)})
