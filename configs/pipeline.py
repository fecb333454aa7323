"""From the merged text of a pipeline to its checked config.

Each node is read by the model of its kind, so that a wrong option is told at its own line. What
needs more than one key to judge is judged here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from ..graph.errors import GraphError, did_you_mean, nearest
from ..nodes.node_config import AUTO, NodeConfig
from ..nodes.registry import kind, known_kinds
from ..policies.chosen import clash
from ..policies.errors import PolicyError
from ..policies.registry import DECISIONS, check_policy, default, loadable
from .errors import ConfigError, Mark, Problem
from .keys import keys as all_keys
from .names import not_a_node
from .node_keys import PLACEMENT, reading_model
from .place import Line
from .plain import located
from .policies import by_kind
from .retired import without_retired
from .schema import PipelineConfig, PolicyConfig, policy_model
from .usual import USUAL
from .validated import validated
from .yaml_source import Located, Location

Model = TypeVar("Model", bound=BaseModel)


def read_pipeline(source: Located) -> PipelineConfig:
    """The config of a merged file. Raises `ConfigError` listing all that is wrong."""
    source, problems = without_retired(source)
    listed, policies = _entries(source, "nodes"), _entries(source, "policies")
    nodes = _each(listed, _node, problems)
    by_name = {key: part for key, part in policies.items() if key in DECISIONS}
    chosen = _each(by_name, _policy, problems)
    rest = dict(_entries(source))
    if listed:
        del rest["nodes"]
    rest |= _depth_by_itself(rest)
    for key, said in _elsewhere(rest):
        part = rest.pop(key)
        problems.append(Problem(part.key or part.mark, said))
    if by_name:
        others = {key: part for key, part in policies.items() if key not in by_name}
        rest["policies"] = Located(others, rest["policies"].mark, rest["policies"].key)
    try:
        config = validated(PipelineConfig, Located(rest, source.mark, source.key))
    except ConfigError as error:
        raise ConfigError(*_by_line([*problems, *error.problems])) from error
    update = {"nodes": nodes, "policies": config.policies.model_copy(update=chosen)}
    config = config.model_copy(update=update)
    if found := problems or list(_across(config, source)):
        raise ConfigError(*_by_line(found))
    return config


def _elsewhere(given: Mapping[str, Located]) -> list[tuple[str, str]]:
    """A model that is named alone, and keys that stand a level too high: what to write instead."""
    found = []
    model = given.get("model")
    if model is not None and isinstance(model.value, str):
        said = f"model must be a mapping: write `model: {{name: {model.value[:60]}}}`"
        found.append(("model", said))
    known = PipelineConfig.model_fields
    for key in given:
        if key in known or key in PLACEMENT or nearest(key, known) is not None:
            continue
        paths = [each.name for each in all_keys() if each.name.rpartition(".")[2] == key]
        if paths:
            found.append((key, f"unknown key {key!r}; there is `{paths[0]}`"))
    return found


def _depth_by_itself(given: Mapping[str, Located]) -> dict[str, Located]:
    """What `depth: auto` stands for: depth 2 to begin with, and plans of depth 1 and 3."""
    if "depth" not in given or given["depth"].value != "auto":
        return {}
    said = given["depth"]
    plans = given.get("plans", Located({}, said.mark, said.mark))
    if not isinstance(plans.value, dict):
        return {"depth": Located(2, said.mark, said.key)}
    own = {f"depth_{depth}": located({"depth": depth}, said.mark) for depth in (1, 3)}
    both = Located({**own, **plans.value}, plans.mark, plans.key)
    return {"depth": Located(2, said.mark, said.key), "plans": both}


def _entries(part: Located, *keys: str) -> dict[str, Located]:
    """The mapping below `keys`; empty where something else stands there."""
    for key in keys:
        part = part.value.get(key, part) if isinstance(part.value, dict) else part
        if part.key is None or not isinstance(part.value, dict):
            return {}
    return part.value if isinstance(part.value, dict) else {}


def _each(
    parts: Mapping[str, Located], read: Callable[[str, Located], Model], problems: list[Problem]
) -> dict[str, Model]:
    """Each part as `read` reads it; what is wrong is added to `problems`."""
    found: dict[str, Model] = {}
    for name, part in parts.items():
        try:
            found[name] = read(name, part)
        except ConfigError as error:
            problems += error.problems
    return found


def _policy(decision: str, part: Located) -> PolicyConfig:
    """A policy by its name alone, or a mapping of its options, with its name as `kind`."""
    where = ("policies", decision)
    named = by_kind(part)
    if isinstance(named.value, dict) and "kind" not in named.value:
        usual = Located(default(decision), part.mark, part.mark)
        named = Located({"kind": usual, **named.value}, part.mark, part.key)
    given = named.at(("kind",))
    if not isinstance(named.value, dict) or not isinstance(given.value, str):
        said = f"policies.{decision} must be a name, or a mapping with its name as `kind`"
        raise ConfigError.at(part.mark, said)
    try:
        model = policy_model(decision, given.value)
        _refuse_options_of_others(decision, given.value, named.value, model)
        made = validated(model, named, within=where)
        check_policy(decision, made)
    except PolicyError as error:
        raise ConfigError.at(given.mark, error.message, error.code) from error
    return made


def _refuse_options_of_others(
    decision: str, chosen: str, options: Mapping[str, Located], model: type[PolicyConfig]
) -> None:
    """Options that the chosen policy lacks, and another of the same decision has.

    Raises `ConfigError`.
    """
    problems = []
    for key, part in options.items():
        others = [name for name, each in loadable(decision).items() if key in each.model_fields]
        if key not in model.model_fields and others:
            said = f"policies.{decision}: unknown key {key!r} of {chosen!r}; give the policy that "
            where = part.key or part.mark
            problems.append(Problem(where, f"{said}has it, as `kind: {' or '.join(others)}`"))
    if problems:
        raise ConfigError(*problems)


def _by_line(problems: list[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda each: (each.mark.line or 0, each.mark.column or 0))


def _node(name: str, part: Located) -> NodeConfig:
    where = ("nodes", name)
    if (wrong := not_a_node(name)) is not None:
        raise ConfigError.at(part.key or part.mark, f"nodes: {wrong}")
    if not isinstance(part.value, dict):
        said = f"nodes.{name} must be a mapping, as in `{name}: {{}}`"
        raise ConfigError.at(part.key or part.mark, said)
    given = part.value.get("kind", Located(name, part.key or part.mark, part.key))
    if not isinstance(given.value, str):
        raise ConfigError.at(given.mark, f"nodes.{name}.kind must be text")
    try:
        model = reading_model(kind(given.value))
    except GraphError as error:
        if given.value in known_kinds():  # a package's, which is wrong itself
            raise ConfigError.at(part.key or part.mark, error.message, error.code) from error
        advice = "" if "kind" in part.value else ". A node of another name needs a `kind`"
        raise ConfigError.at(given.mark, error.message + advice, error.code) from error
    named = Located({**part.value, "kind": given}, part.mark, part.key)
    node = validated(model, named, within=where)
    node._line = Line.of(part.key or part.mark)
    return node


def _across(config: PipelineConfig, source: Located) -> Iterator[Problem]:
    """What is wrong with a config whose parts are right."""
    if not config.nodes:
        said = "the pipeline lists no nodes: list them, or extend a pipeline, as `extends: base`"
        yield Problem(source.at(("nodes",)).mark, said)
    yield from _unknown_names(config, source)
    drafter = config.drafter
    window = 1 + (drafter.tokens if drafter else 0)
    if config.scheduler.token_budget < window:
        yield Problem(
            source.at(("scheduler", "token_budget")).mark,
            f"scheduler.token_budget {config.scheduler.token_budget} is less than the {window} "
            "tokens that one row decodes at once: a row gets its whole window or none",
        )
    chosen = config.policies.scheduling.kind
    if config.model.parallel.pipeline > 1 and chosen in ("decodes_first", "shared"):
        yield Problem(
            source.at(("policies", "scheduling")).mark,
            f"with model.parallel.pipeline a step is handed tokens by the one {config.depth} steps "
            f"before, and policy {chosen!r} runs rows sooner; say policies: {{scheduling: {{kind: "
            f"groups, groups: {config.depth}}}}}",
        )
    drafting: Any = config.policies.drafting  # a policy, with its name
    acceptance: Any = config.policies.acceptance
    if (wrong := clash(drafting, acceptance)) is not None:
        named = f"policies.drafting {config.policies.drafting.kind!r}"
        yield Problem(source.at(("policies", "drafting")).mark, f"{named}: {wrong}")
    yield from _wrong_plans(config, source)
    if (foreign := config.foreign_drafter) is not None:
        yield Problem(source.at(("model", "name")).mark, foreign)


def _wrong_plans(config: PipelineConfig, source: Located) -> Iterator[Problem]:
    """Other forms of the step that name what there is not."""
    if config.plans and config.ranks > 1:
        said = "`plans` are for one rank: leave them out, or model.parallel"
        yield Problem(source.at(("plans",)).mark, said)
    for name, plan in config.plans.items():
        if name == USUAL:
            said = f"{USUAL!r} is the name of the plan that the file itself has: choose another"
            yield Problem(source.at(("plans", name)).key or source.at(("plans",)).mark, said)
        for node, actor in plan.actors.items():
            for what, said, known in (
                ("node", node, config.nodes),
                ("actor", actor, config.actors),
            ):
                if said not in known:
                    mark = source.at(("plans", name, "actors", node)).mark
                    near = did_you_mean(said, known)
                    yield Problem(mark, f"unknown {what} {said!r}{near}", "SW-UNKNOWN-ACTOR")
        for place, node in enumerate(plan.without):
            if (wrong := _needed(config, node)) is not None:
                mark = source.at(("plans", name, "without", place)).mark
                yield Problem(mark, f"plans.{name}.without: {wrong}", "SW-SWITCH")


def _needed(config: PipelineConfig, name: str) -> str | None:
    """Why no plan of a pipeline can do without a node, if none can."""
    if name not in config.nodes:
        return f"the pipeline has no node {name!r}{did_you_mean(name, config.nodes)}"
    called = config.nodes[name].kind or name
    if not kind(called).spared:
        return (
            f"requests would notice it if steps had no node {name!r} of kind {called!r}; only "
            "drafters can be left out"
        )
    acceptance: Any = config.policies.acceptance
    if not acceptance.exact:
        return (
            f"with policies.acceptance {acceptance.kind!r} tokens depend on how many drafts a row "
            "has, and so on which plan ran its steps; use acceptance 'coupled'"
        )
    return None


def _unknown_names(config: PipelineConfig, source: Located) -> Iterator[Problem]:
    """Actors and streams that the file does not list, or that no node could name."""
    for listing in ("actors", "streams"):
        if AUTO in getattr(config, listing):
            wrong = f"{AUTO!r} leaves the choice open where a node says it: call this one otherwise"
            yield Problem(source.at((listing,)).mark, wrong)
    unlisted: dict[tuple[str, str], list[str]] = {}  # by key and name, nodes of other files
    for name, node in config.nodes.items():
        for key, said, known in (
            ("actor", node.actor, config.actors),
            ("stream", node.stream, config.streams),
        ):
            if said is not None and said != AUTO and said not in known:
                where: Location = ("nodes", name, key)
                near = did_you_mean(said, known)
                mark = source.at(where).mark
                if _changed_since(source, f"{key}s", node=mark):
                    unlisted.setdefault((key, said), []).append(name)
                else:
                    yield Problem(mark, f"unknown {key} {said!r}{near}", "SW-UNKNOWN-ACTOR")
    for (key, said), nodes in unlisted.items():
        wrong = f"{key}s lacks {said!r}, which is the {key} of {', '.join(nodes)}"
        yield Problem(source.at((f"{key}s",)).mark, wrong, "SW-UNKNOWN-ACTOR")


def _changed_since(source: Located, listing: str, node: Mark) -> bool:
    """Whether the list was said after `node`, by the file itself or a setting: it is what is wrong.

    A setting has no line.
    """
    listed = _entries(source).get(listing)
    if listed is None or node.line is None or listed.mark.file == node.file:
        return False
    return listed.mark.line is None or listed.mark.file == source.mark.file
