"""Writes the inner tiles of the tile kernels as assembly, because compilers spill them.

A tile keeps rows x columns of sums in registers and walks over blocks of 32 k. One block of rows is
rows x 32 int8 | rows starts | rows exponents, one of columns decoded B | columns exponents
[| corrections], the last ones int32. "block" tiles scale every block. Arguments, System V:

    rdi  const void* rows     the first block, the others follow
    rsi  const void* columns  likewise
    rdx  int64_t blocks       at least 1
    rcx  float* acc           [rows][columns], the products are added to it

The AVX2 "group" tile takes the same, but acc is int32 and the sums are left as integers. The
AVX-512 "group" tiles sum all blocks in integers and scale once:

    rdi  const void* const (*list)[2]     for each block its rows and its columns
    rsi  int64_t blocks                   at least 1
    rdx  float* acc                       [rows][columns], the products are added to it
    rcx  const int32_t* row_constants     starts and exponents of the whole group
    r8   const int32_t* column_constants  exponents and corrections of the whole group

Starts are what sums begin from, corrections are added when they end; together they undo the offsets
that make one operand unsigned. The sum of two exponents, each shifted to the exponent's place, is
the bit pattern of the FP32 scale.

Usage: generate_tiles.py avx2|avx512 OUTPUT
"""

from __future__ import annotations

import sys
from pathlib import Path

BLOCK = 32
STEPS = BLOCK // 8  # a step is 8 k of a block: 4 even and then 4 odd ones
WORD = 4
CONSTANTS = "tile_constants"


class Assembly:
    """Lines of one function in Intel syntax."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines = [
            f".globl {name}",
            f".hidden {name}",
            f".type {name}, @function",
            ".p2align 6",
            f"{name}:",
        ]

    def __call__(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def label(self, name: str) -> str:
        text = f".L{self.name}_{name}"
        self.lines += [".p2align 6", f"{text}:"]
        return text

    def finish(self) -> list[str]:
        self("vzeroupper")
        self("ret")
        return [*self.lines, f".size {self.name}, .-{self.name}"]


def _avx2_add(
    emit: Assembly, rows: int, columns: int, sums: list[list[str]], *, grouped: bool
) -> None:
    """Widen a block's sums to 32 bits and add them, weighted or scaled, to the products."""
    vector = 32
    b, a, product = ["ymm12", "ymm13"], "ymm14", "ymm15"
    for j in range(2):
        constants = columns * (BLOCK + (0 if grouped else WORD))
        emit(f"vmovdqu {b[j]}, ymmword ptr [rsi + {constants + j * vector}]")
    for r in range(rows):
        if not grouped:
            emit(f"vbroadcastss {a}, dword ptr [rdi + {rows * (BLOCK + WORD) + WORD * r}]")
        for j in range(2):
            target = f"ymmword ptr [rcx + {(2 * r + j) * vector}]"
            if grouped:
                emit(f"vpmaddwd {sums[r][j]}, {sums[r][j]}, {b[j]}")
                emit(f"vpaddd {sums[r][j]}, {sums[r][j]}, {target}")
                emit(f"vmovdqu {target}, {sums[r][j]}")
                continue
            emit(f"vpmaddwd {sums[r][j]}, {sums[r][j]}, ymmword ptr [rip + {CONSTANTS}]")
            emit(f"vcvtdq2ps {sums[r][j]}, {sums[r][j]}")
            emit(f"vpaddd {product}, {b[j]}, {a}")
            emit(f"vfmadd213ps {sums[r][j]}, {product}, {target}")
            emit(f"vmovups {target}, {sums[r][j]}")


