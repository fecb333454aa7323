"""mtp: propose tokens with a module that was trained with the target to predict further tokens.

Its input at position p is the target's last hidden state of token p and the token at p + 1, so it
runs as an EAGLE head does (`eagle.py`): over the tokens of the step, shifted by one, then over its
own guesses, with the one module for every draft. Of several modules each drafts one token, or one
level of a draft tree, and the last all that are wanted beyond. See `models/mtp_network.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..graph.parameters import Resource, given, settings
from .drafter import Drafter, settled_spans
from .drafting_model import cache_of, fitting
from .eagle import proposing
from .options import ModelName
from .tree import Growth, TreeOptions
from .values import LOADING, TARGET

if TYPE_CHECKING:
    from ..models.causal_lm import CausalLM
    from ..models.eagle import EagleHead
    from ..models.loading import Loading


EMBEDDED_MODULE = "embedded-mtp"
"""The name of the module that ships, for the embedded model."""


class MtpOptions(TreeOptions):
    """Options of a module that predicts further tokens."""

    model: ModelName | None = Field(
        default=None,
        description="The module, or several: a directory, or a hub name. null: what is in the "
        f"target's own checkpoint. That of the embedded model is `{EMBEDDED_MODULE}`.",
    )


def _load(
    chosen: MtpOptions = settings(MtpOptions),
    target: CausalLM = given(TARGET),
    loading: Loading = given(LOADING),
) -> EagleHead:
    head = loading.mtp_head(chosen.model, target)
    if head.further and isinstance(chosen.tree, Growth) and chosen.tree.among == "all":
        from ..models.errors import UnsupportedModel

        raise UnsupportedModel(
            f"{head.name}: it has {len(head.modules)} modules, each for the drafts of one depth, "
            "and `among: all` expands nodes of several depths in one pass: leave it out of `tree`"
        )
    return head


MTP: Resource[EagleHead] = Resource("mtp_module", _load)
"""The module; of several, the first, which has the others behind it."""
FITTING_MTP = fitting(MTP)
MTP_KV = cache_of(FITTING_MTP)

KIND = Drafter(
    "mtp",
    "propose k tokens per row with a module that the target was trained with (MTP)",
    proposing(FITTING_MTP, MTP_KV),
    options=MtpOptions,
    draws=True,
    spans=settled_spans,
)
