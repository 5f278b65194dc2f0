"""Every exception that mxgemm raises of its own, and nothing else.

Wrong types and wrong values at the public edge are `TypeError` and `ValueError`; the classes here
are for what only this library knows about. Messages read `<what was asked>: <constraint>, got
<value>; <what to do>`.
"""

from __future__ import annotations


class MXError(Exception):
    """Base class of mxgemm's exceptions."""


class LayoutMismatch(MXError):
    """An operand's storage is not in a layout that the called code accepts, or its buffers do not
    fit its layout.
    """


class UnsupportedProblem(MXError):
    """No backend, or not the backend that was named, can do what was asked; the text holds every
    reason.
    """


class BackendUnavailable(MXError):
    """A backend that was named cannot run here: a missing module, device or version."""


class CheckpointError(MXError):
    """A file does not hold what its format demands, or a target would be overwritten."""


class Hazard(MXError):
    """An emulated kernel did what the hardware does not define: a missing wait, a race, a read of
    poison.
    """
