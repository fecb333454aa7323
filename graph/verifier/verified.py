"""What runs plans asks here first: each plan and each switch is verified once, whoever made it."""

from __future__ import annotations

from weakref import WeakValueDictionary

from ..plan import Plan
from ..switch import Switch
from .switches import verify_switch
from .verify import verify

# By identity: neither plans nor switches ever change.
_passed: WeakValueDictionary[int, Plan | Switch] = WeakValueDictionary()


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
    """The same for a switch and both of its plans."""
    if _passed.get(id(switch)) is not switch:
        for plan in switch.plans:
            verified(plan)
        verify_switch(switch)
        _passed[id(switch)] = switch
    return switch
