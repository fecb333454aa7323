"""For authors of nodes and drafters: how to declare one, and what the decode step shares.

Each name is loaded when it is first used. Only the types of data need torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __all__: list[str]

    from ..graph.declare import op as op
    from ..graph.node import OpContext as OpContext
    from ..graph.node import State as State
    from ..graph.node import Value as Value
    from ..graph.parameters import Resource as Resource
    from ..graph.parameters import buffer as buffer
    from ..graph.parameters import context as context
    from ..graph.parameters import given as given
    from ..graph.parameters import optional as optional
    from ..graph.parameters import optional_state as optional_state
    from ..graph.parameters import optional_update as optional_update
    from ..graph.parameters import read as read
    from ..graph.parameters import settings as settings
    from ..graph.parameters import state as state
    from ..graph.parameters import update as update
    from ..graph.parameters import wanted as wanted
    from ..models.attention import AttentionBatch as AttentionBatch
    from ..models.causal_lm import CausalLM as CausalLM
    from ..models.heads import fitted as fitted
    from ..models.heads import output_head as output_head
    from ..models.loading import Loading as Loading
    from ..models.paged_cache import PagedCache as PagedCache
    from ..requests.batch import StepBatch as StepBatch
    from ..requests.limits import Limits as Limits
    from .data import DraftTable as DraftTable
    from .data import HostDrafts as HostDrafts
    from .data import HostSampled as HostSampled
    from .data import Inputs as Inputs
    from .data import Kept as Kept
    from .data import Mask as Mask
    from .data import Progress as Progress
    from .data import Proposal as Proposal
    from .data import Sampled as Sampled
    from .data import SampleRows as SampleRows
    from .data import SettledRow as SettledRow
    from .drafter import Drafter as Drafter
    from .drafter import Spans as Spans
    from .drafter import settled_spans as settled_spans
    from .drafting_model import cache_of as cache_of
    from .drafting_model import fitting as fitting
    from .kind import NodeKind as NodeKind
    from .node_config import NodeConfig as NodeConfig
    from .ops.history import History as History
    from .ops.places import cache_slots_of as cache_slots_of
    from .ops.proposal import FirstPass as FirstPass
    from .ops.proposal import chain as chain
    from .options import DrafterOptions as DrafterOptions
    from .options import ModelName as ModelName
    from .options import Options as Options
    from .request_settings import RequestSetting as RequestSetting
    from .sizes import Sizes as Sizes
    from .values import ACCEPTANCE as ACCEPTANCE
    from .values import BATCH as BATCH
    from .values import BLOCKS as BLOCKS
    from .values import DEVICE as DEVICE
    from .values import DRAFT_PROBS as DRAFT_PROBS
    from .values import DRAFTS as DRAFTS
    from .values import HIDDEN as HIDDEN
    from .values import HISTORY as HISTORY
    from .values import HOST_COUNTS as HOST_COUNTS
    from .values import HOST_DRAFTS as HOST_DRAFTS
    from .values import HOST_SAMPLED as HOST_SAMPLED
    from .values import INPUTS as INPUTS
    from .values import KEPT as KEPT
    from .values import KV as KV
    from .values import LIMITS as LIMITS
    from .values import LOADING as LOADING
    from .values import LOGITS as LOGITS
    from .values import MASK as MASK
    from .values import MASK_HOST as MASK_HOST
    from .values import MATCHERS as MATCHERS
    from .values import PROGRESS as PROGRESS
    from .values import PROMPT_LOGITS as PROMPT_LOGITS
    from .values import REQUEST_SLOTS as REQUEST_SLOTS
    from .values import REQUESTS as REQUESTS
    from .values import SAMPLED as SAMPLED
    from .values import SETTLED as SETTLED
    from .values import SIZES as SIZES
    from .values import STAGING as STAGING
    from .values import TARGET as TARGET
    from .values import VOCAB_SIZE as VOCAB_SIZE
else:
    from ..graph.public import door

    __getattr__, __dir__ = door(__name__)
