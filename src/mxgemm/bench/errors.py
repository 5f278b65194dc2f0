"""What a benchmark refuses, as one line for people."""

from __future__ import annotations

from mxgemm.errors import MXError


class BenchError(MXError):
    """Base class: a command prints the text and exits with status 2."""


class SuiteError(BenchError):
    """A suite file that says nothing, contradicts itself or asks for an impossible shape."""


class ResultsError(BenchError):
    """A rows file that cannot be read, written or compared."""


class Unavailable(BenchError):
    """A variant cannot do a case or a stage here; the text is the reason."""
