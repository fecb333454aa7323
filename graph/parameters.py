"""What the parameters of a node's function stand for: reads, states, buffers, resources, options.

    @node(stream="compute", writes=SCALED)
    def scale(sampled: Tensor = read(SAMPLED), before: Tensor = read(SCALED, 1)) -> Tensor: ...

Each function below is used as the default of a parameter, and has the type of what the parameter
gets. So a type checker compares every reader with the writer, and "find references" of a value
lists both. Called directly, as a test does, the function gets its arguments like any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Generic, Literal, cast

from typing_extensions import TypeVar

from . import arguments
from .errors import GraphError, did_you_mean
from .node import OpContext, State, Value
from .pieces import Pieces

T = TypeVar("T")
B = TypeVar("B")

Role = Literal["read", "state", "update", "buffer", "resource", "options", "context", "pieces"]


@dataclass(frozen=True)
class Resource(Generic[T]):
    """Something of type T that does not change during a run: a model, sizes, a rule.

    `make` makes it once for each graph, from other resources, its parameters. Without it, whoever
    builds the graph brings it.
    """

    name: str
    make: Callable[..., T] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Parameter:
    """What one parameter gets. `of`: a value, state or resource, or the name of one."""

    role: Role
    of: Any = None
    carry: int = 0
    optional: bool = False
    when: Callable[..., bool] | None = None
    users: str | None = None  # the class for which a keyed state is accessed

    @property
    def name(self) -> str:
        """The name of the value, state or resource."""
        return self.of if isinstance(self.of, str) else cast(str, self.of.name)


def _parameter(role: Role, of: object, kind: type, **more: Any) -> Any:
    if not isinstance(of, kind | str) or not of:
        said = f"a {kind.__name__}, or the name of one"
        raise arguments.wrong(role, "its first argument", said, of, "SW-ARGUMENT")
    return Parameter(role, of, **more)


def read(value: Value[T, Any] | str, carry: int = 0) -> T:
    """The version of a value of `carry` steps back; 0: of this step. Raises `GraphError`.

    A value that a step may be without is a `Value[T | None]`, so that each reader is told. Before
    step 0 it is the value's `initial`.
    """
    arguments.whole("read", "carry", carry, -arguments.MAX_DISTANCE, 1 << 62)
    return cast(T, _parameter("read", value, Value, carry=carry))


def optional(value: Value[T, Any] | str, carry: int = 0) -> T | None:
    """`read` where some node writes the value, else None and no access. Raises `GraphError`."""
    arguments.whole("optional", "carry", carry, -arguments.MAX_DISTANCE, 1 << 62)
    return cast(T, _parameter("read", value, Value, carry=carry, optional=True))


def state(of: State[T] | str, *, users: str | None = None) -> T:
    """A state, to look at. Raises `GraphError` for what is no state.

    `users`: the class for which a keyed state is accessed, as of all functions below; None: that
    of the owner.
    """
    return cast(T, _parameter("state", of, State, users=users))


def optional_state(
    of: State[T] | str, when: Callable[..., bool] | None = None, *, users: str | None = None
) -> T | None:
    """`state` where another node updates it, else None and no access at all.

    `when` decides from resources, its parameters, whether it is wanted. Raises `GraphError`.
    """
    return cast(T, _parameter("state", of, State, optional=True, when=when, users=users))


def update(of: State[T] | str, *, users: str | None = None) -> T:
    """A state, to be changed in place. Raises `GraphError` for what is no state."""
    return cast(T, _parameter("update", of, State, users=users))


def optional_update(
    of: State[T] | str, when: Callable[..., bool] | None = None, *, users: str | None = None
) -> T | None:
    """`update` where another node has the state, else None, no access. Raises `GraphError`.

    Another with an optional update, too, does not count: each only keeps up what others use.
    With `when`, which decides from resources, it is wanted where that says so, by this node alone
    too: a state that is there for some models, say.
    """
    return cast(T, _parameter("update", of, State, optional=True, when=when, users=users))


def buffer(value: Value[Any, B] | str) -> B:
    """The buffer of a value that the function writes, to be filled in place and returned.

    None where nobody reads that value, and it is `wanted` only. Raises `GraphError`.
    """
    return cast(B, _parameter("buffer", value, Value))


def given(resource: Resource[T]) -> T:
    """A resource: fixed for the run. Raises `GraphError` for what is no resource."""
    arguments.a("given", "its argument", resource, Resource, "a Resource")
    return cast(T, Parameter("resource", resource))


def settings(model: type[T]) -> T:
    """The options that a pipeline gives the node: an instance of `model`. Raises nothing."""
    return cast(T, Parameter("options", model))


def context() -> OpContext:
    """The op's context: the number of its step, how long it waited, `stop`. Raises nothing."""
    return cast(OpContext, Parameter("context"))


def pieces() -> Pieces | None:
    """What records the op in pieces, in a step that is not replayed as a whole; None: nothing does.

    Raises nothing.
    """
    return cast(Pieces, Parameter("pieces"))


@dataclass(frozen=True)
class Wanted(Generic[T]):
    """A write that is made where some node reads the value, and where `of` is written, if given."""

    value: Value[T, Any]
    of: Value[Any, Any] | None = None


