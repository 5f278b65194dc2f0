"""The table, the executor and the tests cover the same instructions."""

import re
from pathlib import Path

import pytest

from mxgemm.emulator.gfx1250.table import BY_OPCODE, ROWS
from mxgemm.emulator.lowering import native

pytestmark = pytest.mark.emulated

TESTS = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py")).replace(
    "\\n", " "
)

HINTS = {"s_clause", "s_sleep", "s_setprio", "s_delay_alu", "global_prefetch_b8"}
"""They do nothing, so that decoding is all there is to test."""
FAMILIES = re.compile(
    r"ds_(load|store)_(2addr_(stride64_)?)?b\d+|ds_load_[iu]\d+|(global|scratch)_(load|store)_\w+|s_load_\w+|v_cmpx?_\w+|v_wmma_\w+"
)
"""Their tests in test_memory, test_vector and test_matrix build the names from widths, types
and relations.
"""


def test_every_row_has_a_function_of_its_name_and_every_function_a_row():
    assert set(native().operations("gfx1250")) == set(ROWS)


def test_no_two_rows_share_an_opcode():
    assert len(BY_OPCODE) == sum(len(row.forms) for row in ROWS.values())


@pytest.mark.parametrize("name", sorted(n for n in set(ROWS) - HINTS if not FAMILIES.fullmatch(n)))
def test_every_instruction_is_named_by_a_test_that_runs_it(name):
    assert re.search(rf"\b{name}\b", TESTS)
