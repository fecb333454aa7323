"""Decoder layers run by `torch.compile`, all layers of a kind by one graph.

Norms, rotations, activations and residuals of an eager layer are some thirty small operations,
each a launch; compiled, they are a few: 38 operations of a Llama layer become 10, with merged
products (`merging.py`) and attention as one, in code for the CPU (`benchmarks/launches.py`). What
would make every layer, or every batch, a graph of its own is kept out of the graphs:

* which layer it is and which batch, by one operator that attends. The graph hands it the layer's
  *place*, a small tensor on the CPU, whose numbers nothing is compiled for, and it finds the batch
  by them when it runs. Inside it is the attention of `attention.py`, for any ragged batch.
* the number of tokens, which is a symbol. One token is a special case for every compiler, so a
  pass has at least two (`LEAST`).
* the settings of the thread that compiled, since another thread may run the step.

Layers of one class and shape differ in kind by what their attention is asked for, such as a sliding
window. Graphs are of layers, not of the model, so that compiling takes seconds however deep it is,
and they are no CUDA graphs: whoever runs the step captures those, on streams of its own choice.
"""

import itertools
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..backends.operations import numbers_of
from .attention import AttentionBatch, attend_layer
from .errors import CompileFailed, ModelError
from .kernels.reference import How

Compile = Literal["off", "layer"]

BACKEND = "inductor"
"""The compiler, as torch calls it."""

LEAST = 2
"""Tokens that a compiled pass has at least."""

_log = logging.getLogger(__name__)
_tickets = itertools.count()
_running: dict[int, AttentionBatch] = {}  # by ticket of the layers that run
_REPLACED = "_stepweave_compiled"


class CompiledLayers:
    """Takes the place of the `forward` of each of some layers, until `undo`.

    The layers must be called in inference mode, with a batch in the keyword argument `keyword`, or
    with something that has it as its attribute `paged`. Called otherwise, or under a dispatch
    mode (which sees nothing of a compiled graph), a layer runs as it is. Raises `CompileFailed` if
    other code has replaced the `forward` of a layer.
    """

    def __init__(
        self,
        name: str,
        layers: Sequence[nn.Module],
        *,
        keyword: str = "paged",
    ) -> None:
        """`name` is for messages."""
        self.name = name
        self.backend = BACKEND
        self.graphs = 0
        self.seconds = 0.0
        self._warm = 0
        self._layers = len(layers)
        run, ticket = _compiled(self._compile), next(_tickets)
        for layer in layers:
            if "forward" in layer.__dict__:
                raise CompileFailed(f"{name}: other code has replaced the forward of its layers")
            place = _Place(torch.tensor([ticket, _layer_idx(layer)]))
            layer.__dict__[_REPLACED] = True
            layer.__dict__["forward"] = _Region(layer, ticket, place, keyword, run)

    def _compile(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        if self._warm:
            _log.warning("%s: compiling a layer again, while it serves", self.name)
        return torch._dynamo.lookup_backend(self.backend)(graph, inputs)

    @contextmanager
    def warming(self) -> Iterator[None]:
        """What runs inside compiles. Raises `CompileFailed` if the compiler refuses a layer."""
        _log.info("%s: compiling its layers with %s", self.name, self.backend)
        start = time.perf_counter()
        settings: Any = torch._dynamo.config
        # A model may have more kinds of layers than torch expects of one function.
        limit = max(settings.recompile_limit, 2 * self._layers)
        try:
            with (
                settings.patch(recompile_limit=limit, specialize_float=True),
                warnings.catch_warnings(),
            ):
                # Some layers ask a cached function about versions, which is as good when traced.
                warnings.filterwarnings("ignore", "Dynamo detected a call to a `functools.lru_c")
                yield
        except ModelError:
            raise
        except Exception as error:  # compilers raise anything
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            why = " ".join(lines[:2]).rstrip(".") or type(error).__name__
            raise CompileFailed(
                f"{self.name}: {self.backend} could not compile its layers: {why}. Run it as it "
                'is, with compile "off"'
            ) from error
        self.seconds = time.perf_counter() - start
        self._warm = self.graphs
        _log.info("%s: %s", self.name, self.note)

    def require_no_more(self) -> None:
        """Raise `CompileFailed` if something was compiled since the warm-up."""
        if self.graphs > self._warm:
            raise CompileFailed(
                f"{self.name}: its layers were compiled again for another number of tokens, so a "
                'step could take seconds. Run it as it is, with compile "off"'
            )

    @property
    def note(self) -> str:
        """What was done, for people."""
        graphs = f"{self.graphs} graph{'s' if self.graphs != 1 else ''}"
        return (
            f"compiled {self._layers} layer{'s' if self._layers != 1 else ''} to {graphs} with "
            f"{self.backend} in {self.seconds:.1f} s"
        )


def undo(model: nn.Module) -> None:
    """Give every layer of `model` its own code back."""
    for module in model.modules():
        if module.__dict__.pop(_REPLACED, False):
            del module.forward


@dataclass(frozen=True)
class _Place:
    """Where a graph attends: `InGraph`."""

    place: Tensor  # [2], on the CPU: ticket and layer

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: How) -> Tensor:
        out: Tensor = _attend(
            query, key, value, self.place, how.scaling, how.window, how.softcap, how.sinks
        )
        return out


