"""What runs a plan asks here first: each plan is verified once, whoever made or changed it."""

from __future__ import annotations

from weakref import WeakValueDictionary

from ..plan import Plan
from ..switch import Switch
from .switches import verify_switch
from .verify import verify

_passed: WeakValueDictionary[int, Plan] = WeakValueDictionary()  # by identity: plans never change


def verified(plan: Plan) -> Plan:
    """The plan itself, once it has passed `verify`. Raises `UnsoundPlan`.

    A plan that has passed is known by identity, so asking again costs nothing; any other,
    such as one that `dataclasses.replace` made of it, is verified anew.
    """
    if _passed.get(id(plan)) is not plan:
        verify(plan)
        _passed[id(plan)] = plan
    return plan


def verified_switch(switch: Switch) -> Switch:
    """The switch itself, once it and both of its plans have passed. Raises `UnsoundPlan`."""
    verify_switch(switch)
    return switch
