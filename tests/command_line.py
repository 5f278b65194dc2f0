"""How tests call the command line and what they expect of a failure."""

from __future__ import annotations

import re
import sys

from mxgemm.backends.base import Rejection, RejectionCode
from mxgemm.backends.reference import Reference
from mxgemm.problem import GemmProblem

COMMAND = [sys.executable, "-c", "import sys; from mxgemm.cli import main; sys.exit(main())"]


class Refuser(Reference):
    """A backend that no machine can run."""

    name = "refuser"

    def probe(self) -> Rejection | None:
        return Rejection(RejectionCode.IMPORT, "needs the module nowhere, which is missing")


class Emulated(Reference):
    """Takes problems on the emulated device, as the AMD backend does."""

    name = "emulated_toy"

    def check(self, problem: GemmProblem) -> Rejection | None:
        if not problem.device.emulated:
            return Rejection(RejectionCode.DEVICE, "needs the emulator")
        return None

    def automatic(self, problem: GemmProblem) -> bool:
        return True


def assert_fails(result: tuple[int, str, str], message: str) -> None:
    status, out, err = result
    assert (status, out) == (1, "")
    assert re.fullmatch(r"mxgemm: [^\n]+\n", err), err
    assert re.search(message, err), err
