"""What a package with a policy is made of. Each name is loaded when first used.

`Policy` is the base of each. By decision there is a protocol, which says what a policy is asked and
what it must keep to, the views that it gets, and the policies that ship:

    admission   `Admission`, `PastSteps`; `Eager`, `JustInTime`
    scheduling  `Scheduling`, `RowView`; `DecodesFirst`, `Shared`, `Groups`
    preemption  `Preemption`, `RunningView`; `LastCome`, `FewestTokens`
    resumption  `Resumption`, `LeavingView`; `KeptOnHost`, `Cheaper`
    drafting    `Drafting`, `DraftView`, `Window`; `Full`, `ByRows`, `ByAcceptance`, `Fastest`
    acceptance  `Acceptance`; `Coupled`, `Rejection`, `Block`, `Typical`, `Synthetic`
    stopping    `Stopping`, `OutputView`; `AsAsked`, `Repetition`

`Policies` has one for each decision.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __all__: list[str]

    from .acceptance import Acceptance as Acceptance
    from .acceptance import Block as Block
    from .acceptance import Coupled as Coupled
    from .acceptance import Rejection as Rejection
    from .acceptance import Synthetic as Synthetic
    from .acceptance import Typical as Typical
    from .admission import Admission as Admission
    from .admission import Eager as Eager
    from .admission import JustInTime as JustInTime
    from .admission import PastSteps as PastSteps
    from .chosen import Policies as Policies
    from .drafting import ByAcceptance as ByAcceptance
    from .drafting import ByRows as ByRows
    from .drafting import Drafting as Drafting
    from .drafting import DraftView as DraftView
    from .drafting import Full as Full
    from .errors import PolicyError as PolicyError
    from .fastest import Fastest as Fastest
    from .policy import Policy as Policy
    from .preemption import FewestTokens as FewestTokens
    from .preemption import LastCome as LastCome
    from .preemption import Preemption as Preemption
    from .preemption import RunningView as RunningView
    from .resumption import Cheaper as Cheaper
    from .resumption import KeptOnHost as KeptOnHost
    from .resumption import LeavingView as LeavingView
    from .resumption import Resumption as Resumption
    from .scheduling import DecodesFirst as DecodesFirst
    from .scheduling import Groups as Groups
    from .scheduling import RowView as RowView
    from .scheduling import Scheduling as Scheduling
    from .scheduling import Shared as Shared
    from .stopping import AsAsked as AsAsked
    from .stopping import OutputView as OutputView
    from .stopping import Repetition as Repetition
    from .stopping import Stopping as Stopping
    from .windows import Window as Window
else:
    from ..graph.public import door

    __getattr__, __dir__ = door(__name__)
