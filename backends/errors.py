"""What can be wrong with a device, below `StepweaveError`."""

from ..graph.errors import StepweaveError


class NoDevice(StepweaveError):
    """There is no such device, or no backend for it."""

    code = "SW-NO-DEVICE"
    names_nothing = True
