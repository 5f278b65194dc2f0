"""Transposing LDS loads: lane maps, EXEC, alignment, order with other waves."""

import numpy as np
import pytest

from gfx1250_programs import LANES, State, run_wave
from mxgemm.emulator import AccessError, ExecHazard, MissingWait, RaceHazard, UninitialisedRead

pytestmark = pytest.mark.emulated

LANE = np.arange(LANES)
ROWS, COLUMNS, OFFSET = 64, 16, 64

LOADS = {
    "ds_load_tr4_b64": (4, LANE // 16 * 8 + LANE % 16 // 8 * 32 + LANE % 8, 0 * LANE, 32),
    "ds_load_tr6_b96": (6, LANE // 8 * 4 + LANE % 8 // 4 * 32 + LANE % 4, 0 * LANE, 32),
    "ds_load_tr8_b64": (8, LANE // 8 * 4 + LANE % 4, LANE % 8 // 4 * 8, 8),
    "ds_load_tr16_b128": (16, LANE // 16 * 8 + LANE % 8, LANE % 16 // 8 * 8, 8),
}
"""Bits of an element; the row and first column of a 16-column matrix that each lane addresses, as
kernels do that feed a matrix operation; the row from which lanes 16..31 then hold elements.

Lane r gets column r from row 0 down, lane 16 + r column r from that row down.
"""


def packed(elements: np.ndarray, bits: int) -> np.ndarray:
    """Return each row's bytes, its first element in the lowest bits."""
    split = (elements[..., None] >> np.arange(bits) & 1).astype(np.uint8)
    return np.packbits(split.reshape(len(elements), -1), axis=-1, bitorder="little")


def load(name: str, matrix: np.ndarray, before: str = "", **options: object):
    """Load from `matrix`, its rows apart in LDS; return the state, the registers and what they
    should hold, [words, 32] each.
    """
    bits, row, column, second = LOADS[name]
    rows = packed(matrix, bits)
    pitch = rows.shape[1] + 16
    image = np.zeros((ROWS, pitch), np.uint8)
    image[:, : rows.shape[1]] = rows
    stored = image.view(np.uint32).reshape(-1, LANES)
    fill = "".join(
        f"ds_store_b32 v2, v{32 + n} offset:{OFFSET + 4 * LANES * n}\n" for n in range(len(stored))
    )
    words = int(name.rsplit("_b", 1)[1]) // 32
    state = run_wave(
        f"{fill}s_wait_dscnt 0x0\n{before}{name} v[20:{19 + words}], v1 offset:{OFFSET}\n"
        "s_wait_dscnt 0x0\ns_mov_b32 exec_lo, -1",
        vectors={1: (row * pitch + column * bits // 8).astype(np.uint32)}
        | {2: (LANE * 4).astype(np.uint32)}
        | dict(enumerate(stored, 32)),
        lds_bytes=OFFSET + image.size,
        **options,
    )
    held = np.arange(32 * words // bits)
    want = np.stack([matrix[second * (r // 16) + held, r % 16] for r in LANE])
    return state, loaded(state, words), packed(want, bits).view(np.uint32).T


def loaded(state: State, words: int) -> np.ndarray:
    return np.stack([state.vectors[20 + n] for n in range(words)])


def random_matrix(name: str) -> np.ndarray:
    return np.random.default_rng(11).integers(0, 1 << LOADS[name][0], (ROWS, COLUMNS))


@pytest.mark.parametrize("timing", ["early", "late", "random"])
@pytest.mark.parametrize("name", LOADS)
def test_each_lane_gets_its_column(name, timing):
    state, got, want = load(name, random_matrix(name), timing=timing)
    assert (got == want).all()
    assert state.result.counters.lds_read_bytes == want.nbytes


@pytest.mark.parametrize("ones", [True, False], ids=["ones among zeros", "a zero among ones"])
@pytest.mark.parametrize("column", range(COLUMNS))
@pytest.mark.parametrize("name", LOADS)
def test_neighbouring_elements_stay_apart(name, column, ones):
    largest = (1 << LOADS[name][0]) - 1
    matrix = np.full((ROWS, COLUMNS), 0 if ones else largest)
    matrix[[5, 13, 37, 45], column] = largest if ones else 0
    _, got, want = load(name, matrix)
    assert (got == want).all()
    assert len(np.unique(want)) > 1


@pytest.mark.parametrize("mask", ["0x1", "0x80000000", "0xffff"])
@pytest.mark.parametrize("name", LOADS)
def test_exec_is_ignored(name, mask):
    before = f"s_mov_b32 exec_lo, {mask}\n"
    state, got, want = load(name, random_matrix(name), before, timing="late")
    assert (got == want).all()
    assert state.result.counters.lds_read_bytes == want.nbytes


def test_exec_zero_is_refused():
    program = "s_mov_b32 exec_lo, 0\nds_load_tr4_b64 v[4:5], v1\ns_wait_dscnt 0x0"
    with pytest.raises(ExecHazard, match=r"pc 1 .*EXEC zero"):
        run_wave(program, vectors={1: LANE.astype(np.uint32) * 8}, lds_bytes=256)


HALF = "s_mov_b32 exec_lo, 0xffff\n"
STORE = "ds_store_b128 v1, v[4:7]\ns_wait_dscnt 0x0\n"
LOAD = "ds_load_tr16_b128 v[8:11], v1\ns_wait_dscnt 0x0\n"
VECTORS = dict.fromkeys((1, 4, 5, 6, 7), LANE.astype(np.uint32) * 16)


def test_lanes_outside_exec_need_an_address_and_written_bytes():
    with pytest.raises(UninitialisedRead, match="lanes 0xffff0000") as caught:
        run_wave(f"{HALF}v_mov_b32 v1, 0\nds_load_tr8_b64 v[4:5], v1", lds_bytes=512)
    assert caught.value.resource == "v1"
    run_wave(STORE + HALF + LOAD, vectors=VECTORS, lds_bytes=512)
    with pytest.raises(UninitialisedRead, match="LDS"):
        run_wave(HALF + STORE + LOAD, vectors=VECTORS, lds_bytes=512)


@pytest.mark.parametrize("timing", ["early", "late", "random"])
def test_using_the_result_needs_a_wait(timing):
    options = {"vectors": VECTORS, "lds_bytes": 512, "timing": timing}
    run_wave(f"{STORE}{LOAD}v_mov_b32 v3, v11", **options)
    with pytest.raises(MissingWait) as caught:
        run_wave(f"{STORE}{LOAD.splitlines()[0]}\nv_mov_b32 v3, v11", **options)
    assert (caught.value.resource, caught.value.missing) == ("v11", "s_wait_dscnt 0")


def test_overwriting_what_another_wave_reads_needs_a_barrier():
    barrier = "s_barrier_signal -1\ns_barrier_wait -1\n"
    own, others = "v_lshlrev_b32 v1, 4, v0\n", "v_xor_b32 v1, 0x200, v1\n"
    program = f"{own}{STORE}{barrier}{others}s_mov_b32 exec_lo, 1\n{LOAD}{{}}"
    program += f"s_mov_b32 exec_lo, -1\n{own}{STORE}"
    options = {"vectors": VECTORS, "block": 2 * LANES, "lds_bytes": 1024}
    run_wave(program.format(barrier), **options)
    with pytest.raises(RaceHazard):
        run_wave(program.format(""), **options)


@pytest.mark.parametrize(
    ("name", "registers", "alignment"),
    [
        ("ds_load_tr4_b64", "v[20:21]", 4),
        ("ds_load_tr6_b96", "v[20:22]", 4),
        ("ds_load_tr8_b64", "v[20:21]", 4),
        ("ds_load_tr16_b128", "v[20:23]", 16),
    ],
)
def test_misaligned_address(name, registers, alignment):
    program = f"{STORE}{name} {registers}, v3 offset:{{}}\ns_wait_dscnt 0x0"
    options = {"vectors": {**VECTORS, 3: np.zeros(LANES, np.uint32)}, "lds_bytes": 512}
    run_wave(program.format(alignment), **options)
    with pytest.raises(AccessError, match=f"of lane 0 must be a multiple of {alignment}"):
        run_wave(program.format(alignment // 2), **options)
