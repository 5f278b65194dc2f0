"""Public checkpoint formats: one file per format, each with a writer and a reader that give the
same bits back.
"""

from mxgemm.checkpoints.compressed_tensors import Checkpoint, load, load_tensor, save
from mxgemm.checkpoints.conversion import Report, Skipped, TensorReport, quantize_file

__all__ = [
    "Checkpoint",
    "Report",
    "Skipped",
    "TensorReport",
    "load",
    "load_tensor",
    "quantize_file",
    "save",
]
