"""Policies by name: what is found, and what is said of a name or a package that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config
from stepweave.policies import Coupled, Policies, Policy, PolicyError
from stepweave.policies.registry import (
    DECISIONS,
    check_policy,
    known,
    passed_over,
    policy,
    policy_class,
)
from tests.installed import installed

PACKAGE = """\
from typing import ClassVar

from stepweave.policies import Coupled, Policy


class Lazy(Policy):
    \"\"\"Does nothing of what it should.\"\"\"

    def verify(self, windows):
        raise NotImplementedError


class Both(Coupled):
    \"\"\"Compares what it has coupled.\"\"\"

    compares: ClassVar[bool] = True
    exact: ClassVar[bool] = False


class Good(Coupled):
    \"\"\"As coupled.\"\"\"


not_a_policy = 7


def __getattr__(name):
    if name == "Bare":  # a class whose body pydantic refuses
        type("Bare", (Policy,), {"exact": False})
    raise AttributeError(name)
"""


@contextmanager
def package(folder: Path, **points: str) -> Iterator[None]:
    project, site = folder / "project", folder / "site"
    project.mkdir()
    site.mkdir()
    listed = "\n".join(f'"{name.replace("__", ".")}" = "{to}"' for name, to in points.items())
    (project / "pyproject.toml").write_text(
        '[project]\nname = "others"\nversion = "1"\n'
        f'[project.entry-points."stepweave.policies"]\n{listed}\n'
        '[tool.setuptools]\npy-modules = ["others_policies"]\n'
    )
    (project / "others_policies.py").write_text(PACKAGE)
    with installed(project, site):
        yield


def test_every_decision_has_its_default_among_the_names() -> None:
    for decision, default in {
        "admission": "eager",
        "scheduling": "decodes_first",
        "preemption": "last_come",
        "resumption": "kept",
        "acceptance": "coupled",
        "stopping": "as_asked",
    }.items():
        assert policy(decision, default) == getattr(Policies(), decision)
        assert known(decision, installed=False)[0] == default
    assert set(DECISIONS) == set(Policies.__dataclass_fields__)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(PolicyError, match=r"no preemption policy 'last_came' .*'last_come'"):
        policy("preemption", "last_came")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("synthetic", {"rate": [0.5]}, "rates"),
        ("synthetic", {"rates": (1.5,)}, "less than or equal to 1"),
        ("coupled", {"rates": (0.5,)}, "Extra inputs"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        policy("acceptance", name, **options)


def test_a_package_adds_a_policy_by_decision_and_name(tmp_path: Path) -> None:
    with package(tmp_path, acceptance__good="others_policies:Good"):
        assert known("acceptance") == (
            *("coupled", "rejection", "block", "typical", "synthetic"),
            "good",
        )
        assert "good" not in known("acceptance", installed=False)
        assert "good" not in known("scheduling")
        made = policy("acceptance", "good")
        assert isinstance(made, Coupled)
        assert type(made) is not Coupled
    with pytest.raises(PolicyError, match="no acceptance policy 'good'"):
        policy_class("acceptance", "good")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "others_policies:Lazy",
            r"no 'compares', no 'couples', no 'exact': see stepweave\.policies",
        ),
        ("others_policies:Bare", r"PydanticUserError: A non-annotated attribute.*`[.] Update"),
        ("others_policies:Both", r"both compares and couples"),
        ("others_policies:not_a_policy", r"must name a subclass of .*Policy, not 7"),
        ("others_policies:missing", r"cannot be loaded: AttributeError"),
        ("nowhere_at_all:X", r"cannot be loaded: ModuleNotFoundError"),
        ("others_policies X", r"cannot be loaded: it is not of the form `module:name`"),
    ],
)
def test_what_is_wrong_with_a_package_is_said_of_the_package(
    target: str, said: str, tmp_path: Path
) -> None:
    with (
        package(tmp_path, acceptance__wrong=target),
        pytest.raises(PolicyError, match=f"(?s)'(acceptance.)?wrong' of package 'others'.*{said}"),
    ):
        policy("acceptance", "wrong")


def test_an_entry_point_of_no_decision_is_named_where_its_policy_is_not_found(
    tmp_path: Path,
) -> None:
    with (
        package(tmp_path, accept__good="others_policies:Good"),
        pytest.raises(
            PolicyError, match=r"package 'others' registers 'accept\.good', which should"
        ),
    ):
        policy("acceptance", "good")


def test_a_file_that_names_a_policy_without_what_it_must_do_is_refused(tmp_path: Path) -> None:
    with (
        package(tmp_path, drafting__lazy="others_policies:Lazy"),
        pytest.raises(
            ConfigError, match=r"overrides\['policies.drafting'\]: .*has no 'drafts', no 'own'"
        ),
    ):
        load_config("quickstart", {"policies.drafting": "lazy"})


def test_a_policy_that_nobody_finds_since_its_name_is_taken_is_told(tmp_path: Path) -> None:
    points = dict.fromkeys(("acceptance__coupled", "acceptance__good"), "others_policies:Good")
    with package(tmp_path, **points):
        assert passed_over("acceptance") == {"coupled": ["package 'others'"]}
        assert passed_over("scheduling") == {}
        assert type(policy("acceptance", "coupled")) is Coupled


def test_a_policy_of_a_file_is_named_as_the_file_names_it(tmp_path: Path) -> None:
    with (
        package(tmp_path, stopping__lazy="others_policies:Lazy"),
        pytest.raises(
            ConfigError, match="stopping policy 'lazy' of package 'others' has no 'asks'"
        ),
    ):
        load_config("quickstart", {"policies.stopping": "lazy"})


def test_an_object_is_checked_for_the_decision_that_it_is_for() -> None:
    class Mine(Policy):
        """Names nobody."""

    with pytest.raises(PolicyError, match="preemption policy 'Mine' has no 'victim'"):
        check_policy("preemption", Mine())
    with pytest.raises(PolicyError, match="stopping policy 'Mine' has no 'asks', no 'ends'"):
        Policies(stopping=Mine())  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="drafting policy 'Mine' has no 'drafts', no 'own'"):
        Policies(drafting=Mine())  # type: ignore[arg-type]
