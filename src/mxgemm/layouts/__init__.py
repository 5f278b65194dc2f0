"""Where a byte of codes or scales lies: one file per geometry, each with forward, inverse and
offset side by side.

A layout is a pure permutation of a byte matrix [rows, columns] plus zero padding. For codes a
column is one byte (two codes); for scales a column is one block of 32. Layouts are named by
geometry; `ALIASES` maps the names that products give them.
"""

from mxgemm.layouts.base import Layout
from mxgemm.layouts.row_major import RowMajor
from mxgemm.layouts.scale_32x4 import Scale32x4
from mxgemm.layouts.scale_32x8 import Scale32x8
from mxgemm.layouts.scale_128x4 import Scale128x4
from mxgemm.layouts.scale_k_major import ScaleKMajor
from mxgemm.layouts.tile_16x16 import Tile16x16

REGISTRY: dict[str, type[Layout]] = {
    cls.name: cls for cls in (RowMajor, Tile16x16, Scale32x8, Scale32x4, Scale128x4, ScaleKMajor)
}
"""Every geometry by name; round-trip, offset and poison tests run over it."""

ROW_MAJOR = RowMajor()

ALIASES: dict[str, Layout] = {
    "aiter_shuffled_codes": Tile16x16(),
    "aiter_shuffled_scales": Scale32x8(),
    "cublas_128x4": Scale128x4(),
    "gfx1250_n32k4": Scale32x4(),
    "hipblaslt_32x8": Scale32x8(),
    "rocm_te_plain_scales": RowMajor(row_multiple=256, column_multiple=8),
    "rocm_te_swizzled_scales": Scale32x8(row_multiple=256),
}
"""Names that products use, as instances with those products' padding."""


def get(name: str) -> Layout:
    """Return the layout called `name`: a geometry with its least padding, or an alias.

    Raises:
        ValueError: the name is unknown; the message lists those that exist.
    """
    if name in REGISTRY:
        return REGISTRY[name]()
    if name in ALIASES:
        return ALIASES[name]
    known = ", ".join(sorted([*REGISTRY, *ALIASES]))
    raise ValueError(f"layout: must be one of {known}, got {name!r}")


__all__ = [
    "ALIASES",
    "REGISTRY",
    "ROW_MAJOR",
    "Layout",
    "RowMajor",
    "Scale32x4",
    "Scale32x8",
    "Scale128x4",
    "ScaleKMajor",
    "Tile16x16",
    "get",
]
