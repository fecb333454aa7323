"""What an acceptance rule of another package is made of. Each name is loaded when first used."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __all__: list[str]

    from .noise import Purpose as Purpose
    from .noise import gumbel as gumbel
    from .noise import of_window as of_window
    from .noise import uniform as uniform
    from .verification import keep_equal as keep_equal
    from .verification import prefix as prefix
    from .verification import then_drawn as then_drawn
    from .verification import usable as usable
    from .windows import Verified as Verified
    from .windows import Windows as Windows
else:
    from ..graph.public import door

    __getattr__, __dir__ = door(__name__)