@dataclass(frozen=True)
class _Region:
    """The `forward` of one layer: what is not compiled of it."""

    layer: nn.Module
    ticket: int
    place: _Place
    keyword: str
    run: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        held: Any = kwargs.get(self.keyword)
        batch = getattr(held, "paged", held)
        if not isinstance(batch, AttentionBatch) or torch._C._len_torch_dispatch_stack() > 0:
            return type(self.layer).forward(self.layer, *args, **kwargs)
        kwargs[self.keyword] = self.place if held is batch else replace(held, paged=self.place)
        _running[self.ticket] = batch
        try:
            return self.run(self.layer, *args, **kwargs)
        finally:
            del _running[self.ticket]


def _attend_now(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    place: Tensor,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """`attend_layer` for the layer and the running batch that `place` names: `[T, H, D]`."""
    ticket, layer = numbers_of(place)
    how = How(scaling, window, softcap, sinks)
    batch = _running[ticket]
    return attend_layer(batch, layer, query, key, value, how, invariant=False).contiguous()


# It changes the cache, which is no argument: nothing else in a graph touches it, and the operators
# of a pass run in the order of its layers, since each needs the result of the one before.
_attend = torch.library.custom_op("stepweave::attend_in_graph", _attend_now, mutates_args=())


@_attend.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    place: Tensor,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    return query.new_empty(query.shape[2], query.shape[1], value.shape[3])


def _call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return type(layer).forward(layer, *args, **kwargs)


def _compiled(backend: Callable[..., Any]) -> Callable[..., Any]:
    """`_call`, with graphs of its own: torch keeps them by code object, a few for each."""
    own = FunctionType(_call.__code__.replace(), _call.__globals__)
    compiled: Callable[..., Any] = torch.compile(
        own,
        backend=backend,
        fullgraph=True,
        dynamic=True,
        options={"guard_filter_fn": _guarded},
    )
    return compiled


def _guarded(guards: Sequence[Any]) -> list[bool]:
    """All but those of the calling thread's settings, such as its number of torch threads."""
    return [guard.guard_type != "GLOBAL_STATE" for guard in guards]


def _layer_idx(layer: nn.Module) -> int:
    indices = [getattr(module, "layer_idx", None) for module in layer.modules()]
    found = {index for index in indices if isinstance(index, int)}
    if len(found) != 1:
        raise CompileFailed(
            f"{type(layer).__name__} has the layer indices {sorted(found)}; to be compiled it "
            "needs exactly one"
        )
    return found.pop()
