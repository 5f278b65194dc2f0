"""One module or folder per way to compute an MXFP4 GEMM. Backends import neither one another nor
dispatch.
"""