def wanted(value: Value[T, Any], of: Value[Any, Any] | None = None) -> Wanted[T]:
    """A write that is no access where nobody reads the value.

    `of`: the optional read of the same function that it is made from. Without the one there is not
    the other. Raises nothing.
    """
    return Wanted(value, of)


@cache
def parameters(function: Callable[..., Any]) -> Mapping[str, Parameter | None]:
    """What each parameter of a function gets; None for a plain argument that has a default.

    A parameter without a default reads the value, or looks at the state, that is called like it;
    one called `ctx` gets the context.
    Raises `GraphError` for a signature that hides what is read.
    """
    if _without_signature(function):
        return {}
    name = getattr(function, "__name__", "node")
    found: dict[str, Parameter | None] = {}
    for each in inspect.signature(function).parameters.values():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            raise GraphError(
                f"node {name!r}: the parameter *{each.name} hides what it reads. Name each read.",
                code="SW-SIGNATURE",
            )
        if each.kind is each.POSITIONAL_ONLY:
            raise GraphError(
                f"node {name!r}: the parameter {each.name!r} is positional only, but reads are "
                "passed by name. Drop the `/`.",
                code="SW-SIGNATURE",
            )
        if isinstance(each.default, Parameter):
            found[each.name] = each.default
        elif each.default is not each.empty:
            _refuse_bare(name, each)
            found[each.name] = None
        else:
            named = Parameter("context") if each.name == "ctx" else Parameter("read", each.name)
            found[each.name] = named
    return found


def _refuse_bare(function: str, parameter: inspect.Parameter) -> None:
    """Without a word around it, the function would get the declaration for the datum."""
    of = parameter.default
    for declaration, words in (
        (Value, "`read(…)`"),
        (State, "`state(…)` or `update(…)`"),
        (Resource, "`given(…)`"),
    ):
        if isinstance(of, declaration):
            raise GraphError(
                f"node {function!r}: the default of {parameter.name!r} is "
                f"{arguments.described(of)} and not what it holds. Write {words} around it.",
                code="SW-SIGNATURE",
            )


def _without_signature(function: Callable[..., Any]) -> bool:
    """Whether it is written in C, as `list` is, which cannot declare a parameter."""
    if isinstance(function, type):
        return not inspect.isfunction(function.__init__)  # type: ignore[misc]
    return inspect.isbuiltin(function)


class Resources:
    """What a graph is built with. Each resource is made when it is first asked for, once."""

    def __init__(self, brought: Mapping[Resource[Any], object] | None = None) -> None:
        self._found: dict[tuple[str, object], object] = {}
        self._settings: list[object] = []  # kept, since they are known by their identity
        self._known: dict[str, Resource[Any]] = {}
        self._being_made: list[str] = []
        for resource, what in (brought or {}).items():
            self.bring(resource, what)

    def bring(self, resource: Resource[T], what: T) -> None:
        """From now on, `resource` is `what`. Raises `GraphError` for two of one name."""
        self._check(resource)
        self._found[resource.name, None] = what

    def of(self, resource: Resource[T], settings: object = None) -> T:
        """The resource; `settings` are the options of the node that asks, for those made of them.

        Raises `GraphError` for one that nobody brought or can make, that needs itself, or that
        another of the same name is known beside.
        """
        self._check(resource)
        for key in ((resource.name, None), (resource.name, _key(settings))):
            if key in self._found:
                return cast(T, self._found[key])
        if resource.make is None:
            known = [name for name, _ in self._found]
            raise GraphError(
                f"there is no resource {resource.name!r} here{did_you_mean(resource.name, known)}",
                code="SW-RESOURCE",
            )
        if resource.name in self._being_made:
            way = " → ".join([*self._being_made, resource.name])
            raise GraphError(f"a resource is made from itself: {way}", code="SW-RESOURCE")
        self._being_made.append(resource.name)
        try:
            made = self.call(resource.make, settings)()
        finally:
            self._being_made.pop()
        by_settings = _needs_settings(resource.make)
        self._found[resource.name, _key(settings) if by_settings else None] = made
        self._settings.append(settings)
        return made

    def _check(self, resource: Resource[Any]) -> None:
        if self._known.setdefault(resource.name, resource) is not resource:
            raise GraphError(
                f"two resources are called {resource.name!r}. Share one, or rename one.",
                code="SW-DUPLICATE",
            )

    def get(self, resource: Resource[T]) -> T | None:
        """The resource, if it was brought or made."""
        found = [what for (name, _), what in self._found.items() if name == resource.name]
        return cast(T, found[0]) if found else None

    def made(self) -> list[object]:
        """All that was brought or made so far, in that order."""
        return list(self._found.values())

    def call(self, function: Callable[..., B], settings: object = None) -> Callable[..., B]:
        """`function` with its resources and options passed."""
        passed = {
            name: settings if each.role == "options" else self.of(each.of, settings)
            for name, each in parameters(function).items()
            if each is not None and each.role in ("resource", "options")
        }
        return partial(function, **passed) if passed else function


def _key(settings: object) -> object:
    return None if settings is None else id(settings)


@cache
def _needs_settings(function: Callable[..., Any]) -> bool:
    """Whether a function, or what makes one of its resources, has a parameter for options."""
    return any(
        each.role == "options"
        or (each.role == "resource" and each.of.make is not None and _needs_settings(each.of.make))
        for each in parameters(function).values()
        if each is not None
    )