def avx2_tile(rows: int, *, grouped: bool) -> list[str]:
    """16 columns; sums of 16-bit lanes by vpmaddubsw, all sixteen registers in use.

    A column's weights, 2^(how far its scale lies above the group's base) in both of its lanes,
    stand before its exponents. A group tile multiplies by them on the way to 32 bits and adds
    integers.
    """
    emit = Assembly(f"mxgemm_avx2_{'group' if grouped else 'block'}_{rows}x16")
    vector, columns = 32, 16
    row_bytes, column_bytes = rows * (BLOCK + 2 * WORD), columns * (BLOCK + 2 * WORD)
    sums = [[f"ymm{2 * r + j}" for j in range(2)] for r in range(rows)]
    b, a, product = ["ymm12", "ymm13"], "ymm14", "ymm15"
    loop = emit.label("block")
    for r in range(rows):
        for j in range(2):
            emit(f"vbroadcastss {sums[r][j]}, dword ptr [rdi + {rows * BLOCK + WORD * r}]")
    for step in range(2 * STEPS):
        for j in range(2):
            emit(f"vmovdqu {b[j]}, ymmword ptr [rsi + {(2 * step + j) * vector}]")
        for r in range(rows):
            emit(f"vbroadcastss {a}, dword ptr [rdi + {r * BLOCK + WORD * step}]")
            emit(f"vpmaddubsw {product}, {b[0]}, {a}")
            emit(f"vpmaddubsw {a}, {b[1]}, {a}")
            emit(f"vpaddw {sums[r][0]}, {sums[r][0]}, {product}")
            emit(f"vpaddw {sums[r][1]}, {sums[r][1]}, {a}")
    _avx2_add(emit, rows, columns, sums, grouped=grouped)
    emit(f"add rdi, {row_bytes}")
    emit(f"add rsi, {column_bytes}")
    emit("dec rdx")
    emit(f"jnz {loop}")
    return emit.finish()


