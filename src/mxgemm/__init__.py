"""MXFP4 GEMM for PyTorch: one checked call, any shape, every epilogue, with stated and tested numerics."""
