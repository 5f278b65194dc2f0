"""The generated AVX-512 tiles, interpreted instruction by instruction, so that they are checked on
machines whose processor cannot run them.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.host

SOURCE = Path(__file__).parents[2] / "csrc" / "native_cpu" / "generate_tiles.py"
BLOCKS = 3
LISTED = [2, 0]  # the blocks of a group, in the order in which it takes them
BLOCK = 32


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_tiles", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Machine:
    """The few instructions that the tiles use, over named byte buffers as memory."""

    def __init__(
        self,
        memory: dict[str, np.ndarray[Any, Any]],
        count: int,
        listed: list[dict[str, int]] | None = None,
    ) -> None:
        self.memory = memory
        # Offsets that rdi and rsi take from the list at rax, one entry a block.
        self.listed = iter(listed or [])
        self.entry: dict[str, int] = {}
        self.zmm = {f"zmm{i}": np.zeros(64, np.uint8) for i in range(32)}
        self.offset = dict.fromkeys(memory, 0)
        self.count = count

    def address(self, text: str) -> tuple[np.ndarray[Any, Any], int]:
        match = re.search(r"\[(\w+) \+ (\d+)\]", text)
        assert match is not None, text
        base = match[1]
        return self.memory[base], self.offset[base] + int(match[2])

    def read(self, text: str) -> np.ndarray[Any, Any]:
        """A register, 64 bytes of memory, or 4 bytes of it in every lane."""
        if text in self.zmm:
            return self.zmm[text].copy()
        buffer, at = self.address(text)
        if text.startswith("dword"):
            return np.tile(buffer[at : at + 4], 16)
        assert text.startswith("zmmword"), text
        assert at + 64 <= len(buffer)
        return buffer[at : at + 64].copy()

    def execute(self, line: str) -> bool:
        """Run one line; return whether a jump is taken."""
        name, _, rest = line.strip().partition(" ")
        operands = [part.strip() for part in rest.split(", ")]
        if name == "vmovups":
            buffer, at = self.address(operands[0])
            buffer[at : at + 64] = self.read(operands[1])
        elif name == "mov" and operands[1].startswith("qword"):
            if operands[0] == "rdi":
                self.entry = next(self.listed)
            assert operands[1] == f"qword ptr [rax + {8 * (operands[0] == 'rsi')}]"
            self.offset[operands[0]] = self.entry[operands[0]]
        elif name == "mov":
            assert operands in (["rax", "rdi"], ["r11", "rsi"])
        elif name == "add" and operands[0] == "rax":
            assert operands[1] == "16"
        elif name == "add":
            self.offset[operands[0]] += int(operands[1])
        elif name == "dec":
            self.count -= 1
        elif name not in ("jnz", "vzeroupper", "ret"):
            self.zmm[operands[0]] = self.result(name, operands).view(np.uint8)
        return name == "jnz" and self.count != 0

    def result(self, name: str, operands: list[str]) -> np.ndarray[Any, Any]:
        """Return what a vector instruction writes to its first operand."""
        match name:
            case "vpbroadcastd" | "vmovdqa64" | "vmovdqu64":
                return self.read(operands[1])
            case "vpaddb":
                return self.read(operands[1]) + self.read(operands[2])
            case "vpaddd":
                left, right = (self.read(each).view(np.uint32) for each in operands[1:])
                return left + right
            case "vpdpbusd":
                unsigned = self.read(operands[1]).astype(np.int32).reshape(16, 4)
                signed = self.read(operands[2]).view(np.int8).astype(np.int32).reshape(16, 4)
                total = self.read(operands[0]).view(np.int32) + (unsigned * signed).sum(1)
                return total.astype(np.int32)
            case "vcvtdq2ps":
                return self.read(operands[1]).view(np.int32).astype(np.float32)
            case "vfmadd213ps":
                x, y, z = (self.read(each).view(np.float32).astype(np.float64) for each in operands)
                return (x * y + z).astype(np.float32)
        raise AssertionError(f"an instruction that the tiles did not use before: {name}")

    def run(self, lines: list[str]) -> None:
        labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
        at = 0
        while at < len(lines):
            line = lines[at]
            if line.startswith("  ") and self.execute(line):
                at = labels[line.split()[1]]
            at += 1
        assert self.count == 0


def words(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(values, np.int32).view(np.uint8).reshape(*values.shape[:-1], -1)


@pytest.mark.parametrize("grouped", [True, False], ids=["group", "block"])
@pytest.mark.parametrize(("rows", "vectors", "halving"), [(6, 3, True), (8, 3, False)])
def test_a_tile_adds_its_scaled_products(
    *, rows: int, vectors: int, halving: bool, grouped: bool
) -> None:
    columns = 16 * vectors
    random = np.random.default_rng(rows + grouped)
    a = random.integers(-48, 49, (BLOCKS, rows, 4, 2, 4))  # [eight k][even, odd][4]
    b = random.integers(-48, 49, (BLOCKS, 4, 2, columns, 4))
    starts = random.integers(-1000, 1000, (BLOCKS + 1, rows))
    corrections = random.integers(-1000, 1000, (BLOCKS + 1, columns))
    # Biased exponents: their sum is the scale's.
    row_exponents = random.integers(0, 9, (BLOCKS + 1, rows)) << 23
    column_exponents = random.integers(115, 125, (BLOCKS + 1, columns)) << 23

    # The offset of the unsigned operand is on odd k of B (halving) or on all of B.
    raised = np.array([0, 128] if halving else [128, 128])[:, None, None]
    row_form = np.concatenate(
        [
            a.astype(np.int8).view(np.uint8).reshape(BLOCKS, -1),
            words(starts[:BLOCKS]),
            words(row_exponents[:BLOCKS]),
        ],
        axis=1,
    ).ravel()
    column_form = np.concatenate(
        [
            (b + raised).astype(np.uint8).reshape(BLOCKS, -1),
            words(column_exponents[:BLOCKS]),
            words(corrections[:BLOCKS]),
        ],
        axis=1,
    ).ravel()
    acc = random.integers(-100, 100, (rows, columns)).astype(np.float32)
    row_constants = np.concatenate([words(starts[-1:]), words(row_exponents[-1:])], axis=1)
    column_constants = np.concatenate(
        [words(column_exponents[-1:]), words(corrections[-1:])], axis=1
    )
    target = acc.copy().view(np.uint8).ravel()
    forms = {"rdi": row_form, "rsi": column_form}
    if grouped:
        memory = forms | {
            "rdx": target,
            "rcx": row_constants.ravel(),
            "r8": column_constants.ravel(),
        }
        listed = [{name: i * len(form) // BLOCKS for name, form in forms.items()} for i in LISTED]
        machine = Machine(memory, len(LISTED), listed)
    else:
        machine = Machine(forms | {"rcx": target}, BLOCKS)
    tile = generator().Avx512Tile(rows, vectors, halving=halving, grouped=grouped)
    machine.run(tile.code())
    out = target.view(np.float32).reshape(rows, columns)

    even_a, odd_a = a[:, :, :, 0], a[:, :, :, 1]
    even_b, odd_b = b[:, :, 0], (b + raised)[:, :, 1]
    if halving:
        left = even_a[:, :, :, None] + odd_b[:, None]
        right = odd_a[:, :, :, None] + even_b[:, None]
        sums = (left * right).sum((2, 4))
    else:
        even_b = even_b + 128
        sums = np.einsum("brdi,bdci->brc", even_a, even_b)
        sums += np.einsum("brdi,bdci->brc", odd_a, odd_b)
    right_result = acc.astype(np.float64)
    steps = [(LISTED, BLOCKS)] if grouped else [(slice(i, i + 1), i) for i in range(BLOCKS)]
    for blocks, constants in steps:
        total = sums[blocks].sum(0) + starts[constants][:, None]
        if halving:
            total = total + corrections[constants]
        bits = (row_exponents[constants][:, None] + column_exponents[constants]).astype(np.int32)
        scaled = total.astype(np.float32).astype(np.float64) * bits.view(np.float32)
        right_result = (right_result + scaled).astype(np.float32).astype(np.float64)
    np.testing.assert_array_equal(out, right_result.astype(np.float32))