class Avx512Tile:
    """rows x 16 * vectors columns by vpdpbusd.

    With `halving`, two products come from one multiplication: (a1 + b2)(a2 + b1) = a1 b1 + a2 b2 +
    a1 a2 + b1 b2 (Winograd, 1968), the last two being constants of row and column.
    """

    def __init__(self, rows: int, vectors: int, *, halving: bool, grouped: bool) -> None:
        kind = ("halving" if halving else "vnni") + ("_group" if grouped else "_block")
        self.emit = Assembly(f"mxgemm_avx512_{kind}_{rows}x{16 * vectors}")
        self.rows, self.vectors, self.halving, self.grouped = rows, vectors, halving, grouped
        self.columns = 16 * vectors
        self.sums = [[f"zmm{r * vectors + j}" for j in range(vectors)] for r in range(rows)]
        self.free = [f"zmm{i}" for i in range(rows * vectors, 32)]
        self.row_bytes = rows * (BLOCK + 2 * WORD)
        self.column_bytes = self.columns * (BLOCK + 2 * WORD)
        self.acc = "rdx" if grouped else "rcx"

    def code(self) -> list[str]:
        emit = self.emit
        if self.grouped:
            emit("mov rax, rdi")
            emit("mov r11, rsi")
            self.start("rcx", 0)
        loop = emit.label("block")
        if self.grouped:
            emit("mov rdi, qword ptr [rax + 0]")
            emit("mov rsi, qword ptr [rax + 8]")
            emit("add rax, 16")
        else:
            self.start("rdi", self.rows * BLOCK)
        for step in range(STEPS):
            if self.halving:
                self.halving_step(step)
            else:
                self.plain_step(step)
        if not self.grouped:
            self.add_scaled("rdi", self.rows * (BLOCK + WORD), "rsi", self.columns * BLOCK)
            emit(f"add rdi, {self.row_bytes}")
            emit(f"add rsi, {self.column_bytes}")
        emit(f"dec {'r11' if self.grouped else 'rdx'}")
        emit(f"jnz {loop}")
        if self.grouped:
            self.add_scaled("rcx", self.rows * WORD, "r8", 0)
        return emit.finish()

    def start(self, base: str, offset: int) -> None:
        for r, row in enumerate(self.sums):
            self.emit(f"vpbroadcastd {row[0]}, dword ptr [{base} + {offset + WORD * r}]")
            for other in row[1:]:
                self.emit(f"vmovdqa64 {other}, {row[0]}")

    def load_columns(self, step: int, odd: int, registers: list[str]) -> None:
        for j, register in enumerate(registers):
            offset = ((2 * step + odd) * self.vectors + j) * 64
            self.emit(f"vmovdqu64 {register}, zmmword ptr [rsi + {offset}]")

    def row_values(self, r: int, step: int, odd: int) -> str:
        return f"dword ptr [rdi + {r * BLOCK + (2 * step + odd) * WORD}]"

    def halving_step(self, step: int) -> None:
        emit, n = self.emit, self.vectors
        b1, b2 = self.free[:n], self.free[n : 2 * n]
        a1, a2, u, v = self.free[2 * n : 2 * n + 4]
        self.load_columns(step, 0, b1)
        self.load_columns(step, 1, b2)
        for r in range(self.rows):
            emit(f"vpbroadcastd {a1}, {self.row_values(r, step, 0)}")
            emit(f"vpbroadcastd {a2}, {self.row_values(r, step, 1)}")
            for j in range(n):
                left, right = (a1, a2) if j == n - 1 else (u, v)
                emit(f"vpaddb {left}, {a1}, {b2[j]}")
                emit(f"vpaddb {right}, {a2}, {b1[j]}")
                emit(f"vpdpbusd {self.sums[r][j]}, {left}, {right}")

    def plain_step(self, step: int) -> None:
        n = self.vectors
        b, spare = self.free[:n], self.free[n:]
        for odd in range(2):
            self.load_columns(step, odd, b)
            for r in range(self.rows):
                a = spare[r % len(spare)]
                self.emit(f"vpbroadcastd {a}, {self.row_values(r, step, odd)}")
                for j in range(n):
                    self.emit(f"vpdpbusd {self.sums[r][j]}, {b[j]}, {a}")

    def add_scaled(
        self, row_base: str, row_offset: int, column_base: str, column_offset: int
    ) -> None:
        """Add sums * 2^exponents to acc; the columns' corrections lie behind their exponents."""
        emit, n = self.emit, self.vectors
        exponents, scale = self.free[:n], self.free[n]
        for j in range(n):
            emit(
                f"vmovdqu64 {exponents[j]}, zmmword ptr [{column_base} + {column_offset + 64 * j}]"
            )
        for r in range(self.rows):
            exponent = f"dword ptr [{row_base} + {row_offset + WORD * r}]{{1to16}}"
            for j in range(n):
                total, target = self.sums[r][j], f"zmmword ptr [{self.acc} + {(r * n + j) * 64}]"
                if self.halving:
                    correction = column_offset + WORD * self.columns + 64 * j
                    emit(f"vpaddd {total}, {total}, zmmword ptr [{column_base} + {correction}]")
                emit(f"vcvtdq2ps {total}, {total}")
                emit(f"vpaddd {scale}, {exponents[j]}, {exponent}")
                emit(f"vfmadd213ps {total}, {scale}, {target}")
                emit(f"vmovups {target}, {total}")


def tiles(isa: str) -> list[list[str]]:
    """Return the lines of every tile of an instruction set."""
    if isa == "avx2":
        return [avx2_tile(6, grouped=grouped) for grouped in (True, False)]
    shapes = [(6, 3, True), (8, 3, False)]
    return [
        Avx512Tile(rows, vectors, halving=halving, grouped=grouped).code()
        for rows, vectors, halving in shapes
        for grouped in (True, False)
    ]


def main() -> None:
    """Write the file that the command line asks for."""
    isa, output = sys.argv[1:]
    lines = ["# Written by generate_tiles.py.", ".intel_syntax noprefix", ".text"]
    for tile in tiles(isa):
        lines += ["", *tile]
    lines += ["", ".section .rodata", ".p2align 5", f"{CONSTANTS}:", "  .fill 16, 2, 1"]
    lines += ['.section .note.GNU-stack, "", @progbits', ""]
    Path(output).write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
